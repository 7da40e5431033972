"""C = A·Bᵀ in BF16 on Blackwell's tcgen05 (`kind::f16`), FP32 accumulation in tensor memory.

A (M×K), B (N×K): BF16, K contiguous, K a multiple of 8. C (M×N): BF16, F16, F32 or FP8, rounded once, at the store;
its rows are whole 16 bytes. FP8 saturates, because the conversion instruction does. Roles and barriers:
`_blackwell_tcgen05`; choices: `_blackwell_plan`.
"""

from narrowgemm.gemm import _blackwell_tcgen05

KERNELS = (_blackwell_tcgen05.kernel("blackwell_tcgen05_bf16", ("bf16",)),)
