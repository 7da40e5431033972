"""Sampling in the two modes. One workload is sampled alone; several are sampled in turn, in random order, so that the
samples of one round can be compared as pairs.

Burst: from cool, below the power cap: short trains with idle pauses between. Sustained: once clock and temperature are
flat, long windows one after the other, which are the windows of energy too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from narrowbench.config import BurstSettings, CrossCheckSettings, SustainedSettings, TuningSettings
from narrowbench.measure.clocks import Poller, Reading, Source, fault_of_burst, is_flat
from narrowbench.measure.energy import Window
from narrowbench.measure.meters import Meter, MeterError
from narrowbench.measure.stopping import StoppedBy, Stopping
from narrowbench.measure.timing import Timer, TimerError, Train, TrainPlan, Workload, probe_call_s, run_for
from narrowbench.store.rows import Dropped, StopRule, Timing

#: Clock and temperature are flat if they do not move over this long: a board warms by under a degree in one second.
FLAT_OVER_S = 3.0
#: Before each window that follows another workload's, so that a board's power has settled on this one.
SETTLE_S = 1.0
#: Length of the train that checks the windows' wall clock against the device's own time.
CHECK_TRAIN_S = 0.05


@dataclass(frozen=True)
class Sample:
    """A train or window, and why it is not to be used; None if it is."""

    train: Train
    fault: str | None = None


@dataclass
class Sampled:
    """What sampling gave for one workload.

    warm_up_launches: before each train, or before the first window.
    readings:         of the device during the samples that are used.
    windows:          of a sustained case, for energy.
    check_s:          device time of a launch in a train after the windows; None with `check_reason`.
    meter_fault:      what the meter refused to tell while the windows ran.
    """

    warm_up_launches: int
    samples: list[Sample] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    check_s: float | None = None
    check_reason: str | None = None
    meter_fault: str | None = None

    @property
    def kept(self) -> list[Train]:
        return [sample.train for sample in self.samples if sample.fault is None]


def burst(
    workloads: Sequence[Workload],
    timer: Timer,
    source: Source | None,
    settings: BurstSettings,
    poll_s: float,
    rng: np.random.Generator,
) -> tuple[list[Sampled], StopRule]:
    """Trains of every workload until the stop rule is content with each, and what ended it.

    A sample below the clock floor is dropped, and with it the others of its round, which would have no partner.
    """
    plans = [_train_plan(workload, settings) for workload in workloads]
    found = [Sampled(p.warm_up_calls * w.launches_per_call) for p, w in zip(plans, workloads, strict=True)]
    stopping = Stopping(settings.stop)
    verdict: StoppedBy | None = None
    with Poller(source, poll_s) as poller:
        while verdict is None:
            trains: dict[int, Train] = {}
            for index in rng.permutation(len(workloads)):
                trains[index] = timer.train(workloads[index], plans[index], poller.read_now)
            faults = {
                index: fault_of_burst(poller.between(t.start_s, t.end_s), source, settings.clock_floor)
                for index, t in trains.items()
            }
            first_fault = next((fault for fault in faults.values() if fault is not None), None)
            for index, sampled in enumerate(found):
                fault = faults[index] or (
                    first_fault and f"dropped with its round, another of which had: {first_fault}"
                )
                sampled.samples.append(Sample(trains[index], fault))
            verdict = _verdict(stopping, found)
    for sampled in found:
        sampled.readings = [r for train in sampled.kept for r in poller.between(train.start_s, train.end_s)]
    return found, stopping.record(verdict)


def sustained(
    workloads: Sequence[Workload],
    timer: Timer,
    source: Source | None,
    meter: Meter | None,
    settings: SustainedSettings,
    poll_s: float,
    rng: np.random.Generator,
) -> tuple[list[Sampled], StopRule]:
    """Windows of every workload, once the device is warm, until the stop rule is content, and what ended it."""
    settle_s = SETTLE_S if len(workloads) > 1 else 0.0
    with Poller(source, poll_s) as poller:
        found = [Sampled(launches) for launches in _warm_up(workloads, settings, poller)]
        stopping = Stopping(settings.stop)
        verdict: StoppedBy | None = None
        while verdict is None:
            for index in rng.permutation(len(workloads)):
                delay_s = settle_s + float(rng.uniform(0, settings.start_jitter_s))
                _add_window(found[index], workloads[index], meter, delay_s, settings.window_s)
            verdict = _verdict(stopping, found)
        for sampled in found:
            sampled.readings = [r for train in sampled.kept for r in poller.between(train.start_s, train.end_s)]
        _check_device_time(found, workloads, timer)
    return found, stopping.record(verdict)


def short_time_s(workload: Workload, timer: Timer, settings: TuningSettings) -> float:
    """Seconds of one launch, to choose by: the median of a few short trains."""
    call_s = probe_call_s(workload)
    warm_up_calls, calls = math.ceil(settings.warm_up_s / call_s), max(1, round(settings.train_s / call_s))
    plan = TrainPlan(settings.idle_s, warm_up_calls, calls)
    trains = [timer.train(workload, plan, lambda: None) for _ in range(settings.trains)]
    return median(train.device_s or train.wall_s for train in trains)


def timing_of(
    sampled: Sampled,
    workload: Workload,
    timer: Timer,
    stop_rule: StopRule,
    cross_check: CrossCheckSettings,
    session: str | None,
) -> tuple[Timing | None, str | None]:
    """The samples as a row keeps them and None; or None and why there are none left: the case is unstable."""
    dropped: dict[str, list[float]] = {}
    for sample in sampled.samples:
        if sample.fault is not None:
            dropped.setdefault(sample.fault, []).append(sample.train.device_s or sample.train.wall_s)
    kept = sampled.kept
    if not kept:
        told = "; ".join(f"{len(s)} × {why} (median {median(s):.4g} s)" for why, s in dropped.items())
        return None, f"no sample left of {len(sampled.samples)}: {told}"
    device = [train.device_s for train in kept if train.device_s is not None]
    wall = [train.wall_s for train in kept]
    return Timing(
        samples_s=device or wall,
        launches_per_sample=[train.launches for train in kept],
        method="cupti" if device else "wall_clock",
        wall_clock_samples_s=wall if device else None,
        device_check_s=sampled.check_s,
        cross_check_reason=_cross_check(sampled, device, wall, timer, cross_check),
        session=session,
        warm_up_launches=sampled.warm_up_launches,
        rotation_sets=workload.rotation_sets,
        rotation_bytes=workload.rotation_bytes,
        stop_rule=stop_rule,
        dropped=[Dropped(reason=reason, samples_s=samples) for reason, samples in dropped.items()],
    ), None


def _train_plan(workload: Workload, settings: BurstSettings) -> TrainPlan:
    call_s = probe_call_s(workload)
    calls = max(1, round(settings.train_s / call_s))
    for_launches = math.ceil(settings.warm_up_launches / workload.launches_per_call)
    return TrainPlan(settings.idle_s, max(for_launches, math.ceil(settings.warm_up_s / call_s)), calls)


def _verdict(stopping: Stopping, found: Sequence[Sampled]) -> StoppedBy | None:
    """What ends the sampling of all: their intervals where each is narrow enough, else the bound that was reached."""
    verdicts: list[StoppedBy | None] = []
    for sampled in found:
        samples = [train.device_s or train.wall_s for train in sampled.kept]
        verdicts.append(stopping.verdict(samples, len(sampled.samples)))
    if None in verdicts:
        return None
    return next((verdict for verdict in verdicts if verdict != "interval"), "interval")


def _warm_up(workloads: Sequence[Workload], settings: SustainedSettings, poller: Poller) -> list[int]:
    """Run the workloads in turn until clock and temperature are flat, or the time is up: launches of each."""
    launches = [0] * len(workloads)
    slice_s = min(0.5, settings.warm_up_s)
    ran_s = 0.0
    while ran_s < settings.warm_up_s:
        for index, workload in enumerate(workloads):
            calls, start_s, end_s = run_for(workload, 0, slice_s / len(workloads))
            launches[index] += calls * workload.launches_per_call
            ran_s += end_s - start_s
        recent = poller.between(end_s - FLAT_OVER_S, end_s)
        if ran_s > FLAT_OVER_S and is_flat(recent, settings.flat_clock_relative, settings.flat_temperature_c):
            break
    return launches


def _add_window(sampled: Sampled, workload: Workload, meter: Meter | None, delay_s: float, window_s: float) -> None:
    """One window after `delay_s` of the same work, which keeps the device as busy as in the window."""
    first = run_for(workload, 0, delay_s)[0] if delay_s else 0
    before_j = _counter_j(sampled, meter)
    calls, start_s, end_s = run_for(workload, first, window_s)
    after_j = _counter_j(sampled, meter)
    launches = calls * workload.launches_per_call
    sampled.samples.append(Sample(Train(launches, start_s, end_s, None)))
    sampled.windows.append(Window(start_s, end_s, launches, before_j, after_j))


def _counter_j(sampled: Sampled, meter: Meter | None) -> float | None:
    try:
        return meter.energy_j() if meter else None
    except MeterError as error:
        sampled.meter_fault = str(error)
        return None


def _check_device_time(found: Sequence[Sampled], workloads: Sequence[Workload], timer: Timer) -> None:
    """A short train of each workload, right after its windows: records of seconds of launches would not fit."""
    if timer.method != "cupti":
        return
    for sampled, workload in zip(found, workloads, strict=True):
        calls = max(1, round(CHECK_TRAIN_S / (sampled.kept[0].wall_s * workload.launches_per_call)))
        try:
            sampled.check_s = timer.train(workload, TrainPlan(0.0, 1, calls), lambda: None).device_s
        except TimerError as error:
            sampled.check_reason = str(error)


def _cross_check(
    sampled: Sampled, device: list[float], wall: list[float], timer: Timer, settings: CrossCheckSettings
) -> str | None:
    """None where device time and wall clock agree; else why they do not, or why there is one of them only."""
    device_s = median(device) if device else sampled.check_s
    if device_s is None:
        return sampled.check_reason or timer.reason
    wall_s = median(wall)
    difference = (wall_s - device_s) / device_s
    if abs(difference) <= settings.max_relative_difference:
        return None
    if difference < 0:
        return f"kernels overlap: their device times add up to {-difference:.1%} more than the wall clock"
    gap = f"wall clock is longer by {difference:.1%}, {(wall_s - device_s) * 1e6:.2f} µs a launch"
    if device_s < settings.min_launch_s:
        return f"{gap}: launches under {settings.min_launch_s * 1e6:g} µs are bound by the host or by gaps between them"
    return f"{gap}: the device was not busy all the time"
