"""C = A·Bᵀ in MXFP4 on Blackwell's tcgen05 (`kind::mxf4.block_scale`, one E8M0 scale for 32 elements of K).

A (M×K), B (N×K): E2M1, two to a byte along K, K a multiple of 32. The tensor core takes twice the elements of FP8 a
cycle; it multiplies each product by both scales before it adds, in FP32, in tensor memory. C (M×N): BF16, F16, F32 or
FP8, rounded once, at the store; its rows are whole 16 bytes. FP8 saturates, because the conversion instruction does.
Roles and barriers: `_blackwell_tcgen05`; choices: `_blackwell_plan`.
"""

from narrowgemm.gemm import _blackwell_tcgen05

KERNELS = (_blackwell_tcgen05.kernel("blackwell_tcgen05_mxfp4", ("mxfp4",)),)
