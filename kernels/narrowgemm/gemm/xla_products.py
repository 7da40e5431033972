"""Baselines: batches as XLA's dot with a leading axis, and groups of rows as its ragged dot.

What XLA makes of either is its choice, and `narrowgemm.gemm.hlo` reads it off the compiled text: a ragged dot may be
one dense dot over all groups, with the rows of others masked, whose work grows with the number of groups.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.stack import Stack
from narrowgemm.gemm.registry import Products
from narrowgemm.gemm.xla_dot import Config, Fp8Config

_BATCH = (((2,), (2,)), ((0,), (0,)))
_GROUPS_OF_ROWS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def matmul_batched(
    a: Stack,
    b: Stack,
    config: Config | Fp8Config,
    out_format: str,
    interpret: bool = False,
    *,
    precision: lax.Precision,
) -> jax.Array:
    """C (count, m, n) as one dot with a leading axis; scales are applied in FP32."""
    del config, interpret
    scaled = a.tensor_scales is not None or b.tensor_scales is not None
    product = lax.dot_general(
        a.codes,
        b.codes,
        _BATCH,
        precision=precision,
        preferred_element_type=_preferred(out_format, scaled, precision),
    )
    return _store(product * (a.scales() * b.scales())[:, None, None] if scaled else product, out_format)


def matmul_grouped(
    a: QuantizedArray,
    b: Stack,
    sizes: jax.Array,
    config: Config | Fp8Config,
    out_format: str,
    interpret: bool = False,
    *,
    precision: lax.Precision,
) -> jax.Array:
    """C (m, n) as XLA's ragged dot; scales are applied in FP32. What XLA makes of it is its choice: read its HLO."""
    del config, interpret
    scaled = a.tensor_scale is not None or b.tensor_scales is not None
    product = lax.ragged_dot_general(
        a.codes,
        b.codes,
        sizes,
        _GROUPS_OF_ROWS,
        precision=precision,
        preferred_element_type=_preferred(out_format, scaled, precision),
    )
    if scaled:
        of_rows = jnp.repeat(b.scales(), sizes, total_repeat_length=a.shape[0])
        product = product * (of_rows if a.tensor_scale is None else of_rows * a.tensor_scale)[:, None]
    return _store(product, out_format)


def _preferred(out_format: str, scaled: bool, precision: lax.Precision) -> Any:
    """The dot's own result: FP32 wherever more is done to it."""
    narrow = not scaled and out_format == "bf16" and precision == lax.Precision.DEFAULT
    return jnp.bfloat16 if narrow else jnp.float32


def _store(product: jax.Array, out_format: str) -> jax.Array:
    """The product in the output's dtype, FP8 saturated."""
    element = format_named(out_format).element
    if element.bits == 8:
        product = jnp.clip(product, -element.max_finite, element.max_finite)
    return product.astype(element.dtype)


def _products(matmul: Callable[..., jax.Array]) -> dict[str, Products]:
    """By kernel: XLA takes any shape, and there is one config."""
    choices = {
        "xla_dot_f32": (Config(), lax.Precision.HIGHEST),
        "xla_dot_bf16": (Config(), lax.Precision.DEFAULT),
        "xla_dot_fp8_e4m3": (Fp8Config(), lax.Precision.DEFAULT),
    }
    return {
        name: Products(partial(matmul, precision=precision), lambda *_: None, lambda *_, config=config: (config,))
        for name, (config, precision) in choices.items()
    }


BATCHED = _products(matmul_batched)
GROUPED = _products(matmul_grouped)
