"""Errors of the benchmark that are the user's to mend; `UnsupportedError` comes from narrowgemm, the rest are bugs."""


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
