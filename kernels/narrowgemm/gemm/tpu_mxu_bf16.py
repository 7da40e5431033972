"""C = A·Bᵀ in BF16 on a TPU's matrix units, FP32 accumulation in VMEM.

A (M×K), B (N×K): BF16, K contiguous, K a multiple of 128. C (M×N): BF16 or F32, rounded once, at the store. How it
runs: `_tpu_mxu`.
"""

from narrowgemm.gemm import _tpu_mxu

KERNELS = (_tpu_mxu.kernel("tpu_mxu_bf16", ("bf16",), ("bf16", "f32")),)
