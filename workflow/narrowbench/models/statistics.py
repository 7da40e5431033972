"""Statistics of measured samples: medians with order-statistic intervals, bootstrap intervals, means, ratios. No JAX.

Rules after Hoefler & Belli, «Scientific benchmarking of parallel computing systems» (SC15): medians with
non-parametric intervals, costs by arithmetic mean, rates by harmonic mean, ratios by geometric mean. Samples are
never removed here. `scipy.stats` is imported where it is used: it takes over a second.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

#: Resamples of every bootstrap: the Monte Carlo error of a 95 % bound is then well below the interval's width.
BOOTSTRAP_RESAMPLES = 9999
#: Every bootstrap starts from this seed, so that a table built twice is the same.
BOOTSTRAP_SEED = 20_251

type Samples = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Interval:
    """A confidence interval, in the unit of the samples."""

    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Summary:
    """What is reported of one case. `interval` is null below six samples: no order-statistic 95 % interval exists."""

    median: float
    interval: Interval | None
    p5: float
    p95: float
    samples: int


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval. It differs from 1 only if the interval leaves 1 out."""

    value: float
    interval: Interval

    @property
    def differs_from_one(self) -> bool:
        return not self.interval.contains(1.0)


def _checked(samples: Samples, fewest: int, who: str) -> np.ndarray:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size < fewest:
        raise ValueError(
            f"{who}: {values.size} samples of shape {values.shape}, at least {fewest} in one row are needed"
        )
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{who}: a sample is not finite")
    return values


def fewest_samples(confidence: float = 0.95) -> int:
    """Samples below which no two-sided order-statistic interval of the median reaches `confidence`: 6 at 95 %."""
    return int(np.ceil(1 - np.log2(1 - confidence)))


def median_interval(samples: Samples, confidence: float = 0.95) -> Interval:
    """Order-statistic interval of the median: no distribution is assumed.

    Raises ValueError below `fewest_samples(confidence)` samples. The same as `scipy.stats.quantile_test`, which takes
    longer to import than many a command to run.
    """
    values = np.sort(_checked(samples, fewest_samples(confidence), "median_interval"))
    rank = _rank(values.size, confidence)
    return Interval(float(values[rank - 1]), float(values[-rank]), confidence)


@functools.cache
def _rank(count: int, confidence: float) -> int:
    """The samples of this rank from below and from above bound the median.

    As many samples fall below the median as coins of `count` show heads: fewer than the rank with a chance of less
    than half of what the confidence leaves.
    """
    chances = special.bdtr(np.arange(count + 1), count, 0.5)
    return int(np.searchsorted(chances, (1 - confidence) / 2))


def relative_half_width(samples: Samples, confidence: float = 0.95) -> float | None:
    """Half width of the median's interval over the median; None while there are too few samples for an interval."""
    if len(samples) < fewest_samples(confidence):
        return None
    return median_interval(samples, confidence).half_width / float(np.median(samples))


def summarise(samples: Samples, confidence: float = 0.95) -> Summary:
    """Median, its interval, 5th and 95th percentile and the number of samples."""
    values = _checked(samples, 1, "summarise")
    p5, median, p95 = (float(q) for q in np.percentile(values, [5, 50, 95]))
    enough = values.size >= fewest_samples(confidence)
    return Summary(median, median_interval(values, confidence) if enough else None, p5, p95, int(values.size))


def bca_interval(
    samples: Samples,
    statistic: Callable[..., np.ndarray] = np.mean,
    confidence: float = 0.95,
    seed: int = BOOTSTRAP_SEED,
) -> Interval:
    """Bias-corrected and accelerated bootstrap interval of `statistic(samples, axis=...)`; seeded, so repeatable.

    Raises ValueError below two samples. Samples that are all equal give an interval of no width.
    """
    values = _checked(samples, 2, "bca_interval")
    if np.ptp(values) == 0:
        point = float(statistic(values, axis=-1))
        return Interval(point, point, confidence)
    from scipy import stats

    found = stats.bootstrap(
        (values,),
        statistic,
        confidence_level=confidence,
        n_resamples=BOOTSTRAP_RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high), confidence)


def significant(value: float, digits: int) -> float:
    """The nearest number of so many significant decimal digits; what is not finite stays as it is."""
    return float(f"{value:.{digits - 1}e}")


def geometric_mean(ratios: Samples) -> float:
    """Mean of ratios. Raises ValueError unless all are positive."""
    values = _checked(ratios, 1, "geometric_mean")
    if np.any(values <= 0):
        raise ValueError(f"geometric_mean: {values.min()} is not positive")
    from scipy import stats

    return float(stats.gmean(values))


def harmonic_mean(rates: Samples) -> float:
    """Mean of rates of equal work. Raises ValueError unless all are positive."""
    values = _checked(rates, 1, "harmonic_mean")
    if np.any(values <= 0):
        raise ValueError(f"harmonic_mean: {values.min()} is not positive")
    from scipy import stats

    return float(stats.hmean(values))


def ratio_of_medians(
    numerator: Samples, denominator: Samples, confidence: float = 0.95, seed: int = BOOTSTRAP_SEED
) -> Ratio:
    """median(numerator) / median(denominator) of two unpaired sets of samples, with a percentile bootstrap interval.

    Percentile and not BCa: the acceleration is a jackknife, which is not consistent for a median.
    Raises ValueError below six samples on a side or for a sample that is not positive.
    """
    top, bottom = (_positive(side, confidence, "ratio_of_medians") for side in (numerator, denominator))
    rng = np.random.default_rng(seed)
    resampled = _resampled_medians(top, rng) / _resampled_medians(bottom, rng)
    return Ratio(float(np.median(top) / np.median(bottom)), _percentile_interval(resampled, confidence))


def paired_ratio(numerator: Samples, denominator: Samples, confidence: float = 0.95) -> Ratio:
    """Median of the ratios of paired samples (taken one after the other, so that drift cancels), with its
    order-statistic interval.

    Raises ValueError if the lengths differ, below six pairs, or for a sample that is not positive.
    """
    top, bottom = (_positive(side, confidence, "paired_ratio") for side in (numerator, denominator))
    if top.size != bottom.size:
        raise ValueError(f"paired_ratio: {top.size} samples against {bottom.size}; pairs need as many on each side")
    ratios = top / bottom
    return Ratio(float(np.median(ratios)), median_interval(ratios, confidence))


def differ(first: Samples, second: Samples, significance: float = 0.05) -> bool:
    """Whether two sets of samples differ in location by a two-sided Mann-Whitney test."""
    from scipy import stats

    a, b = (_checked(side, 1, "differ") for side in (first, second))
    return bool(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue < significance)


def _positive(samples: Samples, confidence: float, who: str) -> np.ndarray:
    values = _checked(samples, fewest_samples(confidence), who)
    if np.any(values <= 0):
        raise ValueError(f"{who}: {values.min()} is not positive")
    return values


def _resampled_medians(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picks = rng.integers(values.size, size=(BOOTSTRAP_RESAMPLES, values.size))
    medians: np.ndarray = np.median(values[picks], axis=1)
    return medians


def _percentile_interval(values: np.ndarray, confidence: float) -> Interval:
    tail = (1 - confidence) / 2 * 100
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(float(low), float(high), confidence)
