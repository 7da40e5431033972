"""Whether measuring works on a device: each part tried on something whose answer is known. Takes a few seconds."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp

from narrowbench.config import Protocol
from narrowbench.measure.bench import Bench, open_bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.launches import workload_of
from narrowbench.measure.meters import MeterError
from narrowbench.measure.timing import TimerError, TrainPlan, WallClockTimer, Workload, probe_call_s

_SLEEP_S = 2e-3
#: A host that is interrupted makes a sleep longer, never shorter; by more than this it is too busy to measure on.
_SLEEP_TOLERANCE = 0.2
_POWER_S = 1.0


@dataclass(frozen=True)
class Check:
    """One part that was tried: whether it works, and what was seen. `works` is None for a part that is not there."""

    topic: str
    works: bool | None
    seen: str


def selfcheck(device: LocalDevice, protocol: Protocol) -> Iterator[Check]:
    """Lock, wall clock, device timer, clocks and energy meter of a device.

    Raises DeviceBusyError if another process measures on it, RuntimeError if JAX cannot use it.
    """
    with open_bench(device, protocol, with_energy=False) as bench:
        yield Check("lock", True, f"{device.slug} is held by this process")
        yield wall_clock()
        yield _device_timer(bench)
        yield _clocks(bench)
        yield _meter(bench)


def wall_clock() -> Check:
    """A workload that sleeps: its duration is known to be at least that, and on a quiet host little more."""
    sleeper = Workload(lambda _: time.sleep(_SLEEP_S), lambda _: None, 1, 1, rotation_sets=1, rotation_bytes=1)
    timer = WallClockTimer("the workload sleeps on the host")
    seen_s = median(timer.train(sleeper, TrainPlan(0.0, 1, 5), lambda: None).wall_s for _ in range(5))
    works = _SLEEP_S <= seen_s <= _SLEEP_S * (1 + _SLEEP_TOLERANCE)
    return Check("wall clock", works, f"a sleep of {_SLEEP_S * 1e3:g} ms took {seen_s * 1e3:.3f} ms")


def _device_timer(bench: Bench) -> Check:
    """The device's own time of a large product against the wall clock of the same train."""
    if bench.timer.method != "cupti":
        return Check("device timer", None, bench.timer.reason or "there is none")
    operands = [(jnp.ones((8192, 8192), jnp.bfloat16), jnp.ones((8192, 8192), jnp.bfloat16))]
    size = operands[0][0].nbytes
    workload = workload_of(lambda a, b: a @ b.T, operands, 2 * size, size, bench.device.platform)
    plan = TrainPlan(0.0, 2, max(1, round(0.05 / probe_call_s(workload))))
    try:
        train = bench.timer.train(workload, plan, lambda: None)
    except TimerError as error:
        return Check("device timer", False, str(error))
    finally:
        bench.timer.close()
    assert train.device_s is not None
    difference = train.wall_s / train.device_s - 1
    works = abs(difference) <= bench.protocol.cross_check.max_relative_difference
    seen = f"8192³ in bfloat16: {train.device_s * 1e6:.1f} µs on the device, wall clock {difference:+.1%}"
    return Check("device timer", works, seen)


def _clocks(bench: Bench) -> Check:
    if bench.source is None:
        return Check("clocks", None, str(bench.source_reason))
    jax.block_until_ready(jnp.ones(8) + 1)
    reading = bench.source.read()
    parts = {"SM": reading.sm_hz, "memory": reading.memory_hz}
    clocks = ", ".join(f"{name} {hertz / 1e6:.0f} MHz" for name, hertz in parts.items() if hertz is not None)
    seen = [clocks, f"{reading.temperature_c:g} °C" if reading.temperature_c is not None else ""]
    return Check("clocks", bool(clocks), "; ".join(part for part in seen if part))


def _meter(bench: Bench) -> Check:
    """The counter over an idle second: it has to move, and by no more than the board may draw."""
    if bench.meter is None:
        return Check("energy", None, str(bench.meter_reason))
    try:
        before_j, start_s = bench.meter.energy_j(), time.perf_counter()
        time.sleep(_POWER_S)
        after_j, end_s = bench.meter.energy_j(), time.perf_counter()
    except MeterError as error:
        return Check("energy", False, str(error))
    if before_j is None or after_j is None:
        return Check("energy", True, f"{bench.meter.name}: no counter; power is read and integrated")
    power_w = (after_j - before_j) / (end_s - start_s)
    limit_w = bench.source.power_limit_w if bench.source else None
    works = power_w > 0 and (limit_w is None or power_w <= limit_w)
    return Check("energy", works, f"{bench.meter.name}: {power_w:.1f} W while idle")
