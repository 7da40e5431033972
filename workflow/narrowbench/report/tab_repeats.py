"""`tab_repeats`: joules of the same case on several boards or days, over those that were measured first."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from narrowbench.models.statistics import Ratio, fewest_samples, ratio_of_medians
from narrowbench.report.load import Material
from narrowbench.report.select import BOARD, SAME_WORK, Reading, repeated, timed
from narrowbench.report.tables import Column, Table, ratio

#: What tells a case from others, beside the number of its repetition.
_SAME_CASE = [*SAME_WORK, "kernel", "a_format", "b_format"]


def table(material: Material) -> Table:
    """A line for each later measurement of a case of the record on another board or day."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("shape", "M×N×K"),
        Column("distribution", "data"),
        Column("kernel", "kernel"),
        Column("first_board", "first board"),
        Column("first_day", "day"),
        Column("board", "board"),
        Column("day", "day"),
        ratio("time_ratio", "time"),
        ratio("energy_ratio", "energy"),
        Column("agreement", "joules agree"),
    ]
    rows = [
        [
            material.device_name(line.device),
            line["mode"],
            f"{line.m}×{line.n}×{line.k}",
            line.distribution,
            line.kernel,
            *(known for each in (first, line) for known in (_board(each), _day(each))),
            _reading(_ratio(line, first, "time_s", "samples_s")),
            _reading(_ratio(line, first, "energy_j", "windows_j")),
            agreement(line, first),
        ]
        for line, first in pairs(material.of_record.frame)
    ]
    note = (
        "Later over first measurement of the same case, with a 95 % bootstrap interval of the ratio of medians. Joules "
        "agree within intervals where that of their ratio holds 1, and within sensors where the ratio differs from 1 "
        "by no more than the gain errors of both boards' sensors together: boards and meters are then not told apart."
    )
    return Table("Joules measured again, on another board or day", columns, rows, note)


def pairs(frame: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Each later measurement with the first of its case, where board or day is another; whatever suite asked for it."""
    lines = pd.concat([timed(frame), repeated(frame)]).sort_values("utc_time", kind="stable")
    for _, case in lines[lines.energy_j.notna()].groupby(_SAME_CASE):
        first = case.iloc[0]
        for _, line in case.iloc[1:].iterrows():
            if "another" in (_same(line[BOARD], first[BOARD]), _same(_day(line), _day(first))):
                yield line, first


def agreement(line: pd.Series, first: pd.Series) -> str | None:
    """Within what the joules of two measurements agree; None where one of them has none."""
    found = _ratio(line, first, "energy_j", "windows_j")
    if found is None:
        return None
    if not found.differs_from_one:
        return "within intervals"
    gains = [line.gain_error_relative, first.gain_error_relative]
    is_other_meter = _same(line[BOARD], first[BOARD]) == "another"
    within = is_other_meter and not pd.isna(gains).any() and abs(found.value - 1) <= sum(gains)
    return "within sensors" if within else "no"


def _board(line: pd.Series) -> str | None:
    """The first digits of the board's hash, enough to tell boards apart."""
    return None if pd.isna(line[BOARD]) else str(line[BOARD])[:6]


def _day(line: pd.Series) -> str:
    return str(line.utc_time[:10])


def _ratio(line: pd.Series, first: pd.Series, cost: str, samples: str) -> Ratio | None:
    if pd.isna([line[cost], first[cost]]).any():
        return None
    ours, theirs = (np.asarray(each[samples]) for each in (line, first))
    return ratio_of_medians(ours, theirs) if min(len(ours), len(theirs)) >= fewest_samples() else None


def _reading(found: Ratio | None) -> Reading | None:
    return None if found is None else Reading(found.value, found.interval)


def _same(ours: object, theirs: object) -> str | None:
    if pd.isna([ours, theirs]).any():
        return None
    return "the same" if ours == theirs else "another"
