"""C = scale · A·Bᵀ on Hopper's wgmma with folded MXFP6 weights and FP8 activations, for few rows and for many.

A (M×K): FP8, either format, with its tensor scale; any M. B (N×K): MXFP6, either format, as
`narrowgemm.fold_weights(b)` makes it, 0.75 byte a weight, a byte a block and an FP32 factor a row; weights whose block
scales spread too far are refused there. K is a multiple of 32. C (M×N): F32, BF16, F16 or FP8, scaled in FP32 and
rounded once, at the store; its rows are whole 16 bytes. FP8 saturates. Every run gives the same bits. Roles, barriers
and where the scales go: `_hopper_folded`.

The tensor core adds FP8 products over all of K with fewer bits than FP32 has, as in `hopper_wgmma_fp8`;
`hopper_wgmma_w6a8` adds blocks of 32 in FP32.
"""

import jax

from narrowgemm.formats.fold import FoldedWeights, fold_weights
from narrowgemm.formats.quantize import Operand, QuantizedArray
from narrowgemm.gemm import _hopper_folded
from narrowgemm.gemm._hopper_folded_space import Config, candidates_folded, check_folded
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

NAME = "hopper_wgmma_w6a8_folded"


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_folded(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return candidates_folded(NAME, problem)


def prepare_b(b: QuantizedArray) -> FoldedWeights:
    """The weights as `matmul` takes them. Raises UnsupportedError for weights that cannot be folded."""
    return fold_weights(b)


def matmul(a: Operand, b: FoldedWeights, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their scales as an M×N array of `out_format`."""
    return _hopper_folded.launch(NAME, a, b, config, out_format, interpret)


KERNELS = (
    Kernel(
        name=NAME,
        arch="hopper",
        is_baseline=False,
        a_formats=("fp8_e4m3", "fp8_e5m2"),
        b_formats=("mxfp6_e2m3", "mxfp6_e3m2"),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
        prepare_b=prepare_b,
    ),
)
