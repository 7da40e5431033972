"""Clocks, temperature, power and throttling while a device is timed, and what they say against a sample."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self

from narrowbench.measure import nvidia
from narrowbench.measure.devices import LocalDevice
from narrowbench.store.rows import Clocks, Spread

#: Reasons of NVML for a lowered clock, by bit (nvml.h). The power cap is what `sustained` is about; the four that
#: follow it mean that something is wrong with cooling or supply, so that a burst sample under them is dropped.
THROTTLE_BITS = {
    0x01: "idle",
    0x02: "application_clocks",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x10: "sync_boost",
    0x100: "display_clocks",
}
FAULTS = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})


@dataclass(frozen=True)
class Reading:
    """What a device said of itself at one moment of `time.perf_counter`; None for what it does not say."""

    t_s: float
    sm_hz: float | None = None
    memory_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: frozenset[str] = frozenset()


class Source(Protocol):
    """Where readings come from.

    full_sm_hz:     the clock that a floor is a fraction of; None where no clock can be held against the device.
    power_limit_w:  the enforced limit of the board.
    """

    full_sm_hz: float | None
    power_limit_w: float | None

    def read(self) -> Reading: ...


class NvmlSource:
    """An NVIDIA GPU, by NVML.

    Power is the instant reading where the board has it: the plain one is a mean of the last second on some boards.
    """

    def __init__(self, nvml: Any, bus_id: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        self._instant_power = self._instant_power_mw() is not None
        self.full_sm_hz = _scaled(self._asked("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM), 1e6)
        self.power_limit_w = _scaled(self._asked("nvmlDeviceGetEnforcedPowerLimit"), 1e-3)

    def read(self) -> Reading:
        nvml = self._nvml
        power_mw = self._instant_power_mw() if self._instant_power else self._asked("nvmlDeviceGetPowerUsage")
        bits = self._asked("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return Reading(
            t_s=time.perf_counter(),
            sm_hz=_scaled(self._asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            memory_hz=_scaled(self._asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1e6),
            temperature_c=_scaled(self._asked("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1.0),
            power_w=_scaled(power_mw, 1e-3),
            throttled=frozenset(name for bit, name in THROTTLE_BITS.items() if bits & bit),
        )

    def _asked(self, call: str, *arguments: Any) -> Any:
        return nvidia.asked(self._nvml, call, self._handle, *arguments)

    def _instant_power_mw(self) -> int | None:
        nvml = self._nvml
        (field,) = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        return int(field.value.uiVal) if field.nvmlReturn == nvml.NVML_SUCCESS else None


class CpuSource:
    """The host CPU: the mean clock of the CPUs this process may use, by cpufreq.

    No clock is «full»: the advertised highest is that of one core alone. Power is the energy meter's to know.
    """

    full_sm_hz: float | None = None
    power_limit_w: float | None = None

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    @classmethod
    def open(cls, root: Path = Path("/")) -> tuple["CpuSource | None", str | None]:
        """The source and None; or None and why the clock cannot be read."""
        folder = root / "sys/devices/system/cpu"
        files = [folder / f"cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in _usable_cpus()]
        readable = [path for path in files if os.access(path, os.R_OK)]
        if not readable:
            return None, "sysfs has no readable cpufreq: a virtual machine hides the clock of its cores"
        return cls(readable), None

    def read(self) -> Reading:
        kilohertz = [float(path.read_text()) for path in self._files]
        return Reading(t_s=time.perf_counter(), sm_hz=sum(kilohertz) / len(kilohertz) * 1e3)


def open_source(device: LocalDevice) -> tuple[Source | None, str | None]:
    """Where this device's readings come from, and None; or None and why there are none."""
    if device.platform == "cpu":
        return CpuSource.open()
    if device.bus_id is not None:
        nvml, reason = nvidia.start_nvml()
        return (None, reason) if reason is not None else (NvmlSource(nvml, device.bus_id), None)
    return None, f"no clock can be read from a device of platform {device.platform}"


class Poller:
    """Reads a source at a steady period in a thread of its own, from entering to leaving a `with` block.

    `read_now` adds a reading at once, for the middle of a train that is shorter than the period. An error of the
    source ends the thread and is raised on leaving.
    """

    def __init__(self, source: Source | None, period_s: float) -> None:
        self._source = source
        self._period_s = period_s
        self._readings: list[Reading] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="clock poller")

    def __enter__(self) -> Self:
        if self._source is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        if self._source is not None:
            self._thread.join()
        if self._fault is not None and kind is None:
            raise self._fault

    def read_now(self) -> Reading | None:
        """A reading of this moment; None without a source."""
        if self._source is None:
            return None
        with self._lock:
            reading = self._source.read()
            self._readings.append(reading)
        return reading

    @property
    def readings(self) -> list[Reading]:
        """All readings so far, in order of time."""
        with self._lock:
            return list(self._readings)

    def between(self, start_s: float, end_s: float) -> list[Reading]:
        return [reading for reading in self.readings if start_s <= reading.t_s <= end_s]

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._period_s):
                self.read_now()
        except Exception as error:
            self._fault = error


def fault_of_burst(readings: Sequence[Reading], source: Source | None, floor: float) -> str | None:
    """Why a burst sample with these readings is to be dropped; None to keep it.

    `floor` is a fraction of the device's full clock. Nothing is held against a device that has no full clock.
    """
    if source is None or source.full_sm_hz is None:
        return None
    clocks = [reading.sm_hz for reading in readings if reading.sm_hz is not None]
    if not clocks:
        return "no reading of the clock during the sample"
    throttled = sorted(FAULTS & frozenset().union(*(reading.throttled for reading in readings)))
    if throttled:
        return f"throttled: {', '.join(throttled)}"
    if min(clocks) < floor * source.full_sm_hz:
        return f"clock below the floor of {floor:.0%} of {source.full_sm_hz / 1e6:.0f} MHz"
    return None


def is_flat(readings: Sequence[Reading], relative_clock: float, temperature_c: float) -> bool:
    """Whether clock and temperature moved no more than this over the readings; never on fewer than two of them."""
    if len(readings) < 2:
        return False
    clocks = [r.sm_hz for r in readings if r.sm_hz is not None]
    temperatures = [r.temperature_c for r in readings if r.temperature_c is not None]
    clock_flat = not clocks or max(clocks) - min(clocks) <= relative_clock * max(clocks)
    return clock_flat and (not temperatures or max(temperatures) - min(temperatures) <= temperature_c)


def summarise(readings: Sequence[Reading], source: Source) -> Clocks:
    """The readings as a row keeps them."""
    count = Counter(name for reading in readings for name in reading.throttled)
    return Clocks(
        sm_hz=_spread(r.sm_hz for r in readings),
        memory_hz=_spread(r.memory_hz for r in readings),
        temperature_c=_spread(r.temperature_c for r in readings),
        power_w=_spread(r.power_w for r in readings),
        power_limit_w=source.power_limit_w,
        throttle_reasons={name: times / len(readings) for name, times in sorted(count.items())},
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known), count=len(known)) if known else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _usable_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
