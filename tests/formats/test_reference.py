"""The NumPy oracle against `ml_dtypes`, code by code, and its own edges."""

import numpy as np
import pytest

from narrowgemm.formats import reference
from narrowgemm.formats.spec import ELEMENTS, ElementFormat

NARROW = [element for element in ELEMENTS.values() if element.bits <= 8]
BY_CODE = [element for element in ELEMENTS.values() if element.bits <= 16]


def every_code(element: ElementFormat) -> np.ndarray:
    return np.arange(1 << element.bits, dtype=f"u{element.dtype.itemsize}")


@pytest.mark.parametrize("element", BY_CODE, ids=lambda element: element.name)
def test_every_code_decodes_as_in_ml_dtypes(element: ElementFormat) -> None:
    codes = every_code(element)
    with np.errstate(invalid="ignore"):  # some codes are signalling NaNs
        theirs = codes.view(element.dtype).astype(np.float64)
    ours = reference.decode(codes, element)
    np.testing.assert_array_equal(ours, theirs)
    numbers = ~np.isnan(ours)
    np.testing.assert_array_equal(np.signbit(ours[numbers]), np.signbit(theirs[numbers]))


@pytest.mark.parametrize("element", BY_CODE, ids=lambda element: element.name)
def test_every_number_encodes_to_its_own_code(element: ElementFormat) -> None:
    values = reference.decode(every_code(element), element)
    # All but NaN, and the code of −128, which the symmetric range of INT8 leaves out.
    numbers = every_code(element)[~np.isnan(values) & ((np.abs(values) <= element.max_finite) | np.isinf(values))]
    assert len(numbers) == (255 if element.is_integer else np.count_nonzero(~np.isnan(values)))
    np.testing.assert_array_equal(reference.encode(reference.decode(numbers, element), element), numbers)


@pytest.mark.parametrize("element", NARROW, ids=lambda element: element.name)
def test_values_between_codes_round_as_in_ml_dtypes(element: ElementFormat) -> None:
    table = reference.magnitudes(element)
    table = table[np.isfinite(table)]
    # ml_dtypes rounds by way of FP32, so the neighbours of a midpoint must be FP32 numbers.
    middle = ((table[1:] + table[:-1]) / 2).astype(np.float32)
    between = np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))])
    values = np.concatenate([between, -between]).astype(np.float64)
    theirs = (np.rint(values) if element.is_integer else values).astype(element.dtype).view(np.uint8)
    np.testing.assert_array_equal(reference.encode(values, element), theirs)


@pytest.mark.parametrize("element", NARROW, ids=lambda element: element.name)
def test_finite_values_saturate(element: ElementFormat) -> None:
    beyond = np.array([1.01, 1.5, 1e30, -1.01, -1e30]) * element.max_finite
    expected = np.sign(beyond) * element.max_finite
    np.testing.assert_array_equal(reference.decode(reference.encode(beyond, element), element), expected)


@pytest.mark.parametrize("name", ["bf16", "f16", "f32"])
def test_wide_formats_overflow_to_infinity(name: str) -> None:
    element = ELEMENTS[name]
    half_step = 2.0 ** (element.max_exponent - element.mantissa_bits - 1)
    values = np.array([element.max_finite + half_step, element.max_finite + 0.9 * half_step, -np.inf])
    with np.errstate(over="ignore"):
        decoded = reference.decode(reference.encode(values, element), element)
    np.testing.assert_array_equal(decoded, [np.inf, element.max_finite, -np.inf])


def test_int8_is_twos_complement_in_a_symmetric_range() -> None:
    int8 = ELEMENTS["int8"]
    np.testing.assert_array_equal(reference.decode(every_code(int8), int8), [*range(128), *range(-128, 0)])
    values = np.array([-1.0, -0.0, 0.5, 1.5, -2.5, -126.5, 127.5, -127.5, -128.0])
    np.testing.assert_array_equal(
        reference.encode(values, int8).view(np.int8), [-1, 0, 0, 2, -2, -126, 127, -127, -127]
    )


def test_infinity_and_nan_keep_to_what_the_element_has() -> None:
    values = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(reference.encode(values, ELEMENTS["e5m2"]), [0x7C, 0xFC, 0x7E])
    np.testing.assert_array_equal(reference.encode(values, ELEMENTS["e4m3"]), [0x7F, 0x7F, 0x7F])


def test_packing_is_one_little_endian_string_of_bits() -> None:
    fp4 = np.array([[0x1, 0x2, 0x3, 0x4, 0xF]], np.uint8)
    np.testing.assert_array_equal(reference.pack(fp4, 4), [[0x21, 0x43, 0x0F]])
    fp6 = np.array([[0b000001, 0b000010, 0b000011, 0b111111]], np.uint8)
    word = 0b111111_000011_000010_000001
    np.testing.assert_array_equal(reference.pack(fp6, 6), [[word & 255, word >> 8 & 255, word >> 16]])
