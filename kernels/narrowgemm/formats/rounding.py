"""Exact binary arithmetic for quantisation in JAX, with 32-bit integers alone.

A magnitude is a pair (mantissa, exponent) that stands for mantissa·2^exponent, `mantissa` a uint32 below 2^31 and
`exponent` an int32; what a division leaves over is a third, `sticky`. Floating-point operations would not do: XLA
flushes FP32 subnormals on the CPU, may turn a division by a constant into a product with its reciprocal, and no
backend promises an exact log2. Integers give the same bits on every backend, and NumPy can check each of them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from narrowgemm.formats.spec import ElementFormat

Magnitude = tuple[jax.Array, jax.Array]


def code_dtype(element: ElementFormat) -> np.dtype:
    """The unsigned integer dtype that holds one code of `element`."""
    return np.dtype(f"u{element.dtype.itemsize}")


def code_of(value: float, element: ElementFormat) -> int:
    """The code of a value that `element` holds exactly, or of NaN or infinity where it has them."""
    return int(np.array(value, element.dtype).view(code_dtype(element)))


def sign_bit(element: ElementFormat) -> np.uint32:
    """The bit of a code that holds the sign; as a uint32, for JAX takes a Python integer for an int32."""
    return np.uint32(1 << (element.bits - 1))


def f32_bits(x: jax.Array) -> jax.Array:
    """The bits of `x` (f32, bf16 or f16, any shape) as FP32, widened exactly; uint32."""
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << 16
    # Every FP16 subnormal is a normal FP32 number, so no backend flushes it.
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)


def with_sign(code: jax.Array, is_negative: jax.Array, element: ElementFormat) -> jax.Array:
    """The code, uint32, of a magnitude's `code` and a sign; in two's complement zero has none."""
    negative = (~code + 1) & (2 * sign_bit(element) - 1) if element.is_integer else code | sign_bit(element)
    return jnp.where(is_negative, negative, code)


def magnitude(code: jax.Array, element: ElementFormat) -> Magnitude:
    """The magnitude of a finite code of `element`, uint32, whatever its sign."""
    if element.is_integer:
        is_negative = (code & sign_bit(element)) != 0
        return with_sign(code, is_negative, element), jnp.zeros_like(code, jnp.int32)
    fraction_mask = (1 << element.mantissa_bits) - 1
    fraction = code & fraction_mask
    field = ((code & (sign_bit(element) - 1)) >> element.mantissa_bits).astype(jnp.int32)
    mantissa = jnp.where(field == 0, fraction, fraction | (fraction_mask + 1))
    return mantissa, jnp.maximum(field, 1) - (element.bias + element.mantissa_bits)


def constant(value: float) -> Magnitude:
    """A positive constant with at most 31 significant bits."""
    numerator, denominator = value.as_integer_ratio()
    zeros = (numerator & -numerator).bit_length() - 1
    return jnp.asarray(numerator >> zeros, jnp.uint32), jnp.asarray(zeros - (denominator.bit_length() - 1), jnp.int32)


def top_exponent(value: Magnitude) -> jax.Array:
    """floor(log2(value)), meaningless for zero."""
    mantissa, exponent = value
    return exponent + 31 - lax.clz(mantissa).astype(jnp.int32)


def multiply(a: Magnitude, b: Magnitude) -> Magnitude:
    """a·b, exact; the mantissas' bits must add up to at most 31."""
    return a[0] * b[0], a[1] + b[1]


def divide(a: Magnitude, b: Magnitude) -> tuple[Magnitude, jax.Array]:
    """a/b for a positive b: a quotient cut to at least 32 − bits(b) bits, and whether anything was cut off.

    That is one bit more than INT8 has, for b of FP32, and one more than FP32 has, for b = 127.
    """
    # As far up as it goes; by 1 nothing is cut off, and the quotient has to stay below 2^31.
    shift = lax.clz(a[0] | 1) - jnp.where(b[0] == 1, jnp.uint32(1), jnp.uint32(0))
    numerator = a[0] << shift
    quotient = numerator // b[0]
    return (quotient, a[1] - shift.astype(jnp.int32) - b[1]), quotient * b[0] != numerator


def round_to(value: Magnitude, element: ElementFormat, sticky: jax.Array | bool = False) -> jax.Array:
    """The code, without sign, of `value` rounded to nearest, ties to even.

    Overflow saturates at the largest finite value for elements of up to 8 bits and gives infinity for wider ones
    (as their own hardware conversions do). `sticky` says that the true value is a little above `value`; `value` must
    then have at least one bit more than the element.
    """
    mantissa, exponent = value
    low = element.bias + element.mantissa_bits - 1  # minus the exponent of the smallest subnormal
    quantum = jnp.maximum(top_exponent(value) - element.mantissa_bits, -low)
    shift = quantum - exponent
    left = jnp.clip(-shift, 0, 31).astype(jnp.uint32)
    right = jnp.clip(shift, 0, 31).astype(jnp.uint32)
    kept = (mantissa << left) >> right
    cut = mantissa - (kept << right >> left)
    half = jnp.where(right == 0, jnp.uint32(0), jnp.uint32(1) << (jnp.maximum(right, 1) - 1))
    above = (cut > half) | ((cut == half) & (sticky | ((kept & 1) == 1)))
    kept = jnp.where((right > 0) & above, kept + 1, kept)
    code = ((quantum + low).astype(jnp.uint32) << element.mantissa_bits) + kept
    code = jnp.where((mantissa == 0) | (shift > 31), jnp.uint32(0), code)
    return jnp.minimum(code, _overflow_code(element))


def _overflow_code(element: ElementFormat) -> int:
    return code_of(element.max_finite, element) + (1 if element.bits > 8 else 0)
