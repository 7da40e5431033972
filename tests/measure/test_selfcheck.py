"""The self-check on this CPU, and what it says of parts that are wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from narrowbench.config import load_protocol
from narrowbench.measure import lock, selfcheck
from narrowbench.measure.bench import Bench, open_bench
from narrowbench.measure.clocks import Reading
from narrowbench.measure.devices import local_devices
from narrowbench.measure.timing import TimerError, Train, TrainPlan, Workload


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(selfcheck, "_POWER_S", 0.001)
    with open_bench(local_devices()[-1], load_protocol(), with_energy=False) as opened:
        return opened


def test_every_part_of_a_cpu_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    checks = {check.topic: check for check in selfcheck.selfcheck(local_devices()[-1], load_protocol())}
    assert list(checks) == ["lock", "wall clock", "device timer", "clocks", "energy"]
    assert checks["lock"].works
    assert checks["device timer"].works is None
    assert "a sleep of 2 ms took" in checks["wall clock"].seen


def test_a_clock_that_runs_slow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck.time, "sleep", lambda _: None)
    assert selfcheck.wall_clock().works is False


class Timer:
    method = "cupti"
    reason = None

    def __init__(self, train: Callable[[], Train]) -> None:
        self._train = train

    def train(self, workload: Workload, plan: TrainPlan, midway: Callable[[], object]) -> Train:
        del workload, plan, midway
        return self._train()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("device_s", "works"), [(0.99e-3, True), (0.5e-3, False)])
def test_a_device_timer_is_held_against_the_wall_clock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, device_s: float, works: bool
) -> None:
    monkeypatch.setattr(selfcheck, "workload_of", lambda *_: Workload(lambda _: None, lambda _: None, 1, 1, 1, 1))
    timed = replace(bench, timer=Timer(lambda: Train(100, 0.0, 0.1, device_s)))
    assert selfcheck._device_timer(timed).works is works


def test_a_device_timer_that_cannot_tell_launches_apart_is_heard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> Train:
        raise TimerError("0 kernel records")

    monkeypatch.setattr(selfcheck, "workload_of", lambda *_: Workload(lambda _: None, lambda _: None, 1, 1, 1, 1))
    assert selfcheck._device_timer(replace(bench, timer=Timer(refuses))).seen == "0 kernel records"


class Board:
    full_sm_hz = 2e9
    power_limit_w = 700.0
    name = "board"
    scope = "board"
    gain_error_relative = None

    def __init__(self, power_w: float) -> None:
        self._power_w = power_w
        self._count = 0

    def read(self) -> Reading:
        return Reading(0.0, sm_hz=1.5e9, memory_hz=3.2e9, temperature_c=40.0)

    def energy_j(self) -> float | None:
        self._count += 1
        return self._count * self._power_w * 1e-3


@pytest.mark.parametrize(("power_w", "works"), [(80.0, True), (0.0, False), (1e6, False)])
def test_idle_power_has_to_be_possible(bench: Bench, power_w: float, works: bool) -> None:
    board = Board(power_w)
    assert selfcheck._meter(replace(bench, meter=board, source=board)).works is works


def test_clocks_are_told(bench: Bench) -> None:
    check = selfcheck._clocks(replace(bench, source=Board(80.0)))
    assert check.works
    assert check.seen == "SM 1500 MHz, memory 3200 MHz; 40 °C"
