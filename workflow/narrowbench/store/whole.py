"""Files that are whole or as they were: written under another name, and moved to their own when done."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: What a write is refused with. It names no file.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what shall become the file at `path`, whose folder is made. A fault leaves nothing behind.

    The draft lies beside the file, for only there a move is one step, and belongs to this process alone, so that two
    writers never share one. Its suffix is its own: what a killed process leaves is never taken for results. A device
    or a pipe is written to as it is: moving would put a file in its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    is_device = path.exists() and not path.is_file()
    target = Path(os.path.realpath(path))  # a link stays, and what it points to is replaced
    draft = path if is_device else target.with_name(f"{target.name[:200]}.{os.getpid()}.draft")
    try:
        yield draft
        if not is_device:
            draft.replace(target)
    except OSError as error:
        is_unnamed = error.filename is None and error.errno in _OF_THE_DISK
        if is_unnamed or error.filename == str(draft):
            error.filename, error.filename2 = str(path), None  # nobody has heard of the draft
        raise
    finally:
        if not is_device:
            with suppress(OSError):  # what went wrong before is what is told
                draft.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, with its line ends as they are."""
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")
