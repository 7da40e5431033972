"""Baselines: C[m,n] = t·Σ_k (s_a·A)[m,k]·(s_b·B)[n,k] with block scales, as `jax.nn.scaled_matmul`.

On Blackwell XLA makes it one call of cuDNN. Everywhere else XLA dequantises the operands first and multiplies wider
ones, which is no baseline for a narrow format; so it is refused there. t is the product of the tensor scales (NVFP4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm.device import arch_of, default_device
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem


@dataclass(frozen=True)
class Config:
    """A scaled dot has no choices."""


def check(problem: GemmProblem, config: Config) -> None:
    """Raises UnsupportedError on a device without block-scaled tensor cores that cuDNN uses."""
    del config
    arch = arch_of(default_device())
    if arch != "blackwell":
        raise UnsupportedError(
            "xla_scaled_dot",
            {"device": arch, "a_format": problem.a_format, "b_format": problem.b_format},
            "would be dequantised before the multiply; only on Blackwell does cuDNN take block scales",
            "use another kernel",
        )


def candidates(problem: GemmProblem) -> Sequence[Config]:
    """The one config."""
    del problem
    return (Config(),)


def matmul(a: QuantizedArray, b: QuantizedArray, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """C (m, n) in `out_format` for block-scaled operands (m, k) and (n, k); `interpret` changes nothing for XLA."""
    del config, interpret
    out_dtype = format_named(out_format).element.dtype
    scales = [operand.tensor_scale for operand in (a, b) if operand.tensor_scale is not None]
    product = jax.nn.scaled_matmul(
        _elements(a)[None],
        _elements(b)[None],
        _block_scales(a)[None],
        _block_scales(b)[None],
        preferred_element_type=jnp.float32 if scales else out_dtype,
    )[0]
    for scale in scales:
        product = product * scale
    return product.astype(out_dtype)


def _elements(operand: QuantizedArray) -> jax.Array:
    """Codes as elements of their own dtype (rows, k). XLA keeps FP4 two to a byte, low nibble first, as packed here."""
    if not operand.spec.is_packed:
        return operand.codes
    return lax.bitcast_convert_type(operand.codes, operand.spec.element.dtype).reshape(operand.shape)


def _block_scales(operand: QuantizedArray) -> jax.Array:
    if operand.scales is None:
        raise ValueError(f"xla_scaled_dot: an operand in {operand.format} has no block scales")
    return operand.scales


def _kernel(name: str, *operands: str) -> Kernel:
    return Kernel(
        name, "blackwell", True, operands, operands, ("f32", "bf16", "f16"), Config, check, candidates, matmul
    )


KERNELS = (
    _kernel("xla_scaled_dot_mxfp8", "mxfp8_e4m3", "mxfp8_e5m2"),
    _kernel("xla_scaled_dot_nvfp4", "nvfp4"),
)
