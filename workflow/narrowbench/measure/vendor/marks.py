"""When the default stream of a GPU is through with what was launched on it: events of the driver, by ctypes."""

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

#: CU_EVENT_DISABLE_TIMING of cuda.h.
_DISABLE_TIMING = 2
_DEFAULT_STREAM = ctypes.c_void_p(0)


class Marks(Protocol):
    """Marks between launches of the calling thread."""

    def enter(self) -> None:
        """Make the device the calling thread's own, for the launches that follow."""
        ...

    def mark(self) -> Any:
        """A token for all that was launched up to now."""
        ...

    def wait(self, token: Any) -> None:
        """Block until the device is through with what was launched before the token, which is then used up."""
        ...


class CudaMarks:
    """The legacy default stream of GPU number `ordinal`, in its primary context, which JAX and all libraries share.

    Raises OSError where the driver cannot be loaded or refuses a call. An error of an earlier launch shows here too.
    """

    def __init__(self, ordinal: int, library: Any = None) -> None:
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._context = ctypes.c_void_p()
        device = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        # Retained until the process ends: it is JAX's context, and outlives every case.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.enter()

    def enter(self) -> None:
        self._call("cuCtxSetCurrent", self._context)

    def mark(self) -> Any:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
        self._call("cuEventRecord", event, _DEFAULT_STREAM)
        return event

    def wait(self, token: Any) -> None:
        self.enter()
        self._call("cuEventSynchronize", token)
        self._call("cuEventDestroy_v2", token)

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, name)
        status = function(*arguments)
        if status != 0:
            raise OSError(f"{name} returned CUDA error {status}")
