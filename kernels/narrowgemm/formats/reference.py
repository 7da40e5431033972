"""The oracle of the formats in NumPy: codes by enumeration, rounding among enumerated values, no JAX.

Slow and plain on purpose. It shares nothing with `quantize.py` but the format table, and works in float64, which is
exact where it matters: a product of code and scales has at most 32 significant bits, and a quotient of two FP32
numbers is further from every midpoint between two codes than float64 rounds, unless it is one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from narrowgemm.formats.spec import E8M0, ELEMENTS, F32, ElementFormat, Format, format_named

Float64 = NDArray[np.float64]
Codes = NDArray[np.unsignedinteger[Any]]

_E4M3 = ELEMENTS["e4m3"]
_LEAST_SCALE = 2.0**-126


@dataclass(frozen=True)
class Quantized:
    """What `quantize` made, with the fields, shapes and dtypes of `narrowgemm.QuantizedArray`."""

    codes: np.ndarray
    scales: np.ndarray | None
    tensor_scale: np.ndarray | None
    format: str
    shape: tuple[int, int]


@cache
def magnitudes(element: ElementFormat) -> Float64:
    """The values of the codes without sign, in code order; elements of at most 16 bits."""
    values = np.empty(1 << (element.bits - 1))
    for code in range(values.size):
        field, fraction = divmod(code, 1 << element.mantissa_bits)
        step = 2.0 ** (max(field, 1) - element.bias - element.mantissa_bits)
        values[code] = step * (fraction + ((1 << element.mantissa_bits) if field else 0))
    above = values > element.max_finite
    values[above] = np.nan
    if element.has_inf:
        values[np.argmax(above)] = np.inf
    return values


def decode(codes: Codes, element: ElementFormat) -> Float64:
    """The values of codes, any shape."""
    if element.bits > 16 or element.is_integer:
        return codes.view(element.dtype).astype(np.float64)
    values: Float64 = magnitudes(element)[codes & ((1 << (element.bits - 1)) - 1)]
    return np.where(codes >> (element.bits - 1), -values, values)


def encode(values: Float64, element: ElementFormat) -> Codes:
    """Codes of `values` rounded to nearest, ties to even.

    Finite values saturate in elements of up to 8 bits and overflow to infinity in wider ones. An infinity becomes
    infinity, else NaN; an element without NaN must not be given either.
    """
    if element.bits > 16:
        return np.where(np.isnan(values), np.nan, values).astype(element.dtype).view(np.uint32)
    table = magnitudes(element)
    finite = table[np.isfinite(table)]
    if element.bits > 8:
        finite = np.append(finite, 2 * finite[-1] - finite[-2])  # where infinity would stand, were it a number
    midpoints = (finite[1:] + finite[:-1]) / 2
    below = np.searchsorted(midpoints, np.abs(values), side="left")
    tie = midpoints[np.minimum(below, midpoints.size - 1)] == np.abs(values)
    codes = np.where(tie, below + below % 2, below)
    nan, infinity = np.flatnonzero(np.isnan(table)), np.flatnonzero(np.isinf(table))
    if nan.size:
        codes = np.where(np.isinf(values), infinity[0] if infinity.size else nan[0], codes)
    sign = np.signbit(values) & ~(np.isinf(values) & (infinity.size == 0))
    if element.is_integer:
        return np.where(sign, -codes, codes).astype(element.dtype).view(_uint(element))
    codes = codes | (sign.astype(np.int64) << (element.bits - 1))
    if nan.size:
        quiet = int(np.array(np.nan, element.dtype).view(_uint(element)))
        codes = np.where(np.isnan(values), quiet, codes)
    return codes.astype(_uint(element))


def quantize(
    x: ArrayLike,
    format: str,  # noqa: A002 - as in narrowgemm.quantize
    scale_rule: str = "floor",
) -> Quantized:
    """What `narrowgemm.quantize` must give, bit for bit; `x` (rows, k) of any float dtype up to FP32."""
    spec = format_named(format)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        values = np.asarray(x).astype(np.float64)
    finite = np.where(np.isfinite(values), np.abs(values), 0.0)
    tensor_scale = _tensor_scale(values, finite, spec) if spec.tensor_scale else None
    unit = 1.0 if tensor_scale is None else np.float64(tensor_scale)
    scales = None if spec.block is None else _block_scales(values, finite, spec, unit, scale_rule)
    scale = unit if scales is None else unit * _spread(scales, spec, values.shape)
    if not spec.element.has_nan:
        values = np.where(np.isnan(scale), 0.0, values)
    with np.errstate(invalid="ignore"):
        codes = encode(values / np.where(np.isnan(scale), 1.0, scale), spec.element)
    stored = pack(codes, spec.element.bits) if spec.is_packed else codes.view(spec.element.dtype)
    return Quantized(stored, scales, tensor_scale, format, values.shape)


def dequantize(q: Any, dtype: DTypeLike = np.float64) -> np.ndarray:
    """The values of `q`, a `Quantized` or `QuantizedArray`, (rows, k): exact in float64, else rounded once."""
    spec = format_named(q.format)
    stored = np.asarray(q.codes)
    codes = unpack(stored, spec.element.bits, q.shape[1]) if spec.is_packed else stored.view(_uint(spec.element))
    values = decode(codes, spec.element)
    if q.scales is not None:
        values = values * _spread(np.asarray(q.scales), spec, q.shape)
    if q.tensor_scale is not None:
        values = values * np.float64(np.asarray(q.tensor_scale))
    if np.dtype(dtype) == np.float64:
        return values
    element = next(element for element in ELEMENTS.values() if element.dtype == np.dtype(dtype))
    with np.errstate(over="ignore"):
        return encode(values, element).view(element.dtype)


def pack(codes: Codes, bits: int) -> NDArray[np.uint8]:
    """Codes (rows, k) as one little-endian string of bits a row, uint8 (rows, ceil(k·bits/8))."""
    string = (codes[..., None] >> np.arange(bits)) & 1
    return np.packbits(string.reshape(codes.shape[0], -1).astype(np.uint8), axis=1, bitorder="little")


def unpack(packed: NDArray[np.uint8], bits: int, k: int) -> NDArray[np.uint8]:
    """The codes that `pack` packed, uint8 (rows, k)."""
    string = np.unpackbits(packed, axis=1, bitorder="little")[:, : k * bits]
    return (string.reshape(packed.shape[0], k, bits) << np.arange(bits)).sum(axis=-1).astype(np.uint8)


def _uint(element: ElementFormat) -> np.dtype:
    return np.dtype(f"u{element.dtype.itemsize}")


def _tensor_scale(values: Float64, finite: Float64, spec: Format) -> np.ndarray:
    largest = spec.element.max_finite * (1.0 if spec.block is None else _E4M3.max_finite)
    amax = finite.max()
    if spec.block is None and not spec.element.has_nan and not np.isfinite(values).all():
        return np.array(np.nan, np.float32)
    return np.array(1.0 if amax == 0 else max(amax / largest, _LEAST_SCALE), np.float32)


def _block_scales(values: Float64, finite: Float64, spec: Format, unit: float, scale_rule: str) -> np.ndarray:
    amax = _of_blocks(np.max, finite, spec)
    some = np.where(amax == 0, 1.0, amax)
    if spec.scale_dtype == F32:
        scales = np.maximum(some / spec.element.max_finite, _LEAST_SCALE)
    elif spec.scale_dtype == E8M0:
        if scale_rule == "floor":
            exponent = np.frexp(some)[1] - 1 - spec.element.max_exponent
        else:
            mantissa, exponent = np.frexp(some / spec.element.max_finite)
            exponent = exponent - (mantissa == 0.5)
        scales = 2.0 ** np.clip(exponent, -127, 127)
    else:
        codes = encode(some / (spec.element.max_finite * unit), _E4M3)
        scales = decode(np.maximum(codes, 1), _E4M3)
    scales = np.where(amax == 0, 1.0, scales)
    if not spec.element.has_nan:
        scales = np.where(_of_blocks(np.all, np.isfinite(values), spec), scales, np.nan)
    return scales.astype(spec.scale_dtype)


def _of_blocks(reduce: Callable[..., Any], values: np.ndarray, spec: Format) -> np.ndarray:
    """What `reduce` makes of each block, whole or not."""
    (rows, k), block = values.shape, spec.block or 1
    return np.array(
        [
            [reduce(values[i : i + spec.block_rows, j : j + block]) for j in range(0, k, block)]
            for i in range(0, rows, spec.block_rows)
        ]
    )


def _spread(scales: np.ndarray, spec: Format, shape: tuple[int, int]) -> Float64:
    """The scale of each element."""
    each = np.repeat(scales.astype(np.float64), spec.block or 1, axis=1)
    return np.repeat(each, spec.block_rows, axis=0)[: shape[0], : shape[1]]
