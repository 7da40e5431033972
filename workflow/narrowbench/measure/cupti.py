"""Device time of every kernel by CUPTI, through JAX's bindings: private ones, so only this file touches them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class CuptiError(Exception):
    """CUPTI is not there, or is used by another tool; the text says which."""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel that ran: its name and how long it was on the device."""

    name: str
    device_s: float


@dataclass
class Collection:
    """Filled when its `with` block ends."""

    records: list[KernelRecord] = field(default_factory=list)


class Cupti:
    """Collects kernel records. One process can hold one collection at a time, and no other profiler beside it.

    Collecting costs the host about a microsecond a launch and memory for each record: it is for trains, not for
    windows of seconds. After `detach` launches run as if CUPTI had never been there.
    """

    def __init__(self) -> None:
        self._bindings = bindings()

    @contextmanager
    def collect(self) -> Iterator[Collection]:
        """Every kernel that is launched and done within the block, in order of its end on the device."""
        found = Collection()
        self._start()
        try:
            yield found
        finally:
            timings = self._bindings._cupti_get_timings(False)
        found.records = [KernelRecord(name, milliseconds * 1e-3) for name, milliseconds in timings]

    def detach(self) -> None:
        """Remove CUPTI from the process until the next collection."""
        self._start()
        self._bindings._cupti_get_timings(True)

    def _start(self) -> None:
        try:
            self._bindings._cupti_init()
        except RuntimeError as error:
            raise CuptiError(f"CUPTI cannot be used now: {error}") from error


def bindings() -> Any:
    """JAX's module with `_cupti_init` and `_cupti_get_timings(finalize)`. Raises CuptiError where it is not there."""
    try:
        from jax._src.lib import mosaic_gpu
    except ImportError as error:
        raise CuptiError(f"JAX's CUDA plugin is not installed: {error}") from error
    extension = getattr(mosaic_gpu, "_mosaic_gpu_ext", None)
    missing = [name for name in ("_cupti_init", "_cupti_get_timings") if not hasattr(extension, name)]
    if missing:
        raise CuptiError(f"JAX moved its CUPTI bindings: jax._src.lib.mosaic_gpu has no {', '.join(missing)}")
    return extension
