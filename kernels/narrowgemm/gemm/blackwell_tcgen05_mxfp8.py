"""C = A·Bᵀ in MXFP8 on Blackwell's tcgen05 (`kind::mxf8f6f4.block_scale`, one E8M0 scale for 32 elements of K).

A (M×K), B (N×K): E4M3 or E5M2, each its own, K contiguous, K a multiple of 32. The tensor core multiplies each
product by both scales before it adds, in FP32, in tensor memory. C (M×N): BF16, F16, F32 or FP8, rounded once, at the
store; its rows are whole 16 bytes. FP8 saturates, because the conversion instruction does. Roles and barriers:
`_blackwell_tcgen05`; choices: `_blackwell_plan`.
"""

from narrowgemm.gemm import _blackwell_tcgen05

KERNELS = (_blackwell_tcgen05.kernel("blackwell_tcgen05_mxfp8", ("mxfp8_e4m3", "mxfp8_e5m2")),)
