"""`tab_accuracy`: the two errors of every kernel of the record, largest over its cases."""

from typing import Any

import pandas as pd

from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.select import CONSTANT, timed
from narrowbench.report.tables import Column, Table, count
from narrowbench.report.units import scientific


def table(material: Material) -> Table:
    """A line a device, formats, input distribution and kernel."""
    columns = [
        Column("device", "device"),
        Column("kernel", "kernel"),
        Column("formats", "A × B → C"),
        Column("distribution", "data"),
        count("cases", "cases"),
        count("largest_k", "K up to"),
        _error("largest_kernel_error", "kernel error"),
        _error("tolerance", "its tolerance"),
        _error("largest_element_error", "largest element"),
        _error("median_format_error", "format error"),
    ]
    lines = timed(material.origin("record"))
    lines = lines[~lines.distribution.isin(CONSTANT)]
    groups = lines.groupby(["device", "a_format", "b_format", "out_format", "distribution"])
    rows = [
        _row(material, of_formats[of_formats.kernel == kernel])
        for _, of_formats in groups
        for kernel in in_legend_order(of_formats.kernel)
    ]
    note = (
        "Kernel error: relative Frobenius norm against float64 on the same quantised operands, rounding of the "
        "output included, the largest of all cases; largest element: of that error, over the RMS of the exact "
        "result. Format error: float64 on quantised operands against the original ones, median."
    )
    return Table("Accuracy of the kernels and of the formats", columns, rows, note)


def _error(name: str, heading: str) -> Column:
    return Column(name, heading, scientific, "right")


def _row(material: Material, lines: pd.DataFrame) -> list[Any]:
    worst = lines.sort_values("kernel_error").iloc[-1]
    return [
        material.device_name(worst.device),
        worst.kernel,
        f"{worst.a_format} × {worst.b_format} → {worst.out_format}",
        worst.distribution,
        len(lines),
        lines.k.max(),
        worst.kernel_error,
        worst.tolerance,
        lines.kernel_error_max.max(),
        lines.format_error.median(),
    ]
