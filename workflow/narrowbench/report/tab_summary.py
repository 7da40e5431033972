"""`tab_summary`: each kernel over each suite of the record: ratio to the best baseline, share of the roof."""

from typing import Any

import pandas as pd

from narrowbench.models.statistics import geometric_mean
from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.ratios import Comparison, board_spread, speed_ups
from narrowbench.report.select import usual
from narrowbench.report.tab_gemm import RoofShares
from narrowbench.report.tables import Column, Table, count, percent


def table(material: Material) -> Table:
    """A line a device, mode, suite and kernel; normal data, rotated operands."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("suite", "suite"),
        Column("kernel", "kernel"),
        count("cases", "cases"),
        count("compared", "compared"),
        count("on_one_board", "own board"),
        _mean("geometric_mean_ratio", "mean ratio"),
        _mean("lowest_ratio", "lowest"),
        _mean("highest_ratio", "highest"),
        count("faster", "faster"),
        count("no_difference", "neither"),
        count("slower", "slower"),
        percent("median_share_of_measured_roof", "of roof"),
    ]
    lines = usual(material.origin("record"))
    shares = RoofShares(material, lines)
    spread = board_spread(lines)
    ratios = {comparison.line.name: comparison for comparison in speed_ups(lines)}
    rows = [
        _row(material, of_suite[of_suite.kernel == kernel], shares, ratios, spread)
        for _, of_suite in lines.groupby(["device", "mode", "suite"])
        for kernel in in_legend_order(of_suite.kernel)
    ]
    note = (
        "Mean ratio: geometric, of times as fast as the fastest baseline that multiplies in the format of the "
        "activations, of the kernel's own board where that has one, else of another; a dash for the baselines "
        "themselves. Faster, slower: the 95 % interval of the ratio leaves out 1; of two boards also by how much "
        "longer the same baseline took on one than on another, at most "
        f"{100 * (spread - 1):.1f} %. Of roof: the median of the cases, of the lower of memory and arithmetic (on "
        "zeros, where measured)."
    )
    return Table("Kernels by suite", columns, rows, note)


def _mean(name: str, heading: str) -> Column:
    return Column(name, heading, lambda value: f"{value:.3f}", "right")


def _row(
    material: Material, lines: pd.DataFrame, shares: RoofShares, ratios: dict[Any, Comparison], spread: float
) -> list[Any]:
    known = [share for _, line in lines.iterrows() if (share := shares.measured(line)) is not None]
    found = [ratios[index] for index in lines.index if index in ratios]
    values = [each.ratio.value for each in found]
    different = [each.ratio.value for each in found if each.differs(spread)]
    faster = sum(value > 1 for value in different)
    first = lines.iloc[0]
    return [
        material.device_name(first.device),
        *first[["mode", "suite", "kernel"]],
        len(lines),
        len(found) or None,
        sum(each.is_same_board for each in found) if found else None,
        *([geometric_mean(values), min(values), max(values)] if values else [None] * 3),
        *([faster, len(found) - len(different), len(different) - faster] if values else [None] * 3),
        pd.Series(known, dtype="float64").median(),
    ]
