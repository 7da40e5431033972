"""When sampling ends, and which bound ended it."""

import time
from collections.abc import Callable, Sequence
from typing import Literal

from narrowbench.config import StopSettings
from narrowbench.models.statistics import fewest_samples, relative_half_width
from narrowbench.store.rows import StopRule

StoppedBy = Literal["interval", "max_samples", "budget"]


class Stopping:
    """The stop rule of one case: the median's interval is narrow enough, or a bound of samples or seconds is reached.

    The budget runs from the construction on. Samples that were taken and dropped count towards the bounds, so that
    a device which never reaches its clock floor comes to an end too.
    """

    def __init__(self, settings: StopSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._start_s = clock()

    def verdict(self, kept: Sequence[float], taken: int) -> StoppedBy | None:
        """What ends the sampling now, or None to go on. `kept` are the usable samples out of `taken`."""
        rule = self.settings
        if len(kept) >= max(rule.min_samples, fewest_samples(rule.confidence)):
            half_width = relative_half_width(kept, rule.confidence)
            if half_width is not None and half_width <= rule.target_relative_half_width:
                return "interval"
        if taken >= rule.max_samples:
            return "max_samples"
        if self._clock() - self._start_s >= rule.budget_s:
            return "budget"
        return None

    def record(self, stopped_by: StoppedBy) -> StopRule:
        """The rule as a row keeps it."""
        return StopRule(stopped_by=stopped_by, **self.settings.model_dump())
