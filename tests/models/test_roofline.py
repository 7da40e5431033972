"""Roofs on numbers that can be checked by hand."""

import pytest

from narrowbench.models.roofline import (
    AboveRoofError,
    RoofedPoint,
    Roofs,
    check_below_roofs,
    held_rate_flop_per_s,
    percent,
    power_roof_flop_per_s,
)
from narrowbench.models.statistics import Interval


def test_the_lowest_roof_binds() -> None:
    roofs = Roofs(bandwidth_bytes_per_s=4e12, arithmetic_flop_per_s=2e15, power_flop_per_s=1e15)
    assert roofs.at(100) == {"memory": 4e14, "arithmetic": 2e15, "power": 1e15}
    assert (roofs.attainable_flop_per_s(100), roofs.binding(100)) == (4e14, "memory")
    assert (roofs.attainable_flop_per_s(1000), roofs.binding(1000)) == (1e15, "power")
    assert roofs.ridge_flop_per_byte() == 250


def test_without_a_power_roof_arithmetic_binds() -> None:
    roofs = Roofs(bandwidth_bytes_per_s=4e12, arithmetic_flop_per_s=2e15)
    assert (roofs.binding(1000), roofs.ridge_flop_per_byte()) == ("arithmetic", 500)
    assert roofs.binding(500) == "memory"


def test_h200_probe_is_explained_by_power() -> None:
    """700 W at 0.54 pJ/FLOP allow 1296 TFLOP/s, what cuBLASLt sustained in FP8; 1410 of 1830 MHz would allow 1525."""
    power = power_roof_flop_per_s(700, 0.54e-12)
    arithmetic = held_rate_flop_per_s(1.9789e15, 1.83e9, 1.41e9)
    assert power == pytest.approx(1.296e15, rel=1e-3)
    assert arithmetic == pytest.approx(1.525e15, rel=1e-3)
    assert Roofs(4.2e12, arithmetic, power).binding(2730) == "power"
    assert percent(1.296e15, 1.9789e15) == pytest.approx(65.5, abs=0.05)


def _point(name: str, low: float, high: float) -> RoofedPoint:
    value, roof = Interval(low, high, 0.95), Interval(98, 102, 0.95)
    return RoofedPoint(name, (low + high) / 2, value, "fp8 roof", 100, roof)


def test_points_at_or_below_their_roof_pass() -> None:
    check_below_roofs([_point("under", 80, 90), _point("touches", 101, 110), _point("at", 102, 103)])


def test_points_above_their_roof_are_named() -> None:
    with pytest.raises(AboveRoofError, match="fast") as stop:
        check_below_roofs([_point("fine", 80, 90), _point("fast", 103, 110), _point("faster", 200, 210)])
    assert [p.point for p in stop.value.points] == ["fast", "faster"]
    assert "fp8 roof" in str(stop.value)
    assert "fine" not in str(stop.value)


def test_without_an_interval_the_value_itself_counts() -> None:
    check_below_roofs([RoofedPoint("at", 100, None, "roof", 100, None)])
    with pytest.raises(AboveRoofError, match="over: 101 lies above roof: 100"):
        check_below_roofs([RoofedPoint("over", 101, None, "roof", 100, None)])
