"""Thin access to NVML and libcuda: what NVIDIA GPUs are here and what they say of themselves. No JAX.

`pynvml` is handed in everywhere, so that tests hand in a fake and nothing else is simulated.
"""

import ctypes
import hashlib
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE and CUDA_ERROR_INVALID_DEVICE of cuda.h.
_L2_CACHE_SIZE = 38
_INVALID_DEVICE = 101


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU that CUDA lets this process use.

    ordinal:        CUDA's number for it, which is also JAX's; None if CUDA could not be asked.
    bus_id:         PCI address, by which NVML and CUDA agree on a GPU whatever their order.
    capability:     compute capability, (major, minor).
    l2_bytes:       None with `l2_reason` if CUDA could not be asked.
    """

    name: str
    bus_id: str
    uuid_hash: str
    capability: tuple[int, int]
    ordinal: int | None
    l2_bytes: int | None
    l2_reason: str | None


def short_hash(text: str) -> str:
    """Sixteen hexadecimal digits that stand for a name nobody else should read."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def start_nvml(nvml: Any = None) -> tuple[Any, str | None]:
    """NVML, started, and None; or None and why it cannot be used here."""
    if nvml is None:
        nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, f"NVML does not start: {error}"
    return nvml, None


class Cuda:
    """The driver library. Only `profiled` makes a context; without one no memory of the GPU is taken."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._check("cuInit", library.cuInit(0))

    @classmethod
    def open(cls) -> tuple["Cuda | None", str | None]:
        """The driver library and None; or None and why not."""
        try:
            return cls(ctypes.CDLL("libcuda.so.1")), None
        except OSError as error:
            return None, f"libcuda cannot be loaded: {error}"

    @staticmethod
    def _check(call: str, status: int) -> None:
        if status != 0:
            raise OSError(f"{call} returned CUDA error {status}")

    def ordinal(self, bus_id: str) -> int | None:
        """CUDA's number of the GPU at this address; None where CUDA_VISIBLE_DEVICES hides it."""
        device = ctypes.c_int()
        status = self._library.cuDeviceGetByPCIBusId(ctypes.byref(device), bus_id.encode())
        if status == _INVALID_DEVICE:
            return None
        self._check("cuDeviceGetByPCIBusId", status)
        return device.value

    def l2_bytes(self, ordinal: int) -> int:
        value = ctypes.c_int()
        status = self._library.cuDeviceGetAttribute(ctypes.byref(value), _L2_CACHE_SIZE, ordinal)
        self._check("cuDeviceGetAttribute", status)
        return value.value

    @contextmanager
    def profiled(self, ordinal: int) -> Iterator[None]:
        """What a profiler sees that waits for `cuProfilerStart`: launches on this GPU within the block.

        The context is the GPU's primary one, which JAX uses too. It is kept until the process ends.
        """
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check("cuDeviceGet", self._library.cuDeviceGet(ctypes.byref(device), ordinal))
        self._check(
            "cuDevicePrimaryCtxRetain", self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.value)
        )
        self._check("cuCtxSetCurrent", self._library.cuCtxSetCurrent(context))
        self._check("cuProfilerStart", self._library.cuProfilerStart())
        try:
            yield
        finally:
            self._check("cuProfilerStop", self._library.cuProfilerStop())


def gpus(nvml: Any, cuda: Cuda | None, cuda_reason: str | None) -> list[Gpu]:
    """The GPUs that NVML lists and CUDA does not hide, in CUDA's order."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = text(nvml.nvmlDeviceGetPciInfo(handle).busIdLegacy)
        ordinal = cuda.ordinal(bus_id) if cuda else None
        if cuda and ordinal is None:
            continue
        found.append(
            Gpu(
                name=text(nvml.nvmlDeviceGetName(handle)),
                bus_id=bus_id,
                uuid_hash=short_hash(text(nvml.nvmlDeviceGetUUID(handle))),
                capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
                ordinal=ordinal,
                l2_bytes=cuda.l2_bytes(ordinal) if cuda and ordinal is not None else None,
                l2_reason=cuda_reason,
            )
        )
    return sorted(found, key=lambda gpu: (gpu.ordinal is None, gpu.ordinal))


def asked(nvml: Any, call: str, *arguments: Any) -> Any:
    """What NVML answers; None where this board does not support the question. Other errors are raised."""
    try:
        return getattr(nvml, call)(*arguments)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None


def driver_versions(nvml: Any = None) -> dict[str, str]:
    """Versions of the driver and of the CUDA that it supports; nothing where NVML does not start."""
    nvml, reason = start_nvml(nvml)
    if reason is not None:
        return {}
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    driver = text(nvml.nvmlSystemGetDriverVersion())
    return {"nvidia-driver": driver, "cuda-driver": f"{cuda // 1000}.{cuda % 1000 // 10}"}


def text(value: bytes | str) -> str:
    """Older NVML bindings hand out bytes."""
    return value.decode() if isinstance(value, bytes) else value
