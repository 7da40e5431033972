"""C = scale · A·Bᵀ in FP8 on Hopper's wgmma: E4M3 and E5M2 in any mix, with their tensor scales.

A (M×K), B (N×K): FP8, K contiguous and a multiple of 16, any M. C (M×N): F32, BF16, F16 or FP8, scaled in FP32 and
rounded once, at the store; its rows are whole 16 bytes. FP8 saturates. Roles and barriers: `_hopper_wgmma`.

The tensor core adds FP8 products with fewer bits than FP32 has: the error against float64 is near 1e-3 of the result's
norm at K = 8192 with normal data (`narrowgemm.gemm.oracle` bounds it). cuBLASLt's fast accumulation is the same.
"""

import functools

import jax

from narrowgemm.formats.quantize import Operand
from narrowgemm.gemm import _hopper_wgmma, _wgmma_epilogue
from narrowgemm.gemm._hopper_space import Config, candidates_dense, check_dense
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

NAME = "hopper_wgmma_fp8"


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_dense(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return candidates_dense(NAME, problem)


def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their tensor scales as an M×N array of `out_format`."""
    return _hopper_wgmma.launch(NAME, a, b, config, out_format, interpret)


def matmul_epilogue(
    a: Operand, b: Operand, config: Config, out_format: str, epilogue: Epilogue, interpret: bool = False
) -> jax.Array:
    """As `matmul`, with the epilogue applied to the FP32 accumulator before it is stored."""
    return _hopper_wgmma.launch(NAME, a, b, config, out_format, interpret, epilogue)


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
        matmul_epilogue=matmul_epilogue,
        check_epilogue=functools.partial(_wgmma_epilogue.check_room, NAME),
    ),
)
