"""Operands of one shape and format, one behind the other: what batched and grouped products take."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import PLAIN_FORMATS, QuantizedArray
from narrowgemm.formats.spec import FORMATS, format_named

#: A stack as users have it: an array (count, rows, k), or what `jax.vmap` of `quantize` gives of one.
StackOperand = jax.Array | np.ndarray | QuantizedArray


@dataclass(frozen=True)
class Stack:
    """`count` operands rows×k: codes (count, rows, k), and a tensor scale of each, (count,) FP32, None for 1."""

    codes: jax.Array
    tensor_scales: jax.Array | None
    format: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Count, rows, k."""
        count, rows, k = self.codes.shape
        return count, rows, k

    def scales(self) -> jax.Array:
        """The tensor scales, ones where there are none."""
        if self.tensor_scales is None:
            return jnp.ones(self.codes.shape[0], jnp.float32)
        return self.tensor_scales


def as_stack(name: str, operand: StackOperand) -> Stack:
    """The operand `name` as a `Stack`.

    Raises ValueError for an array that has not three axes, has an empty one, or whose dtype is no format's, and for a
    `QuantizedArray` that is no stack; UnsupportedError for one that is packed or has block scales.
    """
    if isinstance(operand, QuantizedArray):
        if operand.spec.is_packed or operand.spec.block is not None:
            rule = "is no format of a stack, which has one scale an operand and no packed codes"
            able = [other for other, spec in FORMATS.items() if spec.block is None and not spec.is_packed]
            raise UnsupportedError("stack", {name: operand.format}, rule, f"use one of {', '.join(able)}")
        codes, scales = operand.codes, operand.tensor_scale
        _check_axes(name, codes)
        if scales is not None and scales.shape != codes.shape[:1]:
            raise ValueError(f"{name} has {codes.shape[0]} operands and tensor scales of shape {scales.shape}")
        return Stack(codes, scales, operand.format)
    _check_axes(name, operand)
    dtype = np.dtype(operand.dtype)
    if dtype not in PLAIN_FORMATS:
        known = ", ".join(map(str, PLAIN_FORMATS))
        raise ValueError(f"{name} has dtype {dtype}, which is no format's; quantize it, or pass one of {known}")
    return Stack(jnp.asarray(operand), None, PLAIN_FORMATS[dtype])


def _check_axes(name: str, codes: jax.Array | np.ndarray) -> None:
    if not hasattr(codes, "ndim") or codes.ndim != 3 or 0 in codes.shape:
        shape = tuple(codes.shape) if hasattr(codes, "shape") else type(codes).__name__
        raise ValueError(f"{name} is {shape}, not an array of three axes (count, rows, k), none of them empty")


def is_stack(operand: object) -> bool:
    """Whether an operand has a leading axis before rows and k."""
    codes = operand.codes if isinstance(operand, QuantizedArray) else operand
    return getattr(codes, "ndim", None) == 3


def dequantized(stack: Stack) -> np.ndarray:
    """The values in float64, exact: for checks."""
    wide = np.asarray(stack.codes.astype(jnp.float32), np.float64)
    assert format_named(stack.format).block is None
    return wide * np.asarray(stack.scales(), np.float64)[:, None, None]
