"""Statistics against figures worked out by hand and against their own definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from narrowbench.models import statistics

positive = st.lists(st.floats(0.1, 1e6), min_size=6, max_size=60)


def test_fewest_samples_is_where_all_on_one_side_is_rarer_than_the_rest() -> None:
    assert statistics.fewest_samples(0.95) == 6
    assert statistics.fewest_samples(0.99) == 8


def test_median_interval_of_ten_is_from_the_second_to_the_ninth() -> None:
    """Binomial(10, 1/2): P(2nd..9th) = 0.9785, P(3rd..8th) = 0.8906, so the second and ninth are the 95 % ranks."""
    interval = statistics.median_interval([10, 9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert (interval.low, interval.high) == (2, 9)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_median_interval_is_that_of_scipys_quantile_test(confidence: float) -> None:
    for count in range(statistics.fewest_samples(confidence), 200):
        samples = np.random.default_rng(count).normal(size=count)
        ours = statistics.median_interval(samples, confidence)
        theirs = stats.quantile_test(samples, p=0.5).confidence_interval(confidence)
        assert (ours.low, ours.high) == (theirs.low, theirs.high), count


def test_median_interval_refuses_five_samples() -> None:
    with pytest.raises(ValueError, match=r"5 samples .* at least 6"):
        statistics.median_interval([1, 2, 3, 4, 5])


@pytest.mark.parametrize("bad", [[1.0, np.nan] * 5, [1.0, np.inf] * 5])
def test_samples_that_are_not_finite_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        statistics.summarise(bad)


def test_median_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    draws = rng.exponential(size=(1000, 25))
    covered = [statistics.median_interval(row).contains(np.log(2)) for row in draws]
    assert 0.94 <= np.mean(covered) <= 0.985


@given(positive)
def test_median_lies_in_its_interval_and_scales(samples: list[float]) -> None:
    summary = statistics.summarise(samples)
    assert summary.interval is not None
    assert summary.interval.contains(summary.median)
    assert summary.p5 <= summary.median <= summary.p95
    doubled = statistics.summarise([2 * s for s in samples])
    assert doubled.median == 2 * summary.median


def test_summary_of_few_samples_has_no_interval() -> None:
    assert statistics.summarise([1.0, 2.0]).interval is None
    assert statistics.relative_half_width([1.0, 2.0]) is None


def test_relative_half_width() -> None:
    assert statistics.relative_half_width([99, 99, 99, 101, 101, 101, 100]) == pytest.approx(0.01)


def test_bca_interval_is_repeatable_and_near_the_normal_one() -> None:
    samples = np.random.default_rng(2).normal(10, 1, 200)
    first, second = statistics.bca_interval(samples), statistics.bca_interval(samples)
    assert first == second
    assert first.half_width == pytest.approx(1.96 / np.sqrt(200), rel=0.15)
    assert first.contains(float(np.mean(samples)))


def test_bca_interval_of_equal_samples_has_no_width() -> None:
    interval = statistics.bca_interval([3.0, 3.0, 3.0])
    assert (interval.low, interval.high) == (3.0, 3.0)


def test_means() -> None:
    assert statistics.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert statistics.harmonic_mean([1.0, 3.0]) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="not positive"):
        statistics.geometric_mean([1.0, 0.0])
    with pytest.raises(ValueError, match="not positive"):
        statistics.harmonic_mean([-1.0])


def test_ratio_of_medians_sees_a_true_difference_and_no_false_one() -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(100, 1, 40)
    slower = statistics.ratio_of_medians(rng.normal(103, 1, 40), base)
    assert slower.differs_from_one
    assert slower.interval.contains(1.03)
    same = statistics.ratio_of_medians(rng.normal(100, 1, 40), base)
    assert not same.differs_from_one


def test_paired_ratio_cancels_drift_that_hides_the_difference_otherwise() -> None:
    rng = np.random.default_rng(4)
    drift = np.linspace(100, 140, 30)
    a, b = drift * rng.normal(1.02, 0.002, 30), drift * rng.normal(1.0, 0.002, 30)
    assert statistics.paired_ratio(a, b).differs_from_one
    assert not statistics.ratio_of_medians(a, b).differs_from_one


def test_paired_ratio_needs_pairs() -> None:
    with pytest.raises(ValueError, match="7 samples against 6"):
        statistics.paired_ratio([1.0] * 7, [1.0] * 6)


def test_differ() -> None:
    assert statistics.differ([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16])
    assert not statistics.differ([1, 2, 3, 4, 5, 6], [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
