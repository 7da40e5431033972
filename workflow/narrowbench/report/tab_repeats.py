"""`tab_repeats`: joules of the same case on several boards or days, over those that were measured first."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from narrowbench.models.statistics import Ratio
from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, unpaired
from narrowbench.report.select import BOARD, SAME_CASE, board_of, timed_anywhere
from narrowbench.report.tables import Column, Table, ratio


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
    found = list(pairs(material.of_record.frame))
    rows = [_row(material, line, first) for line, first in found]
    note = (
        "Later over first measurement of the same case, with a 95 % bootstrap interval of the ratio of medians. Joules "
        "agree within intervals where that of their ratio holds 1, and within sensors where the ratio differs from 1 "
        "by no more than the gain errors of both boards' sensors together: boards and meters are then not told apart."
    )
    days = {_day(each) for pair in found for each in pair}
    if len(days) == 1:
        note += f" All are of {days.pop()}, on other boards and hours apart: no other day is on record yet."
    return Table("Joules measured again, on another board or day", columns, rows, note)


def _row(material: Material, line: pd.Series, first: pd.Series) -> list[Any]:
    joules = unpaired(line.windows_j, first.windows_j)
    return [
        material.device_name(line.device),
        line["mode"],
        f"{line.m}×{line.n}×{line.k}",
        line.distribution,
        line.kernel,
        *(when for each in (first, line) for when in (board_of(each), _day(each))),
        as_reading(unpaired(line.samples_s, first.samples_s)),
        as_reading(joules),
        agreement(joules, line, first),
    ]


def pairs(frame: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Each later measurement with the first of its case, where board or day is another; whatever suite asked for it."""
    lines = timed_anywhere(frame)
    for _, case in lines[lines.energy_j.notna()].groupby(SAME_CASE):
        first = case.iloc[0]
        for _, line in case.iloc[1:].iterrows():
            if _is_other_board(line, first) or _day(line) != _day(first):
                yield line, first


def agreement(found: Ratio | None, line: pd.Series, first: pd.Series) -> str | None:
    """Within what the joules of two measurements agree, of which `found` is the ratio; None without one."""
    if found is None:
        return None
    if not found.differs_from_one:
        return "within intervals"
    gains = [line.gain_error_relative, first.gain_error_relative]
    within = _is_other_board(line, first) and not pd.isna(gains).any() and abs(found.value - 1) <= sum(gains)
    return "within sensors" if within else "no"


def _day(line: pd.Series) -> str:
    return str(line.utc_time[:10])


def _is_other_board(line: pd.Series, first: pd.Series) -> bool:
    """Whether the two are known to be of different boards."""
    boards = [line[BOARD], first[BOARD]]
    return not pd.isna(boards).any() and boards[0] != boards[1]
