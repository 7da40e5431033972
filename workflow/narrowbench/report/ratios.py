"""Each kernel against the best baseline for the same work: the ratio of medians with its interval."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from narrowbench.models.statistics import Ratio, fewest_samples, paired_ratio, ratio_of_medians
from narrowbench.report.kernels import kernel_style
from narrowbench.report.select import BOARD, OF_GROUPS, SAME_CASE, SAME_WORK, Reading, board_of, is_native
from narrowgemm.formats.spec import format_named


@dataclass(frozen=True)
class Comparison:
    """One kernel's line against a baseline's; `ratio` above 1 is in the kernel's favour.

    is_paired:     whether the samples were taken in turn, so that the ratio is of pairs and drift cancels.
    is_same_board: whether both ran on the very same board.
    """

    line: pd.Series
    baseline: pd.Series
    ratio: Ratio
    is_paired: bool
    is_same_board: bool

    @property
    def pairing(self) -> str:
        """How the samples of the two were taken, as tables say it."""
        if self.is_paired:
            return "in turn"
        return "apart" if self.is_same_board else "two boards"

    def differs(self, spread: float) -> bool:
        """Whether the interval leaves out one; of two boards, also as much as they differ by themselves."""
        margin = 1.0 if self.is_same_board else spread
        interval = self.ratio.interval
        return bool(interval.low > margin or interval.high * margin < 1)


def speed_ups(lines: pd.DataFrame) -> list[Comparison]:
    """Every line of a kernel of ours over the fastest baseline for the same work, in times as fast.

    Of the same board, where that has any; else of another one. A baseline counts if it multiplies in the format of the
    kernel's activations, and really does: not one that the compiled program widens. Lines without a baseline, or with
    too few samples for an interval, are left out.
    """
    return _against_best(lines, "time_s", "samples_s")


def board_spread(lines: pd.DataFrame) -> float:
    """How many times as long a baseline took on one board as on another for the same work, at most; 1 if never on two.

    Of baselines alone: another time of a kernel of ours may be of other code.
    """
    baselines = lines[_are_baselines(lines)]
    case = [*SAME_CASE, *OF_GROUPS, "config"]
    medians = baselines.groupby([*case, BOARD], dropna=False).time_s.median()
    by_case = medians.groupby(case, dropna=False)
    return float((by_case.max() / by_case.min()).max()) if len(medians) else 1.0


def energy_savings(lines: pd.DataFrame) -> list[Comparison]:
    """The same in joules: how many times the baseline's joules are ours, against the baseline that spends least.

    Of one board only: sensors differ, and so do boards.
    """
    known = lines[lines.energy_j.notna()]
    boards = [here for _, here in known.groupby(BOARD, sort=True, dropna=False)]
    return [found for here in boards for found in _against_best(here, "energy_j", "windows_j")]


def over_best(lines: pd.DataFrame, others: pd.DataFrame, quantity: str) -> list[Comparison]:
    """Every line over the one of `others` that takes least for the same work, whatever the formats of either.

    quantity: `time`, or `joules`, of one board only. Lines without another, or with too few samples, are left out.
    """
    others = others[is_native(others)]
    if quantity == "time":
        return _compared(_with_best(lines, others, "time_s", _shape), "samples_s")
    pairs = _with_best(lines[lines.energy_j.notna()], others[others.energy_j.notna()], "energy_j", _shape)
    return [found for found in _compared(pairs, "windows_j") if found.is_same_board]


def why_no_ratio(lines: pd.DataFrame) -> str:
    """Why none of these lines, which have at least one, is a ratio."""
    if not any(True for _ in _pairs(lines, "time_s")):
        if _are_baselines(lines).all():
            kernels = ", ".join(sorted(lines.kernel.unique()))
            return f"no ratio: baselines alone were measured ({kernels}), and no kernel of ours beside them"
        return "no ratio: no baseline was measured for the same work, in the same mode and format of activations"
    return f"no ratio: fewer than the {fewest_samples()} samples that an interval needs"


def with_joules(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines whose joules come from enough windows for an interval."""
    known = lines[lines.energy_j.notna()]
    return known[known.windows_j.map(len) >= fewest_samples()] if not known.empty else known


def unpaired(top: Any, bottom: Any) -> Ratio | None:
    """The ratio of medians of samples taken apart; None where one side has too few for an interval."""
    if min(len(top), len(bottom)) < fewest_samples():
        return None
    return ratio_of_medians(np.asarray(top), np.asarray(bottom))


def as_reading(found: Ratio | None) -> Reading | None:
    """A ratio as tables show it."""
    return None if found is None else Reading(found.value, found.interval)


def bits(format_name: str) -> int:
    """Bits of an element of a format."""
    return format_named(format_name).element.bits


def _against_best(lines: pd.DataFrame, cost: str, samples: str) -> list[Comparison]:
    return _compared(_pairs(lines, cost), samples)


def _compared(pairs: Iterable[tuple[pd.Series, pd.Series]], samples: str) -> list[Comparison]:
    return [
        _compare(line, other, samples)
        for line, other in pairs
        if min(len(line[samples]), len(other[samples])) >= fewest_samples()
    ]


def _pairs(lines: pd.DataFrame, cost: str) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Every line of a kernel of ours with the baseline for the same work that costs least, if it can of its board."""
    is_baseline = _are_baselines(lines)
    baselines = lines[is_baseline & is_native(lines)]
    return _with_best(lines[~is_baseline], baselines[baselines.a_format == baselines.b_format], cost, _work)


def _with_best(
    lines: pd.DataFrame, others: pd.DataFrame, cost: str, work_of: Callable[[pd.Series], tuple[object, ...]]
) -> Iterator[tuple[pd.Series, pd.Series]]:
    best: dict[tuple[object, ...], pd.Series] = {}
    for _, line in others.iterrows():
        for work in (work_of(line), (*work_of(line), board_of(line))):
            if work not in best or line[cost] < best[work][cost]:
                best[work] = line
    for _, line in lines.iterrows():
        other = best.get((*work_of(line), board_of(line)), best.get(work_of(line)))
        if other is not None:
            yield line, other


def _are_baselines(lines: pd.DataFrame) -> pd.Series:
    return lines.kernel.map(lambda name: kernel_style(name).is_baseline).astype(bool)


def _compare(line: pd.Series, baseline: pd.Series, samples: str) -> Comparison:
    top, bottom = np.asarray(baseline[samples]), np.asarray(line[samples])
    took_turns = not pd.isna(line.session) and not pd.isna(baseline.session) and line.session == baseline.session
    is_paired = took_turns and line.dropped == baseline.dropped == 0 and len(top) == len(bottom)
    ratio = (paired_ratio if is_paired else ratio_of_medians)(top, bottom)
    is_same_board = board_of(line) == board_of(baseline)
    return Comparison(line, baseline, ratio, is_paired=bool(is_paired), is_same_board=is_same_board)


def _work(line: pd.Series) -> tuple[object, ...]:
    return (bits(line.a_format), *_shape(line))


def _shape(line: pd.Series) -> tuple[object, ...]:
    groups = (None if pd.isna(line[name]) else line[name] for name in OF_GROUPS)
    return (*(line[name] for name in SAME_WORK), *groups)
