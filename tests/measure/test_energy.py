"""Energy of windows: replayed logs of known energy, and every way in which a window is not believed."""

import math

import pytest

from narrowbench.measure import energy
from narrowbench.measure.clocks import Reading
from narrowbench.measure.energy import Window


class Meter:
    name = "replayed"
    scope = "board"
    gain_error_relative = 0.05

    def energy_j(self) -> float | None:
        raise AssertionError("windows carry their counters already")


def _log(start_s: float, end_s: float, period_s: float, power_w: float = 0.0) -> list[Reading]:
    """Readings of a board whose power is 400 W + 200 W·sin(2πt/1s), or steady where one is given."""
    count = round((end_s - start_s) / period_s) + 1
    times = [start_s + i * period_s for i in range(count)]
    return [Reading(t, power_w=power_w or 400 + 200 * math.sin(2 * math.pi * t)) for t in times]


def _window(start_s: float = 0.0, end_s: float = 5.0, energy_j: float | None = 2000.0, launches: int = 1000) -> Window:
    counter = (None, None) if energy_j is None else (500.0, 500.0 + energy_j)
    return Window(start_s, end_s, launches, *counter)


def _energy_of(windows: list[Window], readings: list[Reading], **changes: object) -> tuple[object, str | None]:
    arguments = {
        "meter": Meter(),
        "meter_reason": None,
        "idle": (80.0, None),
        "min_window_s": 5.0,
        "power_limit_w": 700.0,
        "scope": "board",
    } | changes
    return energy.energy_of(windows, readings, **arguments)


@pytest.mark.parametrize(("start_s", "end_s"), [(0.0, 5.0), (0.013, 5.013), (1.0, 3.0)])
def test_a_replayed_log_of_known_energy_is_integrated_to_it(start_s: float, end_s: float) -> None:
    """Over whole periods the sine adds nothing: 400 W times the length."""
    measured = energy.integrated_j(_log(-1.0, 7.0, 0.02), start_s, end_s)
    assert measured == pytest.approx(400 * (end_s - start_s), rel=0.005)


def test_readings_outside_the_window_do_not_count() -> None:
    readings = _log(-5.0, -0.01, 0.01, power_w=10_000) + _log(0.0, 1.0, 0.01, power_w=100)
    assert energy.integrated_j(readings, 0.0, 1.0) == pytest.approx(100.0)


def test_too_few_readings_are_not_integrated() -> None:
    assert energy.integrated_j(_log(0.0, 5.0, 2.0), 0.0, 5.0) is None


def test_a_case_has_both_energies_of_every_window_and_the_counter_is_the_result() -> None:
    found, reason = _energy_of([_window(), _window(5.0, 10.0, 2010.0)], _log(0.0, 10.0, 0.05))
    assert reason is None
    assert found.source == "counter"
    assert [w.counter_j for w in found.windows] == [2000.0, 2010.0]
    assert [w.integrated_j for w in found.windows] == pytest.approx([2000, 2000], rel=0.01)
    assert (found.idle_w, found.scope, found.gain_error_relative) == (80.0, "board", 0.05)


def test_a_board_without_a_counter_says_that_it_was_integrated() -> None:
    found, reason = _energy_of([_window(energy_j=None)], _log(0.0, 5.0, 0.05))
    assert reason is None
    assert found.source == "integrated"
    assert found.windows[0].counter_j is None
    assert found.windows[0].integrated_j == pytest.approx(2000, rel=0.005), "what the log holds"


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (_window(energy_j=0.0), "counter shows 0 J over 5 s"),
        (_window(energy_j=-3.0), "counter went backwards by 3 J"),
        (_window(energy_j=3700.0), "counter shows 740 W, above the board's limit of 700 W"),
        (_window(end_s=1.0, energy_j=400.0), "shorter than the 5 s"),
    ],
)
def test_one_wrong_window_refuses_the_energy_of_the_case(window: Window, expected: str) -> None:
    found, reason = _energy_of([_window(), window], _log(0.0, 5.0, 0.05))
    assert found is None
    assert reason is not None
    assert expected in reason
    assert reason.startswith("window 1 of 2 refused")


def test_a_board_at_its_limit_is_believed_within_the_gain_error() -> None:
    found, reason = _energy_of([_window(energy_j=706.0 * 5)], _log(0.0, 5.0, 0.05, power_w=706.0))
    assert reason is None
    assert found is not None


def test_integrated_power_above_the_limit_is_refused_too() -> None:
    _, reason = _energy_of([_window(energy_j=None)], _log(0.0, 5.0, 0.05, power_w=900.0))
    assert reason is not None
    assert "integrated power shows 900 W" in reason


def test_neither_counter_nor_readings_is_no_energy() -> None:
    _, reason = _energy_of([_window(energy_j=None)], [])
    assert reason is not None
    assert "neither a counter nor enough readings" in reason


def test_no_meter_and_no_windows_give_their_reasons() -> None:
    assert _energy_of([_window()], [], meter=None, meter_reason="a virtual machine") == (None, "a virtual machine")
    _, reason = _energy_of([], [])
    assert reason is not None
    assert "only sustained cases" in reason


def test_a_meter_of_something_else_is_refused() -> None:
    found, reason = _energy_of([_window()], _log(0.0, 5.0, 0.05), scope="package")
    assert (found, reason) == (None, "replayed covers the board, where the launches ran on the package")


def test_a_counter_that_wrapped_is_not_taken_for_energy() -> None:
    """Unsigned 32 bits of millijoules are full after 4.3 MJ, two hours of a board."""
    wrapped = Window(0.0, 5.0, 1000, 4_294_966.0, 1033.0)
    _, reason = _energy_of([_window(), wrapped], _log(0.0, 5.0, 0.05))
    assert reason == "window 1 of 2 refused: the counter went backwards by 4.29e+06 J"


def test_idle_power_is_of_the_counter_or_of_readings_or_unknown_with_its_reason() -> None:
    assert energy.idle_power_w(_window(energy_j=400.0), []) == (80.0, None)
    power_w, _ = energy.idle_power_w(_window(energy_j=None), _log(0.0, 5.0, 0.05, power_w=75.0))
    assert power_w == pytest.approx(75.0)
    power_w, reason = energy.idle_power_w(_window(energy_j=0.0), [])
    assert power_w is None
    assert reason is not None
    assert "0 J" in reason
