"""`tab_repeats`: measurements that were repeated on another board or day, over the first of each."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from narrowbench.models.statistics import Ratio, fewest_samples, ratio_of_medians
from narrowbench.report.load import Material
from narrowbench.report.select import SAME_WORK, Reading, once, repeated, timed
from narrowbench.report.tables import Column, Table, count, ratio

#: What tells a case from others, beside the number of its repetition.
_SAME_CASE = [*SAME_WORK, "kernel", "a_format", "b_format"]


def table(material: Material) -> Table:
    """A line for each repetition of the record whose first measurement is there too."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("shape", "M×N×K"),
        Column("distribution", "data"),
        Column("kernel", "kernel"),
        count("repeat", "repeat"),
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
            line["repeat"],
            _same(line.device_uuid_hash, first.device_uuid_hash),
            _same(line.utc_time[:10], first.utc_time[:10]),
            _reading(_ratio(line, first, "time_s", "samples_s")),
            _reading(_ratio(line, first, "energy_j", "windows_j")),
            agreement(line, first),
        ]
        for line, first in pairs(material.of_record.frame)
    ]
    note = (
        "Repetition over first measurement, with a 95 % bootstrap interval of the ratio of medians. Joules agree "
        "within intervals where that of their ratio holds 1, and within sensors where the ratio differs from 1 by no "
        "more than the gain errors of both boards' sensors together: boards and meters are then not told apart."
    )
    return Table("Measurements repeated on another board or day", columns, rows, note)


def pairs(frame: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Each repetition with the first measurement of its case, in the order of the frame."""
    firsts = {_case(line): line for _, line in once(timed(frame)).iterrows()}
    for _, line in repeated(frame).iterrows():
        if _case(line) in firsts:
            yield line, firsts[_case(line)]


def agreement(line: pd.Series, first: pd.Series) -> str | None:
    """Within what the joules of two measurements agree; None where one of them has none."""
    found = _ratio(line, first, "energy_j", "windows_j")
    if found is None:
        return None
    if not found.differs_from_one:
        return "within intervals"
    gains = [line.gain_error_relative, first.gain_error_relative]
    is_other_meter = _same(line.device_uuid_hash, first.device_uuid_hash) == "another"
    within = is_other_meter and not pd.isna(gains).any() and abs(found.value - 1) <= sum(gains)
    return "within sensors" if within else "no"


def _case(line: pd.Series) -> tuple[object, ...]:
    return tuple(line[name] for name in _SAME_CASE)


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
