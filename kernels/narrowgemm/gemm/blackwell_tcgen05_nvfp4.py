"""C = s_a·s_b · A·Bᵀ in NVFP4 on Blackwell's tcgen05 (`kind::mxf4nvf4.block_scale`, an E4M3 scale for 16 of K).

A (M×K), B (N×K): E2M1, two to a byte along K, K a multiple of 32; s_a, s_b: FP32 scales of the tensors, applied once,
to the sum. The tensor core multiplies each product by both block scales before it adds, in FP32, in tensor memory. C
(M×N): BF16, F16, F32 or FP8, rounded once, at the store; its rows are whole 16 bytes. FP8 saturates, because the
conversion instruction does. Roles and barriers: `_blackwell_tcgen05`; choices: `_blackwell_plan`.
"""

from narrowgemm.gemm import _blackwell_tcgen05

KERNELS = (_blackwell_tcgen05.kernel("blackwell_tcgen05_nvfp4", ("nvfp4",)),)
