"""One timer for kernels, baselines and roofs: trains and windows of back-to-back launches.

A timer knows nothing of JAX or of what is launched: anything that can enqueue calls and wait for them is timed alike.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from narrowbench.measure.cupti import Cupti, KernelRecord

#: What XLA puts behind the name of a fusion that is equal to another.
_NUMBER = re.compile(r"([._]\d+)+$")
#: Of the device's time in a call: kernels that do not run once or more for each of its launches.
_MOST_SHARED = 0.01


class TimerError(Exception):
    """The launches of a train cannot be told apart on the device; the text is the reason a row gives."""


@dataclass(frozen=True)
class Workload:
    """What is timed: calls that are enqueued in order, each of which launches the same number of times.

    enqueue:           call number -> a token; returns before the device is done. Numbers choose among operand sets.
    wait:              blocks until the device is done with the call of a token.
    launches_per_call: launches of what is timed in one call.
    calls_in_flight:   calls that may be enqueued and not done: enough to keep the device busy, and few enough for
                       their results to fit in memory. 1 for a device that works while the host waits.
    rotation_sets, rotation_bytes: operand sets that the calls go through, and their bytes all together.
    """

    enqueue: Callable[[int], Any]
    wait: Callable[[Any], None]
    launches_per_call: int
    calls_in_flight: int
    rotation_sets: int
    rotation_bytes: int


@dataclass(frozen=True)
class TrainPlan:
    """How one train is run: seconds of idling, calls that are not measured, calls that are."""

    idle_s: float
    warm_up_calls: int
    calls: int


@dataclass(frozen=True)
class Train:
    """One train as it was run. Times are of `time.perf_counter`.

    device_s, kernels: device time of one launch, and what the device ran for it (each kind once where launches share
                       some); None and nothing without CUPTI.
    """

    launches: int
    start_s: float
    end_s: float
    device_s: float | None
    kernels: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        return (self.end_s - self.start_s) / self.launches


class Timer(Protocol):
    """method: whose time the samples are. `reason`: why there is no second clock, where there is none."""

    method: Literal["cupti", "wall_clock"]
    reason: str | None

    def train(self, workload: Workload, plan: TrainPlan, midway: Callable[[], object]) -> Train:
        """Run one train. `midway` is called once while measured launches are under way."""
        ...

    def close(self) -> None:
        """Leave no trace in the process, so that windows of seconds run undisturbed."""
        ...


class WallClockTimer:
    """Time of the host around a train that the host waits for."""

    method: Literal["cupti", "wall_clock"] = "wall_clock"

    def __init__(self, reason: str) -> None:
        self.reason: str | None = reason

    def train(self, workload: Workload, plan: TrainPlan, midway: Callable[[], object]) -> Train:
        start_s, end_s = _run_train(workload, plan, midway)
        return Train(plan.calls * workload.launches_per_call, start_s, end_s, None)

    def close(self) -> None:
        pass


class CuptiTimer:
    """Time on the device, by CUPTI: the sum over all kernels of a launch, without the gaps between them."""

    method: Literal["cupti", "wall_clock"] = "cupti"
    reason: str | None = None

    def __init__(self, cupti: Cupti) -> None:
        self._cupti = cupti

    def train(self, workload: Workload, plan: TrainPlan, midway: Callable[[], object]) -> Train:
        with self._cupti.collect() as collection:
            start_s, end_s = _run_train(workload, plan, midway)
        records, launches = collection.records, workload.launches_per_call
        device_s = device_s_of_launch(records, plan.warm_up_calls, plan.calls, launches)
        of_a_call = [record.name for record in records[: len(records) // (plan.warm_up_calls + plan.calls)]]
        shared = len(of_a_call) % launches
        names = tuple(dict.fromkeys(of_a_call)) if shared else tuple(of_a_call[: len(of_a_call) // launches])
        return Train(plan.calls * launches, start_s, end_s, device_s, names)

    def close(self) -> None:
        self._cupti.detach()


def device_s_of_launch(
    records: Sequence[KernelRecord], unmeasured: int, measured: int, launches_per_call: int
) -> float:
    """Mean device time of a launch of the `measured` calls that follow `unmeasured` ones.

    Raises TimerError unless every call shows the same kernels in the same order: with one kernel more or less, no
    record could be assigned to a call. Of what the launches of a call share, because a compiler did it once for all of
    them, little is allowed: by itself each would do it again. Numbers that XLA puts behind the names of equal fusions
    do not count.
    """
    names = [_NUMBER.sub("", record.name) for record in records]
    calls = unmeasured + measured
    each, rest = divmod(len(records), calls)
    if rest or not records:
        raise TimerError(f"{len(records)} kernel records are no multiple of {calls} calls (seen: {_counted(names)})")
    for index, name in enumerate(names):
        if name != names[index % each]:
            raise TimerError(f"calls differ in their kernels: {name} where {names[index % each]} was due")
    kept = records[unmeasured * each :]
    total_s = sum(record.device_s for record in kept)
    shared = {name for name, count in Counter(names[:each]).items() if count % launches_per_call}
    shared_s = sum(record.device_s for record, name in zip(kept, names[-len(kept) :], strict=True) if name in shared)
    if shared_s > _MOST_SHARED * total_s:
        raise TimerError(
            f"a call of {launches_per_call} launches shows {_counted(names[:each])}: what they share takes "
            f"{shared_s / total_s:.1%} of the time, and {_MOST_SHARED:.0%} is the most that may be"
        )
    return total_s / (measured * launches_per_call)


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).most_common(4)) or "none"


def run_calls(workload: Workload, first: int, calls: int, midway: Callable[[], object] | None = None) -> None:
    """Run calls number `first` and on, keeping `calls_in_flight` of them enqueued, and wait for all of them."""
    in_flight: deque[Any] = deque()
    for index in range(calls):
        in_flight.append(workload.enqueue(first + index))
        if midway is not None and index == calls // 2:
            midway()
        if len(in_flight) >= workload.calls_in_flight:
            workload.wait(in_flight.popleft())
    for token in in_flight:
        workload.wait(token)


def run_for(workload: Workload, first: int, seconds: float) -> tuple[int, float, float]:
    """Run calls for at least this long, and wait for all of them: number of calls, start and end."""
    in_flight: deque[Any] = deque()
    calls = 0
    start_s = time.perf_counter()
    while calls == 0 or time.perf_counter() - start_s < seconds:
        in_flight.append(workload.enqueue(first + calls))
        calls += 1
        if len(in_flight) >= workload.calls_in_flight:
            workload.wait(in_flight.popleft())
    for token in in_flight:
        workload.wait(token)
    return calls, start_s, time.perf_counter()


def probe_call_s(workload: Workload) -> float:
    """A first guess at the seconds of one call, its launches warm: the median of three short runs."""
    run_calls(workload, 0, 1)
    guesses = []
    for _ in range(3):
        calls, start_s, end_s = run_for(workload, 1, 2e-3)
        guesses.append((end_s - start_s) / calls)
    return sorted(guesses)[1]


def _run_train(workload: Workload, plan: TrainPlan, midway: Callable[[], object]) -> tuple[float, float]:
    time.sleep(plan.idle_s)
    run_calls(workload, 0, plan.warm_up_calls)
    start_s = time.perf_counter()
    run_calls(workload, plan.warm_up_calls, plan.calls, midway)
    return start_s, time.perf_counter()
