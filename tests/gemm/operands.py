"""Operands of kernels under test by the NumPy oracle of the formats, for which nothing is compiled.

That `narrowgemm.quantize` gives the same bits is what tests/formats/test_quantize holds.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from narrowgemm.formats import reference
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named


def quantized(values: np.ndarray, fmt: str) -> Any:
    """Values (rows, k) as `narrowgemm.quantize` makes them, or a plain array where the format is BF16."""
    if fmt == "bf16":
        return jnp.asarray(values.astype(format_named(fmt).element.dtype))
    q = reference.quantize(values.astype(np.float32), fmt)
    codes, scales, tensor_scale = (
        None if leaf is None else jnp.asarray(leaf) for leaf in (q.codes, q.scales, q.tensor_scale)
    )
    return QuantizedArray(codes, scales, tensor_scale, fmt, q.shape)


def drawn(fmt: str, *shape: int, seed: int) -> Any:
    """Normal values (rows, k) in a format, or a stack of them (count, rows, k)."""
    values = np.random.default_rng(seed).normal(size=shape)
    if len(shape) == 2:
        return quantized(values, fmt)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(quantized(each, fmt) for each in values))
