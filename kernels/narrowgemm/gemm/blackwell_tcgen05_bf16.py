"""C = A·Bᵀ in BF16 on Blackwell's tcgen05 (`kind::f16`), FP32 accumulation in tensor memory.

A (M×K), B (N×K): BF16, K contiguous, K a multiple of 8. C (M×N): BF16, F16, F32 or FP8, rounded once, at the store; its
rows are whole 16 bytes. FP8 saturates, because the conversion instruction does. Roles, barriers: `_blackwell_tcgen05`.
"""

import jax

from narrowgemm.gemm import _blackwell_tcgen05 as tcgen05
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

NAME = "blackwell_tcgen05_bf16"
Config = tcgen05.Config


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    tcgen05.check(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return tcgen05.candidates(NAME, problem)


def matmul(a: jax.Array, b: jax.Array, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K, BF16) · b (N×K, BF16)ᵀ as an M×N array of `out_format`."""
    return tcgen05.gemm(NAME, a, b, (), config, out_format, interpret)


KERNELS = (
    Kernel(
        name=NAME,
        arch="blackwell",
        is_baseline=False,
        a_formats=("bf16",),
        b_formats=("bf16",),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
    ),
)
