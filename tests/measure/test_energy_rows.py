"""Energy in rows of jobs on this CPU, with meters that are made up: believed, refused, and read in short windows."""

import dataclasses
import time
from pathlib import Path

import pytest

from narrowbench.config import Campaign, load_protocol, parse
from narrowbench.measure import bench, runner
from narrowbench.measure.clocks import Reading
from narrowbench.measure.devices import LocalDevice
from narrowbench.store import jsonl
from narrowbench.store.rows import GemmCase, Row

_SUSTAINED = {
    "warm_up_s": 0.01,
    "window_s": 0.01,
    "start_jitter_s": 0.0,
    "stop": {"min_samples": 6, "max_samples": 6},
}


@dataclasses.dataclass
class Meter:
    """Shows so many watts, whatever is run."""

    power_w: float = 100.0
    scope: str = "package"
    name: str = "fake"
    gain_error_relative: float | None = None

    def energy_j(self) -> float:
        return self.power_w * time.perf_counter()


class Board:
    """A source of readings, with a limit of power."""

    full_sm_hz = None
    power_limit_w = 700.0

    def read(self) -> Reading:
        return Reading(time.perf_counter(), power_w=100.0)


@pytest.fixture
def cpu(cpu: LocalDevice, monkeypatch: pytest.MonkeyPatch) -> LocalDevice:
    """This machine's CPU, with readings of a board."""
    monkeypatch.setattr(bench, "open_source", lambda _: (Board(), None))
    return cpu


def _campaign(min_window_s: float, **entry: object) -> Campaign:
    """Two shapes, sustained, in windows of 10 ms; `min_window_s` is what the protocol takes for energy."""
    plan = {"kernels": ["xla_dot_f32"], "suites": ["smoke"], "modes": ["sustained"], "out_formats": ["f32"]} | entry
    protocol = {"sustained": _SUSTAINED, "energy": {"idle_s": 0.01, "min_window_s": min_window_s}}
    data = {"title": "test", "plan": {"cpu": [plan]}, "roof_modes": ["burst"], "protocol": protocol}
    return parse(Campaign, data, "test")


def _run(cpu: LocalDevice, campaign: Campaign, tmp_path: Path) -> runner.JobReport:
    return runner.run_job(cpu, "xla_dot_f32", "smoke", campaign, load_protocol(campaign), tmp_path / "rows.jsonl")


def _rows(tmp_path: Path) -> list[tuple[GemmCase, Row]]:
    rows = jsonl.read([tmp_path / "rows.jsonl"])
    return [(row.case, row) for row in rows if isinstance(row.case, GemmCase)]


def test_windows_of_the_protocol_have_energy_and_no_readings_of_their_own(
    cpu: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "open_meter", lambda _: (Meter(), None))
    assert _run(cpu, _campaign(0.01), tmp_path).done == {"ok": 2}
    for case, row in _rows(tmp_path):
        assert (case.window_s, row.window_readings, row.energy_reason) == (None, None, None)
        assert row.energy is not None
        assert len(row.energy.windows) == 6
        for window in row.energy.windows:
            assert window.counter_j is not None
            assert window.counter_j >= 100 * window.window_s


@pytest.mark.parametrize(
    ("meter", "told"),
    [
        (Meter(power_w=0.0), "window 0 of 6 refused: the counter shows 0 J"),
        (Meter(power_w=-5.0), "window 0 of 6 refused: the counter went backwards by"),
        (Meter(power_w=7000.0), " W, above the board's limit of 700 W"),
        (Meter(scope="board"), "fake covers the board, where the launches ran on the package"),
    ],
)
def test_a_row_whose_meter_cannot_be_believed_has_its_times_and_the_reason(
    cpu: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meter: Meter, told: str
) -> None:
    monkeypatch.setattr(bench, "open_meter", lambda _: (meter, None))
    assert _run(cpu, _campaign(0.01), tmp_path).done == {"ok": 2}
    for _, row in _rows(tmp_path):
        assert row.timing is not None
        assert row.energy is None
        assert told in str(row.energy_reason)


def test_short_windows_that_are_studied_are_read_and_still_are_no_energy(
    cpu: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "open_meter", lambda _: (Meter(), None))
    campaign = _campaign(5.0, windows_s=[0.02, 0.05])
    assert _run(cpu, campaign, tmp_path).done == {"ok": 4}
    assert sorted({case.window_s for case, _ in _rows(tmp_path)}, key=str) == [0.02, 0.05]
    for case, row in _rows(tmp_path):
        assert row.energy is None
        assert "shorter than the 5 s that the protocol asks for" in str(row.energy_reason)
        assert row.window_readings is not None
        assert len(row.window_readings) == 6
        for reading in row.window_readings:
            assert case.window_s is not None
            assert reading.window_s >= case.window_s
            assert reading.counter_j is not None
            assert reading.counter_j >= 100 * reading.window_s
    assert _run(cpu, campaign, tmp_path) == runner.JobReport({}, 4, ())
