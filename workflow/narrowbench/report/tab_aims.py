"""`tab_aims`: what the kernels were meant to reach, and what the record says of each aim."""

from typing import Any

import pandas as pd

from narrowbench.models.aims import Aim
from narrowbench.models.statistics import geometric_mean
from narrowbench.report.load import Material
from narrowbench.report.ratios import over_best
from narrowbench.report.select import SAME_CASE, is_timed, once
from narrowbench.report.tab_gemm import RoofShares
from narrowbench.report.tables import Column, Table, count
from narrowgemm.formats.spec import format_named


def table(material: Material) -> Table:
    """A line an aim; normal data, rotated operands."""
    columns = [
        Column("aim", "aim"),
        Column("wanted", "wanted"),
        count("cases", "cases"),
        count("compared", "compared"),
        count("on_one_board", "own board"),
        _figure("mean", "mean"),
        _figure("lowest", "lowest"),
        Column("lowest_at", "at"),
        Column("verdict", "verdict"),
    ]
    record = material.origin("record")
    lines = record[is_timed(record) & (record.distribution == "normal") & (record.cache == "rotated")]
    note = (
        "Mean: geometric, of ratios or shares. A ratio is the time or the joules of the best of those that a case is "
        "held against, on the same board where that has one, over ours; a share is of the lower measured roof. Missed: "
        "by how much the threshold that is missed most is. Intervals do not enter the verdict, and ratios of two "
        "boards are in it as they are."
    )
    rows = [_row(aim, material, lines) for aim in material.aims]
    return Table("Aims, and what the record says of them", columns, rows, note)


def _figure(name: str, heading: str) -> Column:
    return Column(name, heading, lambda value: f"{value:.3f}", "right")


def _row(aim: Aim, material: Material, lines: pd.DataFrame) -> list[Any]:
    here = lines[(lines.device == aim.device) & (lines["mode"] == aim.mode) & (lines.epilogue == aim.epilogue)]
    ours = once(_cases(aim, here))
    found, own_board = _figures(aim, material, ours, here)
    if not found:
        return [aim.says, aim.wanted, len(ours), None, None, None, None, None, "not measured"]
    mean, lowest = geometric_mean(list(found.values())), min(found.values())
    at = ours.loc[min(found, key=lambda index: found[index])]
    missed = aim.shortfall(mean, lowest)
    verdict = f"missed by {100 * missed:.1f} %" if missed else "met"
    return [aim.says, aim.wanted, len(ours), len(found), own_board, mean, lowest, f"{at.m}×{at.n}×{at.k}", verdict]


def _cases(aim: Aim, lines: pd.DataFrame) -> pd.DataFrame:
    """Lines of the aim's kernels; where several do the same case, of the fastest alone."""
    first, last = aim.rows
    ours = lines[lines.kernel.isin(aim.kernels) & lines.m.between(first, last)]
    if aim.weight_mb is not None:
        element_bytes = ours.b_format.map(lambda name: format_named(name).bytes_per_element).astype("float64")
        megabytes = ours.n * ours.k * element_bytes / 1e6
        ours = ours[(megabytes >= aim.weight_mb[0]) & (megabytes < aim.weight_mb[1])]
    same = [name for name in SAME_CASE if name != "kernel"]
    return ours.sort_values("time_s", kind="stable").drop_duplicates(same) if len(aim.kernels) > 1 else ours


def _figures(
    aim: Aim, material: Material, ours: pd.DataFrame, lines: pd.DataFrame
) -> tuple[dict[Any, float], int | None]:
    """What each case reaches, by its line's index, and how many were compared on one board; None where none was."""
    if aim.quantity == "roof":
        shares = RoofShares(material, ours)
        known = {index: shares.measured(line) for index, line in ours.iterrows()}
        return {index: share for index, share in known.items() if share is not None}, None
    found = over_best(ours, lines[lines.kernel.isin(aim.over)], aim.quantity)
    return {each.line.name: each.ratio.value for each in found}, sum(each.is_same_board for each in found)
