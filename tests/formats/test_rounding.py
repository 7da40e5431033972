"""The integer arithmetic against exact fractions and against rounding among enumerated values."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgemm.formats import reference, rounding
from narrowgemm.formats.spec import ELEMENTS, ElementFormat

divide = jax.jit(rounding.divide)


def pair(mantissa: int, exponent: int) -> rounding.Magnitude:
    return jnp.asarray(mantissa, jnp.uint32), jnp.asarray(exponent, jnp.int32)


@given(a=st.integers(0, 2**31 - 1), b=st.integers(1, 2**28 - 1))
def test_a_quotient_is_cut_and_says_so(a: int, b: int) -> None:
    (mantissa, exponent), sticky = divide(pair(a, 5), pair(b, 3))
    quotient = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    rest = Fraction(a, b) * 4 - quotient
    assert 0 <= rest < Fraction(2) ** int(exponent)
    assert bool(sticky) == (rest != 0)
    assert a == 0 or 32 - b.bit_length() <= int(mantissa).bit_length() <= 31


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.bits <= 16], ids=lambda e: e.name)
def test_rounding_equals_that_among_enumerated_values(element: ElementFormat) -> None:
    rng = np.random.default_rng(0)
    mantissa = rng.integers(0, 2**31, 4096, np.uint32) >> rng.integers(0, 31, 4096, np.uint32)
    exponent = rng.integers(-60, 20, 4096, np.int32)
    codes = jax.jit(lambda m, e: rounding.round_to((m, e), element))(mantissa, exponent)
    np.testing.assert_array_equal(codes, reference.encode(np.ldexp(mantissa.astype(np.float64), exponent), element))


def test_what_was_cut_off_breaks_a_tie_upwards() -> None:
    e2m1 = ELEMENTS["e2m1"]
    tie = pair(5, -1)  # 2.5, between 2 (even) and 3
    assert int(rounding.round_to(tie, e2m1)) == rounding.code_of(2.0, e2m1)
    assert int(rounding.round_to(tie, e2m1, sticky=True)) == rounding.code_of(3.0, e2m1)


@pytest.mark.parametrize(("value", "expected"), [(448.0, (7, 6)), (6.0, (3, 1)), (2688.0, (21, 7)), (0.5, (1, -1))])
def test_a_constant_is_an_odd_number_and_a_power_of_two(value: float, expected: tuple[int, int]) -> None:
    mantissa, exponent = rounding.constant(value)
    assert (int(mantissa), int(exponent)) == expected
