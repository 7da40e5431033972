"""Energy counters of devices behind one small interface. A meter that cannot be trusted is not opened, and says why."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from narrowbench.measure import nvidia
from narrowbench.measure.devices import LocalDevice
from narrowbench.store.rows import Scope


class MeterError(Exception):
    """A meter is not there, or what it says cannot be taken for energy; the text is the reason a row gives."""


class Meter(Protocol):
    """A device's energy.

    name, scope:          what reads it, and of what: the whole board or the package of a CPU.
    gain_error_relative:  systematic error of the sensor; None if nobody has published it.
    """

    name: str
    scope: Scope
    gain_error_relative: float | None

    def energy_j(self) -> float | None:
        """The counter, in joules since some fixed moment; None for a device that only reports power."""


class NvmlMeter:
    """The board's counter of NVML, which ticks about every 20 to 100 ms. Where a board has none, power is integrated.

    Gain error: ±5 % from board to board (Yang et al., «Part-time power measurements», SC24).
    """

    name = "nvml"
    scope: Scope = "board"
    gain_error_relative: float | None = 0.05

    def __init__(self, nvml: Any, bus_id: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        if nvidia.asked(nvml, "nvmlDeviceGetPowerUsage", self._handle) is None and self.energy_j() is None:
            raise MeterError("NVML reports neither energy nor power of this board")

    def energy_j(self) -> float | None:
        millijoule = nvidia.asked(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", self._handle)
        return None if millijoule is None else millijoule * 1e-3


class RaplMeter:
    """The packages of the host CPU by RAPL, added up. Each counter wraps, which is undone from its stated range.

    A wrap is told from one wrap only: readings must not lie further apart than a package needs to burn its range,
    which is minutes.
    """

    name = "rapl"
    scope: Scope = "package"
    gain_error_relative: float | None = None

    def __init__(self, root: Path = Path("/")) -> None:
        folder = root / "sys/class/powercap"
        if not folder.is_dir():
            raise MeterError("no RAPL: the kernel lists no powercap, as in most virtual machines")
        zones = [zone for zone in sorted(folder.glob("*-rapl:*")) if _line(zone / "name").startswith("package")]
        if not zones:
            raise MeterError("no RAPL: powercap lists no package")
        try:
            self._zones = [(zone / "energy_uj", int(_line(zone / "max_energy_range_uj"))) for zone in zones]
            self._last = [int(_line(path)) for path, _ in self._zones]
        except PermissionError as error:
            raise MeterError("RAPL counters are readable by root alone on this machine") from error
        self._total_uj = 0

    def energy_j(self) -> float | None:
        for index, (path, range_uj) in enumerate(self._zones):
            now = int(_line(path))
            self._total_uj += (now - self._last[index]) % (range_uj + 1)
            self._last[index] = now
        return self._total_uj * 1e-6


class AmdSmiMeter:
    """The accumulator of an AMD board, as `amdsmi_get_energy_count` returns it: ticks, and microjoules a tick.

    Refused where a field is missing or the accumulator stands still while its own clock goes on: some driver
    versions report a constant.
    """

    name = "amdsmi"
    scope: Scope = "board"
    gain_error_relative: float | None = None

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._last: tuple[int, int] | None = None
        self.energy_j()

    def energy_j(self) -> float | None:
        count = self._read()
        missing = [key for key in ("energy_accumulator", "counter_resolution", "timestamp") if key not in count]
        if missing:
            raise MeterError(f"amdsmi's energy count has no {', '.join(missing)}; its unit cannot be told")
        ticks, resolution_uj, at_ns = count["energy_accumulator"], count["counter_resolution"], count["timestamp"]
        if resolution_uj <= 0:
            raise MeterError(f"amdsmi gives {resolution_uj} µJ a tick")
        if self._last is not None and ticks == self._last[0] and at_ns - self._last[1] > 1_000_000_000:
            raise MeterError("amdsmi's energy count stood still for over a second")
        self._last = (ticks, at_ns)
        return float(ticks * resolution_uj * 1e-6)


def tpu_refusal(metrics: Sequence[str]) -> str:
    """Why a TPU has no meter, given the metrics that its monitoring library lists.

    The library is known to report utilisation and memory. A metric whose unit and scope nobody has checked is not
    taken for joules, whatever its name.
    """
    near = sorted(metric for metric in metrics if "energy" in metric or "power" in metric)
    if near:
        return f"the TPU's monitoring library lists {', '.join(near)}, whose unit and scope are not known here"
    return f"the TPU's monitoring library lists no energy (it lists {', '.join(sorted(metrics)) or 'nothing'})"


def open_meter(device: LocalDevice) -> tuple[Meter | None, str | None]:
    """The device's meter and None; or None and why there is none."""
    try:
        if device.platform == "cpu":
            return RaplMeter(), None
        if device.bus_id is not None:
            nvml, reason = nvidia.start_nvml()
            return (None, reason) if reason is not None else (NvmlMeter(nvml, device.bus_id), None)
    except MeterError as error:
        return None, str(error)
    if device.platform == "tpu":
        return None, tpu_refusal(_tpu_metrics())
    return None, f"no energy meter is known for platform {device.platform}"


def _tpu_metrics() -> list[str]:
    monitoring = importlib.import_module("libtpu.sdk").tpumonitoring
    return list(monitoring.list_supported_metrics())


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
