"""One measurement at a time on a device, over all processes and users of the machine."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from narrowbench.errors import DeviceBusyError
from narrowbench.measure.devices import LocalDevice


@contextmanager
def device_lock(device: LocalDevice, folder: Path | None = None) -> Iterator[None]:
    """Hold the device within the block. The kernel lets go of it when the process ends, however it ends.

    Raises DeviceBusyError, naming the process that holds it, instead of waiting. The file lies in the machine's own
    folder for temporary files, so that two checkouts and two users meet there.
    """
    folder = folder or Path(tempfile.gettempdir())
    descriptor = _open(folder / f"narrowbench-{device.uuid_hash or device.slug}.lock")
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            raise DeviceBusyError(
                f"{device.slug} is being measured by process {holder}; wait for it or end it"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock's file, which is everybody's. Linux refuses O_CREAT on another user's file in such a folder."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
