"""What a GEMM should have given: exact results, errors against them, and how large an error a right kernel may show."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from narrowgemm.formats import reference
from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized, dequantize, spread
from narrowgemm.formats.spec import E8M0, FORMATS, format_named
from narrowgemm.gemm.device import arch_of, default_device
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.problem import GemmProblem

Float64 = NDArray[np.float64]
Rows = NDArray[np.integer[Any]]

_F64_BIAS, _F64_MANTISSA_BITS, _E8M0_BIAS, _E8M0_NAN = 1023, 52, 127, 0xFF

#: Fraction bits that are kept when products and accumulator are aligned and added: 13 for FP8 on Hopper, after MMA-Sim
#: (arXiv:2511.10909); at least FP32's own elsewhere.
_HOPPER_FP8_FRACTION_BITS = 13
_FP32_FRACTION_BITS = 23


def exact(a: Operand, b: Operand, rows: Rows | None = None) -> Float64:
    """C (m, n) in float64 of the operands' own values, all scales included, by NumPy; `rows`: those of C alone.

    Every product is exact; only the sum rounds, by about 1e-16 of Σ|a·b|.
    """
    left, right = reference.dequantize(as_quantized(a)), reference.dequantize(as_quantized(b))
    product: Float64 = (left if rows is None else left[rows]) @ right.T
    return product


def exact_on_device(a: Operand, b: Operand, rows: Rows | None = None) -> Float64:
    """As `exact`, by the default device, for shapes that take NumPy too long.

    A CPU takes subnormals of plain FP32 and BF16 operands for zero. Not for a TPU, which has no float64.
    """
    with jax.enable_x64(True):
        left = as_float64(as_quantized(a))
        return np.asarray((left if rows is None else left[rows]) @ as_float64(as_quantized(b)).T)


def as_float64(operand: QuantizedArray) -> jax.Array:
    """The values, (rows, k), by exact factors: elements fit FP32, and FP32 fits float64. Under `jax.enable_x64`."""
    element = operand.spec.element
    unscaled = next(name for name, spec in FORMATS.items() if spec.element == element and spec.block is None)
    values = dequantize(QuantizedArray(operand.codes, None, None, unscaled, operand.shape)).astype(jnp.float64)
    if operand.scales is not None:
        values = values * spread(_scale_as_float64(operand.scales), operand.spec, operand.shape)
    if operand.tensor_scale is not None:
        values = values * operand.tensor_scale.astype(jnp.float64)
    return values


def _scale_as_float64(scales: jax.Array) -> jax.Array:
    """Block scales; E8M0 by its bits, for 2^-127 is an FP32 subnormal and would be flushed on the way."""
    if scales.dtype != E8M0:
        return scales.astype(jnp.float64)
    code = lax.bitcast_convert_type(scales, jnp.uint8).astype(jnp.int64)
    value = lax.bitcast_convert_type((code + (_F64_BIAS - _E8M0_BIAS)) << _F64_MANTISSA_BITS, jnp.float64)
    return jnp.where(code == _E8M0_NAN, jnp.nan, value)


def finished(product: Float64, epilogue: Epilogue) -> Float64:
    """What the epilogue makes of an exact product (m, n), unrounded, by NumPy in float64."""

    def wide(values: Any) -> Float64:
        return np.asarray(values).astype(np.float64)

    value = product
    if epilogue.row_scale is not None:
        value = value * wide(epilogue.row_scale)[:, None]
    if epilogue.column_scale is not None:
        value = value * wide(epilogue.column_scale)
    if epilogue.bias is not None:
        value = value + wide(epilogue.bias)
    if epilogue.activation is not None:
        value = _ACTIVATIONS[epilogue.activation](value)
    if epilogue.residual is not None:
        value = value + wide(epilogue.residual)
    return value if epilogue.out_scale is None else value / wide(epilogue.out_scale)


def scales_of(epilogue: Epilogue) -> tuple[Any, Any]:
    """What a product's rows and columns are multiplied by between accumulator and store: factors of its errors."""
    rows = 1.0 if epilogue.row_scale is None else epilogue.row_scale[:, None]
    columns = 1.0 if epilogue.column_scale is None else epilogue.column_scale
    return rows if epilogue.out_scale is None else rows / epilogue.out_scale, columns


_ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: 0.5 * x * (1 + np.tanh(0.5 * x)),
}
#: The steepest slope of an activation is GELU's.
_STEEPEST = 1.13


def errors(out: jax.Array | np.ndarray, expected: Float64) -> tuple[float, float]:
    """Relative Frobenius norm of out − expected, and its largest magnitude over the RMS of `expected`.

    Both are infinite where `out` is not finite and `expected` is, or the other way round: an output that was never
    written (poisoned with NaN) cannot pass. An FP8 output is compared with `expected` saturated, as it must be.
    Raises ValueError for two shapes.
    """
    if out.shape != expected.shape:
        raise ValueError(f"errors: out has shape {tuple(out.shape)} and expected {expected.shape}")
    values = np.asarray(out).astype(np.float64)
    if out.dtype.itemsize == 1:
        largest = float(jnp.finfo(out.dtype).max)
        expected = np.clip(expected, -largest, largest)
    finite = np.isfinite(expected)
    if not np.array_equal(values[~finite], expected[~finite], equal_nan=True) or not np.isfinite(values[finite]).all():
        return math.inf, math.inf
    error, norm = values[finite] - expected[finite], float(np.linalg.norm(expected[finite]))
    if not error.any():
        return 0.0, 0.0
    if norm == 0:
        return math.inf, math.inf
    rms = norm / math.sqrt(error.size)
    return float(np.linalg.norm(error)) / norm, float(np.abs(error).max()) / rms


def coherence(a: Operand, b: Operand, rows: Rows | None = None) -> float:
    """How far the products of a sum agree in sign: the RMS over C of |Σ_k sign(a·b)| / K.

    1 for operands of one sign, about 1/sqrt(K) for independent ones of mean zero, 0 for zeros.
    """
    left, right = (np.sign(reference.dequantize(as_quantized(x), np.float32)) for x in (a, b))
    sums = (left if rows is None else left[rows]) @ right.T
    return math.sqrt(np.mean(np.square(sums.astype(np.float64)))) / int(left.shape[1])


def tolerance(problem: GemmProblem, sign_coherence: float | None = None, product_share: float | None = None) -> float:
    """The largest relative Frobenius error of a right kernel on the default device.

    One rounding of the output, 2^-(p+1) for p mantissa bits, and the accumulator's own error. A tensor core aligns
    products and accumulator at the largest of them and cuts each to F fraction bits, so a product loses up to one
    unit, 2^-F of the accumulator, half of it in the mean, always towards zero: K·c/2 units add up where a share c of
    the signs agree (`coherence`), and sqrt(K)/2 or less at random; so 2^-(F+1)·(c·K + sqrt(K)) of the result. With
    F = 13 and normal data at K=8192 that is 1.1e-2, ten times what an H200 showed; operands of one sign may truly lose
    a tenth of their sum. None stands for operands of mean zero. Products of integers are added exactly; their sum is
    rounded as it becomes FP32, and with each of two scales.

    Hopper's tensor core takes no block scales: where both operands have them, its sums end with a block, and its error
    is that of K = one block, whatever K is: each block's is a share of its own sum, and both add up in one way. What
    adds the blocks' sums is FP32; a block's sum is scaled by a product that was rounded once.

    With an epilogue the accumulator's error is `product_share` times as large a share of the result, or by the steepest
    slope of an activation more: the norm of the scaled product over that of the result.
    """
    rounding: float = 2.0 ** -(format_named(problem.out_format).element.mantissa_bits + 1)
    elements = [format_named(name).element for name in (problem.a_format, problem.b_format)]
    carried = 1.0 if product_share is None else _STEEPEST * product_share
    if all(element.is_integer for element in elements):
        return rounding + carried * 3 * 2.0 ** -(_FP32_FRACTION_BITS + 1)
    if sign_coherence is None:
        sign_coherence = 1 / math.sqrt(problem.k)
    hopper_fp8 = arch_of(default_device()) == "hopper" and max(element.bits for element in elements) <= 8
    fraction_bits = _HOPPER_FP8_FRACTION_BITS if hopper_fp8 else _FP32_FRACTION_BITS
    blocks = [format_named(name).block for name in (problem.a_format, problem.b_format)]
    if hopper_fp8 and all(blocks):
        in_core = min(problem.k, *(block for block in blocks if block))
        in_one_block = _accumulation(fraction_bits, in_core, max(sign_coherence, 1 / math.sqrt(in_core)))
        among_blocks = _accumulation(_FP32_FRACTION_BITS, -(-problem.k // in_core), sign_coherence)
        return rounding + carried * (in_one_block + among_blocks + 2.0 ** -(_FP32_FRACTION_BITS + 1))
    return rounding + carried * _accumulation(fraction_bits, problem.k, sign_coherence)


def _accumulation(fraction_bits: int, terms: int, sign_coherence: float) -> float:
    """Relative error of a sum of so many terms."""
    return 2.0 ** -(fraction_bits + 1) * (sign_coherence * terms + math.sqrt(terms))
