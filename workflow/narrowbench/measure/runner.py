"""Jobs: every case of one kernel and suite on one device, the device's roofs, and interleaved comparisons."""

from dataclasses import dataclass
from pathlib import Path

from narrowbench.config import Campaign, Protocol
from narrowbench.measure.devices import LocalDevice
from narrowbench.store.rows import Mode


@dataclass(frozen=True)
class JobReport:
    """What a job did: cases by status, cases that were there already, and cases left for another run, by name."""

    done: dict[str, int]
    skipped: int
    left: tuple[str, ...]


def run_job(
    device: LocalDevice, kernel: str, suite: str, campaign: Campaign, protocol: Protocol, out: Path
) -> JobReport:
    """Measure every case that the campaign plans for this kernel and suite on this device, appending rows to `out`."""
    raise NotImplementedError


def run_roofs(device: LocalDevice, campaign: Campaign, protocol: Protocol, out: Path) -> JobReport:
    """Measure the device's own roofs in the campaign's `roof_modes`, appending rows to `out`."""
    raise NotImplementedError


def run_compare(
    device: LocalDevice,
    kernels: tuple[str, ...],
    shape: tuple[int, int, int],
    modes: tuple[Mode, ...],
    protocol: Protocol,
    out: Path,
) -> JobReport:
    """Measure several kernels on one shape, sample by sample in random order, appending a row of each to `out`."""
    raise NotImplementedError
