"""Bits that change from code to code, by hand, and lanes of a multiply by format."""

import numpy as np
import pytest

from narrowbench.models.toggles import ORDERED, BitToggles, lanes, toggles_of
from narrowgemm.formats.reference import pack
from narrowgemm.problem import GemmProblem


def test_bits_that_change_are_counted_along_k_in_a_lane_and_along_rows() -> None:
    codes = np.array([[0b0000_0000, 0b1111_1111, 0b0000_0001], [0b0000_0011, 0b1111_1111, 0b0000_0011]], np.uint8)
    assert toggles_of(codes, "fp8_e4m3", 3, 2) == BitToggles((1 + 0) / 2, (2 + 0 + 1) / 3)
    assert toggles_of(codes, "fp8_e4m3", 3, 1) == BitToggles((8 + 7 + 6 + 6) / 4, 1.0)


def test_an_operand_without_a_next_code_has_no_toggles() -> None:
    assert toggles_of(np.zeros((1, 3), np.uint8), "fp8_e4m3", 3, 32) == BitToggles(None, None)


def test_packed_codes_are_taken_apart_first() -> None:
    codes = np.array([[0b0000, 0b1111, 0b0000, 0b0001]], np.uint8)
    assert toggles_of(pack(codes, 4), "fp4_e2m1", 4, 2) == BitToggles((0 + 3) / 2, None)


def test_wide_codes_count_all_of_their_bits() -> None:
    assert toggles_of(np.array([[1.0, -1.0]], np.float32), "f32", 2, 1).along_k == 1


@pytest.mark.parametrize(
    ("formats", "count"),
    [
        (("fp8_e4m3", "fp8_e4m3"), 32),
        (("fp8_e4m3", "fp4_e2m1"), 32),
        (("bf16", "fp6_e2m3"), 16),
        (("mxfp6_e2m3", "mxfp6_e2m3"), 32),
        (("mxfp4", "mxfp4"), 64),
        (("f32", "f32"), 8),
    ],
)
def test_a_multiply_takes_32_bytes_of_k(formats: tuple[str, str], count: int) -> None:
    assert lanes(GemmProblem(64, 64, 64, *formats)) == count


def test_every_order_is_named_after_what_it_orders() -> None:
    for name, ordered in ORDERED.items():
        assert name.startswith(f"{ordered.base}_{ordered.order}")
