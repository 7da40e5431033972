"""C = scale · A·Bᵀ on Hopper's wgmma with FP4 weights and BF16 activations: B is widened in registers.

A (M×K): BF16; any M. B (N×K): MXFP4 or NVFP4, 0.5 byte a weight and its
block scales beside, in the order that `narrowgemm.shuffle_weights(b, 16)` makes; K is a multiple of 32 (NVFP4: 16).
C (M×N): BF16, F16 or F32, rounded once, at the store; its rows are whole 16 bytes.
Roles, barriers and where the scales go: `_hopper_weights`.

Weights times block scales are exact in BF16; the tensor core accumulates in FP32.
"""

import jax

from narrowgemm.formats.quantize import Operand, QuantizedArray
from narrowgemm.formats.shuffle import ShuffledWeights, shuffle_weights
from narrowgemm.gemm import _hopper_weights
from narrowgemm.gemm._hopper_weights_space import OUT_FORMATS, Config, candidates_weights, check_weights
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem

NAME = "hopper_wgmma_w4a16"


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_weights(NAME, problem, config)


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    return candidates_weights(NAME, problem)


def prepare_b(b: QuantizedArray) -> ShuffledWeights:
    """The weights as `matmul` takes them."""
    return shuffle_weights(b, 16)


def matmul(a: Operand, b: ShuffledWeights, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their tensor scales as an M×N array of `out_format`."""
    return _hopper_weights.launch(NAME, a, b, config, out_format, interpret)


KERNELS = (
    Kernel(
        name=NAME,
        arch="hopper",
        is_baseline=False,
        a_formats=("bf16",),
        b_formats=("mxfp4", "nvfp4"),
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
        prepare_b=prepare_b,
    ),
)
