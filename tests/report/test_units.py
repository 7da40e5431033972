"""Quantities as people read them."""

import pytest

from narrowbench.models.statistics import Interval
from narrowbench.report.units import number, quantity, rate_prefix


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.00"), (0.001234, "0.00123"), (0.9999, "1.00"), (12.34, "12.3"), (999.6, "1,000"), (1978.9, "1,980")],
)
def test_three_digits_and_no_powers_of_ten(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(1.539e15, "FLOP/s", "1.54 PFLOP/s"), (0.54e-12, "J/FLOP", "540 fJ/FLOP"), (999.7, "B/s", "1.00 kB/s")],
)
def test_prefix_follows_the_rounded_value(value: float, unit: str, shown: str) -> None:
    assert quantity(value, unit) == shown


def test_an_interval_stands_under_the_same_prefix() -> None:
    interval = Interval(0.99e12, 1.02e12, 0.95)
    assert quantity(1.0e12, "FLOP/s", interval) == "1.00 [0.990, 1.02] TFLOP/s"
    assert quantity(1.0e12, "FLOP/s", interval, exponent=9) == "1,000 [990, 1,020] GFLOP/s"


def test_throughput_stays_in_tera() -> None:
    assert rate_prefix(1.5e15) == 12
    assert rate_prefix(5e10) == 9
