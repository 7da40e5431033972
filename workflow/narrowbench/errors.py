"""Errors of the benchmark that are the user's to mend; `UnsupportedError` comes from narrowgemm, the rest are bugs."""

import errno
import os

#: What to do about what an operating system refuses.
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "a part of the path is a file: choose another",
    errno.EEXIST: "a file is in the place of a folder: choose another",
    errno.EACCES: "choose a place that is yours, or change its permissions",
    errno.EPERM: "choose a place that is yours, or change its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOSPC: "free space on that disk and run it again",
    errno.EDQUOT: "free space on that disk and run it again",
}


class ConfigError(ValueError):
    """A configuration file or name is wrong; the text names file, key and the nearest known name."""


class StoreError(ValueError):
    """A results file cannot be read or must not be written; the text names file, line and field."""


class DeviceBusyError(ValueError):
    """Another process measures on the device; the text names it."""


class CountersError(ValueError):
    """Hardware counters cannot be read here; the text says why and what helps."""


class PaperError(ValueError):
    """The paper cannot be typeset; the text is typst's and names the source, or the number that the record lacks."""


def os_error_text(error: OSError) -> str:
    """What an operating system refuses, with the file and what to do; where a library names no file, its own text."""
    path, code = error.filename2 or error.filename, error.errno or 0
    what = str(error) if path is None else f"{os.fsdecode(path)}: {os.strerror(code)}"
    remedy = _REMEDIES.get(code)
    return f"{what}; {remedy}" if remedy else what
