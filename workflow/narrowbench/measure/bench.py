"""A device made ready for a job: the lock is held, JAX runs on it, and its timer, clocks and meter are open."""

import os
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from narrowbench.config import ROOT, Protocol
from narrowbench.measure.accuracy import Checked
from narrowbench.measure.clocks import Poller, Source, open_source
from narrowbench.measure.cupti import Cupti, CuptiError
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.energy import Window, idle_power_w
from narrowbench.measure.lock import device_lock
from narrowbench.measure.meters import Meter, open_meter
from narrowbench.measure.share import Share, open_share
from narrowbench.measure.timing import CuptiTimer, Timer, WallClockTimer

#: JAX's platforms of a device. The host stays usable beside it, for what is computed there.
_PLATFORMS = {"cpu": "cpu", "cuda": "cuda,cpu", "tpu": "tpu,cpu"}
_JAX_NAME = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}


@dataclass(frozen=True)
class Bench:
    """What a job measures with. Where clocks or energy cannot be read, the reason is there instead.

    passed: what the oracle said of kernels that it let pass on this device, so that no case is checked in every mode.
    """

    device: LocalDevice
    protocol: Protocol
    timer: Timer
    source: Source | None
    source_reason: str | None
    meter: Meter | None
    meter_reason: str | None
    share: Share
    idle: tuple[float | None, str | None]
    passed: dict[Hashable, Checked] = field(default_factory=dict)


@contextmanager
def open_bench(device: LocalDevice, protocol: Protocol, with_energy: bool) -> Iterator[Bench]:
    """The device, locked for the length of the block. Its idle power is read first where energy will be.

    Raises DeviceBusyError if another process measures on it, RuntimeError if JAX cannot use it.
    """
    with device_lock(device):
        share = open_share(device)
        use_with_jax(device)
        source, source_reason = open_source(device)
        meter, meter_reason = open_meter(device)
        timer = open_timer(device)
        idle = _idle_power(source, meter, protocol) if with_energy else (None, "no sustained case in this job")
        yield Bench(device, protocol, timer, source, source_reason, meter, meter_reason, share, idle)


def use_with_jax(device: LocalDevice) -> Any:
    """Make JAX run on this device and see no other of its platform; the JAX device.

    Raises RuntimeError if JAX found another device, as when it was in use before this was called.
    """
    jax.config.update("jax_platforms", _PLATFORMS[device.platform])
    if device.platform == "cuda":
        keep_autotuning(ROOT / "build" / "xla_autotune")
        if device.ordinal is not None:
            jax.config.update("jax_cuda_visible_devices", str(device.ordinal))
    found = jax.devices()[0]
    if found.platform != _JAX_NAME[device.platform]:
        raise RuntimeError(
            f"{device.slug}: JAX runs on {found.platform} ({found.device_kind}); install JAX for {device.platform} and "
            f"measure in a process that has not used JAX yet"
        )
    return found


def keep_autotuning(folder: Path) -> None:
    """Have XLA keep its timed choices of a dot in files, so that every job here makes the same one, and makes it once.

    It takes up to 25 s to choose for one FP8 shape on an H200. Has no effect once JAX has found its devices.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "--xla_gpu_per_fusion_autotune_cache_dir" not in flags:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_per_fusion_autotune_cache_dir={folder}".strip()


def open_timer(device: LocalDevice) -> Timer:
    """CUPTI on an NVIDIA GPU; the wall clock elsewhere, and where CUPTI is missing, with the reason."""
    if device.platform != "cuda":
        return WallClockTimer(f"no device timer for platform {device.platform}: wall clock alone")
    try:
        return CuptiTimer(Cupti())
    except CuptiError as error:
        return WallClockTimer(str(error))


def _idle_power(source: Source | None, meter: Meter | None, protocol: Protocol) -> tuple[float | None, str | None]:
    if meter is None:
        return None, "no energy meter"
    with Poller(source, protocol.energy.poll_s) as poller:
        before_j, start_s = meter.energy_j(), time.perf_counter()
        time.sleep(protocol.energy.idle_s)
        after_j, end_s = meter.energy_j(), time.perf_counter()
    return idle_power_w(Window(start_s, end_s, 0, before_j, after_j), poller.readings)
