"""Whether another process uses the GPU that is being measured."""

import os
from functools import cache
from typing import Any, Protocol

from narrowbench.measure import nvidia
from narrowbench.measure.devices import LocalDevice


class Share(Protocol):
    def others(self) -> int | None:
        """Number of other processes on the device now; None where that cannot be known."""
        ...


class GpuShare:
    """Compute processes of a GPU by NVML. Make it before this process opens the GPU.

    In a container NVML may name processes by numbers of the host, so that this one is not found among them: then the
    first that appears after construction is taken for it, because it opens the GPU itself.
    """

    def __init__(self, nvml: Any, bus_id: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
        self._before = self._processes()
        self._self: int | None = None

    def others(self) -> int | None:
        now = self._processes()
        if now is None or self._before is None:
            return None
        if os.getpid() in now:
            return len(now - {os.getpid()})
        if self._self is None:
            self._self = min(now - self._before, default=None)
        return len(now - {self._self})

    def _processes(self) -> set[int] | None:
        found = nvidia.asked(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._handle)
        return None if found is None else {process.pid for process in found}


class Unshared:
    """A device whose sharing cannot be seen, such as the host CPU, which other processes always use."""

    def others(self) -> int | None:
        return None


@cache
def open_share(device: LocalDevice) -> Share:
    """The watch over this device, one for all jobs of this process. Call it before JAX opens the device.

    A second one would be made with the GPU open already, and could take this process for another.
    """
    if device.bus_id is None:
        return Unshared()
    nvml, reason = nvidia.start_nvml()
    return Unshared() if reason is not None else GpuShare(nvml, device.bus_id)
