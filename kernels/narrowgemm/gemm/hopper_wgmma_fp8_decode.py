"""C = scale · A·Bᵀ in FP8 on Hopper's wgmma for M up to 128, where reading B is all: operands swapped, K split.

A (M×K), B (N×K): FP8, E4M3 and E5M2 in any mix, with their tensor scales, K contiguous and a multiple of 16. C (M×N):
F32, BF16, F16 or FP8, scaled in FP32 and rounded once, at the store; its rows are whole 16 bytes. FP8 saturates.
Every run gives the same bits. Roles and barriers: `_hopper_decode`.

The tensor core adds FP8 products with fewer bits than FP32 has, as in `hopper_wgmma_fp8`; parts of K are added in FP32.
"""

import jax

from narrowgemm.formats.quantize import Operand
from narrowgemm.gemm import _hopper_decode
from narrowgemm.gemm._hopper_decode_space import MAX_M, Config, candidates_decode, check_decode
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

NAME = "hopper_wgmma_fp8_decode"


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_decode(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first. Raises UnsupportedError for a shape that none does."""
    return candidates_decode(NAME, problem)


def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their tensor scales as an M×N array of `out_format`."""
    return _hopper_decode.launch(NAME, a, b, config, out_format, interpret)


KERNELS = (
    Kernel(
        name=NAME,
        arch="hopper",
        is_baseline=False,
        a_formats=("fp8_e4m3", "fp8_e5m2"),
        b_formats=("fp8_e4m3", "fp8_e5m2"),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
        max_m=MAX_M,
    ),
)
