"""The stop rule: each bound ends the sampling, and says so."""

import numpy as np
import pytest

from narrowbench.config import StopSettings
from narrowbench.measure.stopping import Stopping


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stopping(clock: Clock) -> Stopping:
    settings = StopSettings(
        confidence=0.95, target_relative_half_width=0.01, min_samples=10, max_samples=40, budget_s=30
    )
    return Stopping(settings, clock)


def test_ten_close_samples_stop_by_the_interval_and_nine_do_not(stopping: Stopping) -> None:
    assert stopping.verdict([1.0] * 9, taken=9) is None
    assert stopping.verdict([1.0] * 10, taken=10) == "interval"


def test_wide_samples_go_on_to_the_most(stopping: Stopping) -> None:
    samples = list(np.linspace(1, 2, 40))
    assert stopping.verdict(samples[:39], taken=39) is None
    assert stopping.verdict(samples, taken=40) == "max_samples"


def test_dropped_samples_count_towards_the_bound(stopping: Stopping) -> None:
    assert stopping.verdict([], taken=40) == "max_samples"


def test_the_budget_ends_it(stopping: Stopping, clock: Clock) -> None:
    clock.now_s += 29
    assert stopping.verdict([1.0], taken=1) is None
    clock.now_s += 1
    assert stopping.verdict([1.0], taken=1) == "budget"


def test_the_record_repeats_the_rule(stopping: Stopping) -> None:
    record = stopping.record("budget")
    assert (record.stopped_by, record.max_samples, record.budget_s) == ("budget", 40, 30)
