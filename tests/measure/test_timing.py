"""The timer on workloads of known duration, and records that cannot be assigned to launches."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from narrowbench.measure import timing
from narrowbench.measure.cupti import Collection, KernelRecord
from narrowbench.measure.timing import CuptiTimer, TimerError, TrainPlan, WallClockTimer, Workload


@dataclass
class Known:
    """A device that needs `launch_s` a launch, works through its queue while the host goes on, and never idles."""

    monkeypatch: pytest.MonkeyPatch
    launch_s: float = 2e-3
    launches_per_call: int = 4
    now_s: float = 0.0
    free_s: float = 0.0
    calls: list[int] = field(default_factory=list)
    most_in_flight: int = 0
    waiting: int = 0

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now_s)
        self.monkeypatch.setattr(timing.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def enqueue(self, call: int) -> float:
        self.now_s += 1e-6
        self.free_s = max(self.free_s, self.now_s) + self.launch_s * self.launches_per_call
        self.calls.append(call)
        self.waiting += 1
        self.most_in_flight = max(self.most_in_flight, self.waiting)
        return self.free_s

    def wait(self, done_s: float) -> None:
        self.now_s = max(self.now_s, done_s)
        self.waiting -= 1

    def workload(self, calls_in_flight: int = 3) -> Workload:
        return Workload(self.enqueue, self.wait, self.launches_per_call, calls_in_flight, 1, 1)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    return Known(monkeypatch)


def _nothing() -> None:
    pass


def test_wall_clock_of_a_known_duration(known: Known) -> None:
    train = WallClockTimer("no other").train(known.workload(), TrainPlan(0.25, 2, 5), _nothing)
    assert train.launches == 20
    assert train.wall_s == pytest.approx(2e-3, rel=1e-3)
    assert train.device_s is None
    assert train.start_s >= 0.25 + 2 * 4 * 2e-3, "idling and warming up are not measured"
    assert known.calls == [0, 1, 2, 3, 4, 5, 6], "calls go on through the operand sets"


def test_a_workload_that_really_sleeps_takes_at_least_as_long() -> None:
    sleeper = Workload(lambda _: time.sleep(1e-3), lambda _: None, 1, 1, 1, 1)
    train = WallClockTimer("no other").train(sleeper, TrainPlan(0.0, 1, 5), _nothing)
    assert train.wall_s >= 1e-3


def test_no_more_calls_are_in_flight_than_allowed_and_the_middle_is_told(known: Known) -> None:
    in_the_middle = []
    timing.run_calls(known.workload(3), 0, 10, lambda: in_the_middle.append(len(known.calls)))
    assert known.most_in_flight == 3
    assert known.waiting == 0
    assert in_the_middle == [6]


def test_run_for_takes_at_least_the_time_it_was_given(known: Known) -> None:
    calls, start_s, end_s = timing.run_for(known.workload(), 0, 0.1)
    assert end_s - start_s >= 0.1
    assert (end_s - start_s) / (calls * 4) == pytest.approx(2e-3, rel=1e-3)
    assert timing.run_for(known.workload(), 0, 0.0)[0] == 1


def test_probe_finds_the_time_of_a_call(known: Known) -> None:
    assert timing.probe_call_s(known.workload()) == pytest.approx(8e-3, rel=1e-2)


@dataclass
class FakeCupti:
    """Hands out the given records and keeps count of detaching."""

    records: list[KernelRecord]
    detached: int = 0

    @contextmanager
    def collect(self) -> Iterator[Collection]:
        collection = Collection()
        yield collection
        collection.records = self.records

    def detach(self) -> None:
        self.detached += 1


def test_device_time_is_the_sum_over_a_launchs_kernels_without_the_warm_up(known: Known) -> None:
    slow_start = [KernelRecord("gemm", 9e-3), KernelRecord("reduce", 1e-3)] * 4
    steady = [KernelRecord("gemm", 1.5e-3), KernelRecord("reduce", 0.3e-3)] * 8
    timer = CuptiTimer(FakeCupti(slow_start + steady))
    train = timer.train(known.workload(), TrainPlan(0.0, 1, 2), _nothing)
    assert train.device_s == pytest.approx(1.8e-3)
    assert train.wall_s == pytest.approx(2e-3, rel=1e-2)
    timer.close()


def _records(*names: str, device_s: float = 1e-3) -> list[KernelRecord]:
    return [KernelRecord(name, device_s) for name in names]


def test_records_that_are_no_multiple_of_the_calls_are_refused_with_what_was_seen() -> None:
    records = _records(*["gemm"] * 7, "copy")
    with pytest.raises(TimerError, match=r"8 kernel records are no multiple of 3 calls \(seen: 7 × gemm, 1 × copy\)"):
        timing.device_s_of_launch(records, 1, 2, 1)


def test_no_records_are_refused() -> None:
    with pytest.raises(TimerError, match="seen: none"):
        timing.device_s_of_launch([], 1, 2, 1)


def test_calls_that_differ_in_their_kernels_are_refused() -> None:
    with pytest.raises(TimerError, match="gemm where reduce was due"):
        timing.device_s_of_launch(_records("gemm", "reduce", "gemm", "gemm", "gemm", "reduce"), 1, 2, 1)


def test_a_trifle_that_the_launches_of_a_call_share_is_theirs_together(known: Known) -> None:
    """As XLA's ragged dots: one kernel fills what all launches of a call read."""
    call = [KernelRecord("fill", 4e-6), *_records("gemm", "gemm_1", "gemm_2", "gemm_3")]
    assert timing.device_s_of_launch(call * 3, 1, 2, 4) == pytest.approx(1.001e-3)
    train = CuptiTimer(FakeCupti(call * 3)).train(known.workload(), TrainPlan(0.0, 1, 2), _nothing)
    assert train.kernels == ("fill", "gemm", "gemm_1", "gemm_2", "gemm_3")


@pytest.mark.parametrize("gemms", [1, 3])
def test_launches_that_a_compiler_merged_are_refused(gemms: int) -> None:
    with pytest.raises(TimerError, match=rf"a call of 2 launches shows {gemms} × gemm: .* 100.0% of the time"):
        timing.device_s_of_launch(_records(*["gemm"] * gemms) * 3, 1, 2, 2)


def test_more_than_a_trifle_shared_is_refused() -> None:
    call = [KernelRecord("fill", 0.1e-3), *_records("gemm", "gemm")]
    with pytest.raises(TimerError, match=r"2 × gemm, 1 × fill: what they share takes 4.8% of the time, and 1%"):
        timing.device_s_of_launch(call * 3, 1, 2, 2)


def test_numbers_behind_the_names_of_equal_fusions_do_not_count() -> None:
    names = ["gemm_fusion_dot", "loop_convert_fusion", "gemm_fusion_dot_1", "loop_convert_fusion.12"]
    records = [KernelRecord(name, 1e-3) for name in names]
    assert timing.device_s_of_launch(records, 1, 1, 1) == pytest.approx(2e-3)
