"""C = s_a·s_b · A·Bᵀ in INT8 on a TPU's matrix units, INT32 accumulation in VMEM, which is exact.

A (M×K), B (N×K): int8, K contiguous, K a multiple of 128 and below 2^17, so that no sum of products leaves INT32;
s_a, s_b: FP32 scales of the tensors, applied once, to the sum as FP32. C (M×N): BF16 or F32, rounded at the store.
v5e, v5p and v6e multiply INT8 at twice the rate of BF16. v7 does not multiply it: there the compiler widens a step's
codes to BF16 and makes INT32 of its FP32 sum, exact for a tile_k of up to 1024, so that INT8 buys bytes of HBM and no
operations a second. How it runs: `_tpu_mxu`.
"""

from narrowgemm.gemm import _tpu_mxu

KERNELS = (_tpu_mxu.kernel("tpu_mxu_int8", ("int8",), ("bf16", "f32")),)
