"""A quantised operand, and quantisation and its inverse in JAX: the same bits on every backend, under jit or not.

Round to nearest, ties to even; finite values saturate. A value that is not finite never becomes one that is: it
stays in the narrowest place that can say so (an element's own code, else the block's scale, else the tensor's).
Scale rules: "floor", OCP Microscaling v1.0, 2^(floor(log2(amax)) − emax); "round_up", Mishra et al., Recipes for
Pre-training LLMs with MXFP8 (arXiv:2506.08027), 2^ceil(log2(amax / max_finite)), so that nothing saturates.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from narrowgemm.errors import unknown_name
from narrowgemm.formats import rounding
from narrowgemm.formats.packing import pack, unpack
from narrowgemm.formats.rounding import Magnitude
from narrowgemm.formats.spec import E8M0, ELEMENTS, F32, FORMATS, ElementFormat, Format, format_named

SCALE_RULES = ("floor", "round_up")

_F32 = ELEMENTS["f32"]
_E4M3 = ELEMENTS["e4m3"]
_F32_INF = rounding.code_of(math.inf, _F32)
_F32_ONE = rounding.code_of(1.0, _F32)
#: A backend that flushes FP32 subnormals must not turn a scale into zero.
_LEAST_SCALE = rounding.code_of(2.0**-126, _F32)
_E8M0_BIAS = 127
_E8M0_NAN = 0xFF


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """A rows×k operand in a format of the table; an element's value is code · block scale · tensor scale.

    codes:        of elements of 8 bits and more, their dtype, (rows, k); of FP6 and FP4, uint8
                  (rows, ceil(k·bits/8)), packed as `narrowgemm.formats.packing` says.
    scales:       (ceil(rows / block_rows), ceil(k / block)) of the format's scale dtype; None without blocks.
    tensor_scale: FP32 scalar; None stands for 1 and is the only choice for a format without one.
    format:       the format's name.
    shape:        (rows, k).

    Making one raises ValueError, with both values, for an axis that is empty, a k that is no multiple of the block
    in a format whose blocks are all whole, and a leaf of the wrong shape or dtype. JAX transformations rebuild it
    without these checks, for their leaves need not be arrays, and under `vmap` carry a further axis that `shape` does
    not tell.
    """

    codes: jax.Array
    scales: jax.Array | None
    tensor_scale: jax.Array | None
    format: str
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        rows, k = self.shape
        spec = self.spec
        check_extents(spec, rows, k)
        row_codes = spec.code_bytes(1, k) if spec.is_packed else k
        self._check(
            "codes", self.codes, (rows, row_codes), np.dtype(np.uint8) if spec.is_packed else spec.element.dtype
        )
        if spec.block is not None and spec.scale_dtype is not None:
            self._check("scales", self.scales, spec.scales_shape(rows, k), spec.scale_dtype)
        elif self.scales is not None:
            raise ValueError(f"{self.format}: scales given, but the format has no block scales; pass None")
        if self.tensor_scale is not None:
            if not spec.tensor_scale:
                raise ValueError(f"{self.format}: tensor_scale given, but the format has none; pass None")
            self._check("tensor_scale", self.tensor_scale, (), _F32.dtype)

    def _check(self, name: str, leaf: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ValueError(f"{self.format} {self.shape}: {name} is {leaf!r}, not an array {shape} of {dtype}")
        if tuple(leaf.shape) != shape:
            raise ValueError(f"{self.format} {self.shape}: {name} has shape {tuple(leaf.shape)}, not {shape}")
        if leaf.dtype != dtype:
            raise ValueError(f"{self.format} {self.shape}: {name} has dtype {leaf.dtype}, not {dtype}")

    @property
    def spec(self) -> Format:
        """The row of the format table."""
        return format_named(self.format)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[str, tuple[int, int]]]:
        """Leaves with their names, and what is static."""
        leaves = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _LEAVES)
        return leaves, (self.format, self.shape)

    @classmethod
    def tree_unflatten(cls, static: tuple[str, tuple[int, int]], leaves: tuple[Any, ...]) -> "QuantizedArray":
        """The array again, unchecked."""
        array = object.__new__(cls)
        for name, value in zip((*_LEAVES, "format", "shape"), (*leaves, *static), strict=True):
            object.__setattr__(array, name, value)
        return array


_LEAVES = ("codes", "scales", "tensor_scale")

Operand = jax.Array | np.ndarray | QuantizedArray

#: dtype of a plain array -> the format it counts as, without any scale.
PLAIN_FORMATS = {
    spec.element.dtype: name for name, spec in FORMATS.items() if spec.block is None and not spec.is_packed
}


def as_quantized(operand: Operand, name: str = "operand") -> QuantizedArray:
    """The operand as a `QuantizedArray`; a plain (rows, k) array gets the format of its dtype and no scale.

    Raises ValueError, with `name`, for an array that has not two axes, has an empty one, or whose dtype is no format's,
    and for a `QuantizedArray` that a transformation has left with leaves that do not fit it.
    """
    if isinstance(operand, QuantizedArray):
        return fitting(operand, name)
    if not hasattr(operand, "ndim"):
        raise ValueError(f"{name} is a {type(operand).__name__}, not an array or a QuantizedArray")
    if operand.ndim != 2:
        raise ValueError(f"{name} of shape {tuple(operand.shape)} has {operand.ndim} axes, not 2 (rows, k)")
    dtype = np.dtype(operand.dtype)
    if dtype not in PLAIN_FORMATS:
        known = ", ".join(map(str, PLAIN_FORMATS))
        raise ValueError(f"{name} has dtype {dtype}, which is no format's; quantize it, or pass one of {known}")
    rows, k = operand.shape
    return QuantizedArray(jnp.asarray(operand), None, None, PLAIN_FORMATS[dtype], (rows, k))


def fitting[Array: Any](q: Array, name: str) -> Array:
    """The array, checked by making it anew: a stack, or one whose leaves were cut, is no operand of `shape`."""
    try:
        replace(q)
    except ValueError as error:
        raise ValueError(f"{name} does not hold what it says: {error}; a stack goes through jax.vmap") from error
    return q


def quantize(
    x: jax.Array | np.ndarray,
    format: str,  # noqa: A002 - the field's word for it, here and in QuantizedArray
    *,
    scale_rule: str = "floor",
) -> QuantizedArray:
    """Quantises `x` (rows, k) of f32, bf16 or f16 to `format`, scales along k.

    `scale_rule` ("floor" or "round_up") chooses the E8M0 scales of the MX formats; other formats do not use it.
    Raises ValueError for another dtype, number of axes, format or rule, an empty axis, or a k that is no multiple
    of the block in a format whose blocks are all whole.
    """
    spec = format_named(format)
    if scale_rule not in SCALE_RULES:
        raise ValueError(unknown_name("scale_rule", scale_rule, SCALE_RULES))
    if not hasattr(x, "ndim"):
        raise ValueError(f"quantize: x is a {type(x).__name__}, not an array; pass a NumPy or JAX array (rows, k)")
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(f"quantize: x has dtype {x.dtype}, not float32, bfloat16 or float16; cast it first")
    if x.ndim != 2:
        raise ValueError(f"quantize: x of shape {x.shape} has {x.ndim} axes, not 2 (rows, k)")
    check_extents(spec, *x.shape)
    quantized: QuantizedArray = _quantize(x, spec, scale_rule)
    return quantized


@partial(jax.jit, static_argnums=(1, 2))
def _quantize(x: jax.Array, spec: Format, scale_rule: str) -> QuantizedArray:
    bits = rounding.f32_bits(x)
    tensor_scale = _tensor_scale(bits, spec) if spec.tensor_scale else None
    scales = _block_scales(bits, spec, spec.block, tensor_scale, scale_rule) if spec.block else None
    codes = _element_codes(bits, spec, scales, tensor_scale)
    return QuantizedArray(
        pack(codes, spec.element.bits) if spec.is_packed else lax.bitcast_convert_type(codes, spec.element.dtype),
        None if scales is None or spec.scale_dtype is None else lax.bitcast_convert_type(scales, spec.scale_dtype),
        None if tensor_scale is None else lax.bitcast_convert_type(tensor_scale, jnp.float32),
        spec.name,
        (x.shape[0], x.shape[1]),
    )


def dequantize(q: QuantizedArray, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """The values of `q`, (rows, k): the exact product of code and scales, rounded once to f32, bf16 or f16.

    Raises ValueError for another dtype, and for what is no `QuantizedArray` or a stack of them (use `jax.vmap`).
    """
    if not isinstance(q, QuantizedArray):
        raise ValueError(f"dequantize: q is a {type(q).__name__}, not a QuantizedArray; quantize it first")
    wide = {element.dtype: element for element in (_F32, ELEMENTS["bf16"], ELEMENTS["f16"])}
    if np.dtype(dtype) not in wide:
        raise ValueError(f"dequantize: dtype {np.dtype(dtype)} is not float32, bfloat16 or float16")
    values: jax.Array = _dequantize(fitting(q, "dequantize: q"), wide[np.dtype(dtype)])
    return values


@partial(jax.jit, static_argnums=1)
def _dequantize(q: QuantizedArray, target: ElementFormat) -> jax.Array:
    element = q.spec.element
    if q.spec.is_packed:
        codes = unpack(q.codes, element.bits, q.shape[1]).astype(jnp.uint32)
    else:
        codes = lax.bitcast_convert_type(q.codes, rounding.code_dtype(element)).astype(jnp.uint32)
    scales = None if q.scales is None else lax.bitcast_convert_type(q.scales, _scale_code_dtype(q.spec))
    tensor_scale = None if q.tensor_scale is None else lax.bitcast_convert_type(q.tensor_scale, jnp.uint32)
    scale, scale_is_nan = _scale(q.spec, scales, tensor_scale, (codes.shape[0], q.shape[1]))
    unsigned = codes & (rounding.sign_bit(element) - 1)
    last_number = rounding.code_of(math.inf if element.has_inf else element.max_finite, element)
    code = rounding.round_to(rounding.multiply(rounding.magnitude(codes, element), scale), target)
    if element.has_inf:
        code = jnp.where(unsigned == last_number, rounding.code_of(math.inf, target), code)
    negative = (codes != unsigned) ^ _scale_is_negative(q.spec, scales, tensor_scale, (codes.shape[0], q.shape[1]))
    code = rounding.with_sign(code, negative, target)
    code = jnp.where(scale_is_nan | (unsigned > last_number), rounding.code_of(math.nan, target), code)
    return lax.bitcast_convert_type(code.astype(rounding.code_dtype(target)), target.dtype)


def spread(scales: jax.Array, spec: Format, shape: tuple[int, int]) -> jax.Array:
    """The block scale of each element of an operand of `shape` (rows, k)."""
    assert spec.block is not None
    each = jnp.repeat(scales, spec.block, axis=1)[:, : shape[1]]
    return each if spec.block_rows == 1 else jnp.repeat(each, spec.block_rows, axis=0)[: shape[0]]


def check_prepared(owner: str, name: str, leaf: Any, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Raises ValueError, with both, for a leaf of prepared weights that is not an array of this shape and dtype."""
    is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    if not is_array or tuple(leaf.shape) != shape or leaf.dtype != np.dtype(dtype):
        found = f"{tuple(leaf.shape)} of {leaf.dtype}" if is_array else repr(leaf)
        raise ValueError(f"{owner}: {name} are {found}, not {shape} of {np.dtype(dtype)}")


def check_extents(spec: Format, rows: int, k: int) -> None:
    """Raises ValueError for an empty axis, and for a k of broken blocks in a format whose blocks are all whole."""
    if rows < 1 or k < 1:
        raise ValueError(f"{spec.name}: shape ({rows}, {k}) has an empty axis; each must be at least 1")
    if spec.block is not None and k % spec.block and not spec.is_ragged:
        padded = -(-k // spec.block) * spec.block
        raise ValueError(
            f"{spec.name}: k={k} is not a multiple of the block of {spec.block}; pad K with zeros to {padded}"
        )


def _is_finite(bits: jax.Array) -> jax.Array:
    return (bits & (rounding.sign_bit(_F32) - 1)) < _F32_INF


def _finite_amax(bits: jax.Array, axis: tuple[int, ...] | None) -> jax.Array:
    """Bits of the largest finite magnitude (positive floats are ordered as their bits are)."""
    return jnp.max(jnp.where(_is_finite(bits), bits & (rounding.sign_bit(_F32) - 1), 0), axis=axis)


def _tensor_scale(bits: jax.Array, spec: Format) -> jax.Array:
    """FP32 bits of amax / (largest value that codes and block scales can make), a scalar."""
    largest = spec.element.max_finite * (1.0 if spec.block is None else _E4M3.max_finite)
    amax = _finite_amax(bits, None)
    scale = _f32_scale(amax, largest)
    if spec.block is None and not spec.element.has_nan:
        scale = jnp.where(jnp.all(_is_finite(bits)), scale, rounding.code_of(math.nan, _F32))
    return scale.astype(jnp.uint32)


def _block_scales(bits: jax.Array, spec: Format, block: int, tensor_scale: jax.Array | None, rule: str) -> jax.Array:
    """Codes of the block scales, unsigned integers as wide as they are."""
    blocks = _in_blocks(bits, spec.block_rows, block)
    amax = _finite_amax(blocks, (1, 3))
    if spec.scale_dtype == F32:
        return _f32_scale(amax, spec.element.max_finite)
    if tensor_scale is None:
        code, one, nan = _e8m0(rounding.magnitude(amax, _F32), spec.element, rule), _E8M0_BIAS, _E8M0_NAN
    else:
        unit = rounding.multiply(rounding.constant(spec.element.max_finite), rounding.magnitude(tensor_scale, _F32))
        quotient, sticky = rounding.divide(rounding.magnitude(amax, _F32), unit)
        # A block whose scale would round to zero keeps the least one, so that its values are not lost with it.
        code = jnp.maximum(rounding.round_to(quotient, _E4M3, sticky), 1)
        one, nan = rounding.code_of(1.0, _E4M3), rounding.code_of(math.nan, _E4M3)
    code = jnp.where(amax == 0, one, code)
    if not spec.element.has_nan:
        code = jnp.where(jnp.all(_is_finite(blocks), axis=(1, 3)), code, nan)
    return code.astype(jnp.uint8)


def _in_blocks(bits: jax.Array, block_rows: int, block: int) -> jax.Array:
    """Blocks (blocks of rows, rows of one, blocks of k, k of one); what the last ones lack is zero."""
    rows, k = bits.shape
    padded = jnp.pad(bits, ((0, -rows % block_rows), (0, -k % block)))
    return padded.reshape(-(-rows // block_rows), block_rows, -(-k // block), block)


def _f32_scale(amax: jax.Array, largest: float) -> jax.Array:
    """FP32 bits of amax / largest: one without any amax, and never a subnormal."""
    quotient, sticky = rounding.divide(rounding.magnitude(amax, _F32), rounding.constant(largest))
    scale = jnp.maximum(rounding.round_to(quotient, _F32, sticky), _LEAST_SCALE)
    return jnp.where(amax == 0, _F32_ONE, scale).astype(jnp.uint32)


def _scale_code_dtype(spec: Format) -> np.dtype:
    return np.dtype(np.uint32) if spec.scale_dtype == F32 else np.dtype(np.uint8)


def _e8m0(amax: Magnitude, element: ElementFormat, rule: str) -> jax.Array:
    if rule == "floor":
        exponent = rounding.top_exponent(amax) - element.max_exponent
    else:
        quotient, sticky = rounding.divide(amax, rounding.constant(element.max_finite))
        is_power = ((quotient[0] & (quotient[0] - 1)) == 0) & ~sticky
        exponent = rounding.top_exponent(quotient) + jnp.where(is_power, 0, 1)
    return jnp.clip(exponent + _E8M0_BIAS, 0, _E8M0_NAN - 1)


def _scale(
    spec: Format, scales: jax.Array | None, tensor_scale: jax.Array | None, shape: tuple[int, int]
) -> tuple[Magnitude, jax.Array]:
    """Product of the scales of each element, to be broadcast over `shape` (rows, k), and where it is NaN."""
    product, is_nan = rounding.constant(1.0), jnp.asarray(False)
    if scales is not None and spec.block is not None:
        codes = spread(scales.astype(jnp.uint32), spec, shape)
        if spec.scale_dtype == F32:
            product, is_nan = rounding.magnitude(codes, _F32), ~_is_finite(codes)
        elif spec.scale_dtype == E8M0:
            product, is_nan = (jnp.ones_like(codes), codes.astype(jnp.int32) - _E8M0_BIAS), codes == _E8M0_NAN
        else:
            nan = rounding.code_of(math.nan, _E4M3)
            product, is_nan = rounding.magnitude(codes, _E4M3), codes & nan == nan
    if tensor_scale is not None:
        product = rounding.multiply(product, rounding.magnitude(tensor_scale, _F32))
        is_nan = is_nan | ~_is_finite(tensor_scale)
    return product, is_nan


def _scale_is_negative(
    spec: Format, scales: jax.Array | None, tensor_scale: jax.Array | None, shape: tuple[int, int]
) -> jax.Array:
    """Where the product of an element's scales is negative: never in what `quantize` makes."""
    negative = jnp.asarray(False)
    if scales is not None and spec.scale_dtype != E8M0:
        element = _F32 if spec.scale_dtype == F32 else _E4M3
        negative = (spread(scales.astype(jnp.uint32), spec, shape) & rounding.sign_bit(element)) != 0
    if tensor_scale is not None:
        negative = negative ^ ((tensor_scale & rounding.sign_bit(_F32)) != 0)
    return negative


def _element_codes(
    bits: jax.Array, spec: Format, scales: jax.Array | None, tensor_scale: jax.Array | None
) -> jax.Array:
    """Codes of x / (block scale · tensor scale), one each, unsigned integers (rows, k)."""
    element = spec.element
    scale, scale_is_nan = _scale(spec, scales, tensor_scale, (bits.shape[0], bits.shape[1]))
    quotient, sticky = rounding.divide(rounding.magnitude(bits, _F32), scale)
    code = rounding.round_to(quotient, element, sticky)
    unsigned = bits & (rounding.sign_bit(_F32) - 1)
    if element.has_inf:
        code = jnp.where(unsigned == _F32_INF, rounding.code_of(math.inf, element), code)
    code = rounding.with_sign(code, bits != unsigned, element)
    if element.has_nan:
        is_nan = unsigned > _F32_INF if element.has_inf else unsigned >= _F32_INF
        code = jnp.where(is_nan, rounding.code_of(math.nan, element), code)
    else:
        code = jnp.where(scale_is_nan, 0, code)
    return code.astype(rounding.code_dtype(element))
