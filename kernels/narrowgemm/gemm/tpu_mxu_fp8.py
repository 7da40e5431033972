"""C = s_a·s_b · A·Bᵀ in FP8 on a TPU's matrix units, FP32 accumulation in VMEM.

A (M×K), B (N×K): E4M3 or E5M2, K contiguous, K a multiple of 128; s_a, s_b: FP32 scales of the tensors, applied once,
to the sum. C (M×N): BF16 or F32, rounded once, at the store. Only v7 multiplies FP8 as such; earlier chips widen it,
so that there FP8 buys bytes of HBM and no FLOP/s. How it runs: `_tpu_mxu`.
"""

from narrowgemm.gemm import _tpu_mxu

KERNELS = (_tpu_mxu.kernel("tpu_mxu_fp8", ("fp8_e4m3", "fp8_e5m2"), ("bf16", "f32")),)
