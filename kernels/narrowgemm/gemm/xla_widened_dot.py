"""What XLA alone makes of FP8 in blocks of 128: C = Σ_k (s_a·A)[m,k]·(s_b·B)[n,k] as a dot of operands widened to BF16.

XLA has no dot whose scales change along K off Blackwell, so it multiplies codes by their scales, rounds to BF16, writes
both operands to memory where it does not fuse that, and multiplies in BF16. This is what a program without such a
kernel pays; it is no FP8 multiplication, and the compiled program, which is read, says so: a row of it is an upcast.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.formats.quantize import QuantizedArray, spread
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem

_K_LAST = (((1,), (1,)), ((), ()))


@dataclass(frozen=True)
class Config:
    """A widened dot has no choices."""


def check(problem: GemmProblem, config: Config) -> None:
    """XLA's dots take any shape."""
    del problem, config


def candidates(problem: GemmProblem) -> Sequence[Config]:
    """The one config."""
    del problem
    return (Config(),)


def matmul(a: QuantizedArray, b: QuantizedArray, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """C (m, n) in BF16 for operands (m, k) and (n, k) in blocks; `interpret` changes nothing for XLA."""
    del config, out_format, interpret
    return lax.dot_general(_widened(a), _widened(b), _K_LAST, preferred_element_type=jnp.bfloat16)


def _widened(operand: QuantizedArray) -> jax.Array:
    assert operand.scales is not None
    scales = spread(operand.scales, operand.spec, operand.shape)
    return (operand.codes.astype(jnp.float32) * scales).astype(jnp.bfloat16)


KERNELS = (
    Kernel(
        "xla_widened_dot_fp8_block128",
        "any",
        True,
        ("fp8_e4m3_1x128",),
        ("fp8_e4m3_128x128",),
        # The error of rounding the operands is as large as that of rounding the result, and would not be in FP32.
        ("bf16",),
        Config,
        check,
        candidates,
        matmul,
    ),
)
