"""Burst and sustained sampling over a simulated device: what is kept, dropped, paired and said."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from narrowbench.config import BurstSettings, CrossCheckSettings, StopSettings, SustainedSettings
from narrowbench.measure import sampling, timing
from narrowbench.measure.clocks import Reading
from narrowbench.measure.meters import MeterError
from narrowbench.measure.sampling import Sampled
from narrowbench.measure.timing import TimerError, Train, TrainPlan, WallClockTimer, Workload

CROSS = CrossCheckSettings(min_launch_s=100e-6, max_relative_difference=0.03)


@dataclass
class Device:
    """A virtual clock that launches move on; also a source of readings and a meter."""

    monkeypatch: pytest.MonkeyPatch
    now_s: float = 0.0
    sm_hz: Callable[[float], float] = lambda _: 1.8e9
    power_w: float = 500.0
    full_sm_hz: float | None = 2e9
    power_limit_w: float | None = 700.0
    name: str = "virtual"
    scope: str = "board"
    gain_error_relative: float | None = None
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now_s)
        self.monkeypatch.setattr(timing.time, "sleep", self.work)

    def work(self, seconds: float) -> None:
        self.now_s += seconds

    def read(self) -> Reading:
        return Reading(self.now_s, sm_hz=self.sm_hz(self.now_s), temperature_c=50.0, power_w=self.power_w)

    def energy_j(self) -> float | None:
        return self.power_w * self.now_s

    def workload(self, launch_s: float, name: str = "a") -> Workload:
        def enqueue(_: int) -> None:
            self.order.append(name)
            self.work(launch_s)

        return Workload(enqueue, lambda _: None, 1, 1, rotation_sets=2, rotation_bytes=64)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def _stop(**changes: float) -> StopSettings:
    known = {
        "confidence": 0.95,
        "target_relative_half_width": 0.01,
        "min_samples": 10,
        "max_samples": 12,
        "budget_s": 1e6,
    }
    return StopSettings.model_validate(known | changes)


def _burst(**changes: float) -> BurstSettings:
    known = {"train_s": 0.02, "idle_s": 0.25, "warm_up_launches": 3, "warm_up_s": 0.005, "clock_floor": 0.75}
    return BurstSettings.model_validate(known | changes | {"stop": _stop()})


def _sustained(**changes: float) -> SustainedSettings:
    known = {"warm_up_s": 10.0, "flat_clock_relative": 0.01, "flat_temperature_c": 1.0, "window_s": 5.0}
    return SustainedSettings.model_validate(known | {"start_jitter_s": 0.1} | changes | {"stop": _stop()})


def _run_burst(device: Device, *workloads: Workload) -> tuple[list[Sampled], object]:
    timer = WallClockTimer("no device timer here")
    return sampling.burst(workloads, timer, device, _burst(), 1e6, np.random.default_rng(0))


def _timing(sampled: Sampled, device: Device, stop: object, session: str | None = None) -> tuple[object, str | None]:
    workload = device.workload(1e-3)
    return sampling.timing_of(sampled, workload, WallClockTimer("no device timer here"), stop, CROSS, session)


def test_burst_samples_a_known_duration_and_stops_by_the_interval(device: Device) -> None:
    (sampled,), stop = _run_burst(device, device.workload(1e-3))
    found, reason = _timing(sampled, device, stop)
    assert reason is None
    assert found.samples_s == pytest.approx([1e-3] * 10)
    assert found.launches_per_sample == [20] * 10
    assert found.warm_up_launches == 5, "5 ms of 1 ms launches, which is more than 3"
    assert found.stop_rule.stopped_by == "interval"
    assert found.method == "wall_clock"
    assert found.cross_check_reason == "no device timer here"
    assert len(sampled.readings) == 10


def test_samples_below_the_floor_are_dropped_counted_and_kept_with_their_reason(device: Device) -> None:
    device.sm_hz = lambda now_s: 0.4e9 if now_s < 1.0 else 1.8e9
    (sampled,), stop = _run_burst(device, device.workload(1e-3))
    found, _ = _timing(sampled, device, stop)
    assert [d.reason for d in found.dropped] == ["clock below the floor of 75% of 2000 MHz"]
    assert len(found.dropped[0].samples_s) + len(found.samples_s) == len(sampled.samples)
    assert {r.sm_hz for r in sampled.readings} == {1.8e9}


def test_a_case_with_no_sample_left_is_unstable_and_says_how_many_were_dropped(device: Device) -> None:
    device.sm_hz = lambda _: 0.4e9
    (sampled,), stop = _run_burst(device, device.workload(1e-3))
    found, reason = _timing(sampled, device, stop)
    assert found is None
    assert reason == "no sample left of 12: 12 × clock below the floor of 75% of 2000 MHz (median 0.001 s)"


def test_interleaved_workloads_take_turns_in_random_order_and_stay_paired(device: Device) -> None:
    device.sm_hz = lambda now_s: 0.4e9 if 0.5 < now_s < 1.0 else 1.8e9
    first, second = device.workload(1e-3, "a"), device.workload(2e-3, "b")
    (a, b), stop = _run_burst(device, first, second)
    assert len(a.kept) == len(b.kept)
    starts = [(x.start_s < y.start_s) for x, y in zip(a.kept, b.kept, strict=True)]
    assert True in starts
    assert False in starts
    assert _timing(a, device, stop, "s1")[0].session == "s1"
    reasons = {sample.fault for sampled in (a, b) for sample in sampled.samples}
    assert any(reason is not None and reason.startswith("dropped with its round") for reason in reasons)


class ScriptedTimer:
    """A device timer that says what it is told to, and moves the clock by the wall time."""

    method = "cupti"
    reason = None

    def __init__(self, device: Device, device_s: float | Exception, wall_s: float) -> None:
        self.device, self.device_s, self.wall_s = device, device_s, wall_s

    def train(self, _: Workload, plan: TrainPlan, midway: Callable[[], object]) -> Train:
        if isinstance(self.device_s, Exception):
            raise self.device_s
        start_s = self.device.now_s
        midway()
        self.device.work(self.wall_s * plan.calls)
        return Train(plan.calls, start_s, self.device.now_s, self.device_s)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("device_s", "wall_s", "expected"),
    [
        (1.00e-3, 1.02e-3, None),
        (1.00e-3, 1.10e-3, "wall clock is longer by 10.0%, 100.00 µs a launch: the device was not busy all the time"),
        (
            25e-6,
            57e-6,
            "wall clock is longer by 128.0%, 32.00 µs a launch: launches under 100 µs are bound by the host",
        ),
        (1.10e-3, 1.00e-3, "kernels overlap: their device times add up to 9.1% more than the wall clock"),
    ],
)
def test_the_two_clocks_agree_or_the_row_says_why_not(
    device: Device, device_s: float, wall_s: float, expected: str | None
) -> None:
    timer = ScriptedTimer(device, device_s, wall_s)
    workload = device.workload(wall_s)
    (sampled,), stop = sampling.burst([workload], timer, device, _burst(), 1e6, np.random.default_rng(0))
    found, _ = sampling.timing_of(sampled, workload, timer, stop, CROSS, None)
    assert found.samples_s == pytest.approx([device_s] * len(found.samples_s))
    assert found.wall_clock_samples_s == pytest.approx([wall_s] * len(found.samples_s))
    reason = found.cross_check_reason
    assert reason == expected or (expected is not None and reason is not None and reason.startswith(expected))


def test_sustained_windows_are_as_long_as_asked_and_carry_energy(device: Device) -> None:
    timer = ScriptedTimer(device, 0.99e-3, 1e-3)
    workload = device.workload(1e-3)
    settings = _sustained()
    (sampled,), stop = sampling.sustained([workload], timer, device, device, settings, 1e6, np.random.default_rng(0))
    found, _ = sampling.timing_of(sampled, workload, timer, stop, CROSS, None)
    assert len(sampled.windows) == len(found.samples_s) == 10
    assert all(window.length_s >= 5.0 for window in sampled.windows)
    assert [window.counter_j for window in sampled.windows] == pytest.approx(
        [w.length_s * 500 for w in sampled.windows]
    )
    assert found.samples_s == pytest.approx([1e-3] * 10)
    assert (found.method, found.device_check_s, found.cross_check_reason) == ("wall_clock", 0.99e-3, None)
    gaps = [b.start_s - a.end_s for a, b in zip(sampled.windows, sampled.windows[1:], strict=False)]
    assert max(gaps) <= 0.1 + 2e-3
    assert len({round(gap, 3) for gap in gaps}) > 3, "windows do not beat with the counter"


def test_sustained_without_readings_warms_up_for_the_whole_time(device: Device) -> None:
    timer = WallClockTimer("no device timer here")
    workload = device.workload(1e-3)
    (sampled,), _ = sampling.sustained([workload], timer, None, None, _sustained(), 1e6, np.random.default_rng(0))
    assert sampled.warm_up_launches >= 10_000
    assert sampled.windows[0].counter_j is None
    assert sampled.readings == []


def test_a_device_check_that_fails_is_the_reason_and_the_windows_stay(device: Device) -> None:
    timer = ScriptedTimer(device, TimerError("7 kernel records are no multiple of 3 calls"), 1e-3)
    workload = device.workload(1e-3)
    (sampled,), stop = sampling.sustained([workload], timer, None, None, _sustained(), 1e6, np.random.default_rng(0))
    found, _ = sampling.timing_of(sampled, workload, timer, stop, CROSS, None)
    assert found.device_check_s is None
    assert found.cross_check_reason == "7 kernel records are no multiple of 3 calls"


def test_a_meter_that_refuses_while_windows_run_is_heard(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> float:
        raise MeterError("the count stood still")

    monkeypatch.setattr(device, "energy_j", refuses)
    timer = WallClockTimer("no device timer here")
    workload = device.workload(1e-3)
    (sampled,), _ = sampling.sustained([workload], timer, None, device, _sustained(), 1e6, np.random.default_rng(0))
    assert sampled.meter_fault == "the count stood still"
    assert len(sampled.kept) == 10
