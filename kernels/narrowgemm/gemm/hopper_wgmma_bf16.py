"""C = A·Bᵀ in BF16 on Hopper's wgmma, FP32 accumulation.

A (M×K), B (N×K): BF16, K contiguous and a multiple of 8, any M. C (M×N): F32, BF16, F16 or FP8, rounded once, at the
store; its rows are whole 16 bytes. FP8 saturates. Roles and barriers: `_hopper_wgmma`.
"""

import functools

import jax

from narrowgemm.formats.quantize import Operand
from narrowgemm.gemm import _hopper_wgmma, _wgmma_epilogue
from narrowgemm.gemm._hopper_space import Config, candidates_dense, check_dense
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

NAME = "hopper_wgmma_bf16"


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_dense(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return candidates_dense(NAME, problem)


def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ as an M×N array of `out_format`."""
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
        a_formats=("bf16",),
        b_formats=("bf16",),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
        matmul_epilogue=matmul_epilogue,
        check_epilogue=functools.partial(_wgmma_epilogue.check_room, NAME),
    ),
)
