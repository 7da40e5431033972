"""C = s_a·s_b · A·Bᵀ in FP8 on Blackwell's tcgen05 (`kind::f8f6f4`), FP32 accumulation in tensor memory.

A (M×K), B (N×K): E4M3 or E5M2, each its own, K contiguous, K a multiple of 16; s_a, s_b: FP32 scales of the tensors,
applied once, to the sum. C (M×N): BF16, F16, F32 or FP8, rounded once, at the store; its rows are whole 16 bytes. FP8
saturates, because the conversion instruction does. Roles and barriers: `_blackwell_tcgen05`; choices:
`_blackwell_plan`.
"""

from narrowgemm.gemm import _blackwell_tcgen05

KERNELS = (_blackwell_tcgen05.kernel("blackwell_tcgen05_fp8", ("fp8_e4m3", "fp8_e5m2")),)
