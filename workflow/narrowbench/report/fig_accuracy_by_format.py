"""`fig_accuracy_by_format`: two errors kept apart, of kernels on quantised operands and of the formats."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import BLACK, in_legend_order, kernel_style
from narrowbench.report.load import Material
from narrowbench.report.ratios import bits
from narrowbench.report.select import at, places, timed

_NOTE = (
    "Relative Frobenius norm. Kernel error: against float64 on the same quantised operands, rounding of the output "
    "included; the largest case of each K,\nnormal data. Format error: float64 on the quantised operands against the "
    "original ones, the median and the range over all cases and input distributions."
)


def figure(material: Material) -> Figure:
    """Kernel error over K and format error by format, for every device of the record."""
    lines = timed(material.origin("record"))
    lines = lines[lines.kernel_error.notna()]
    found = places(lines)
    if not found:
        return style.empty_figure("No GEMM passed the oracle yet: there is no accuracy to show.")
    figure = Figure(figsize=(style.PAGE_IN, 0.7 + 2.0 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), 2, width_ratios=(3, 2), squeeze=False)
    for row, place in zip(grid, found, strict=True):
        _kernel_error(row[0], at(lines, place), material.place_name(place))
        _format_error(row[1], at(lines, place))
    style.legend_above(figure, style.legend_keys(lines.kernel), columns=5)
    style.footnote(figure, _NOTE)
    return figure


def _kernel_error(axes: Axes, lines: pd.DataFrame, name: str) -> None:
    lines = lines[lines.distribution == "normal"]
    axes.set_title(f"{name}: kernel error", loc="left")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for kernel in in_legend_order(lines.kernel):
        worst = lines[lines.kernel == kernel].groupby("k").kernel_error.max().sort_index()
        axes.plot(
            worst.index.astype(int),
            worst.to_numpy(),
            linestyle=kernel_style(kernel).line,
            linewidth=0.7,
            **style.marks(kernel),
        )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("K")
    axes.set_ylabel("relative error")


def _format_error(axes: Axes, lines: pd.DataFrame) -> None:
    axes.set_title("format error", loc="left")
    known = lines[lines.format_error.notna()]
    pairs = sorted(set(zip(known.a_format, known.b_format, strict=True)), key=lambda pair: (-bits(pair[0]), pair))
    for y, (a_format, b_format) in enumerate(pairs):
        errors = known[(known.a_format == a_format) & (known.b_format == b_format)].format_error
        middle = errors.median()
        if middle == 0:
            axes.text(0.02, y, "exact", va="center", transform=axes.get_yaxis_transform())
            continue
        spread = [[middle - errors.min()], [errors.max() - middle]]
        axes.errorbar([middle], [y], xerr=spread, color=BLACK, marker="o", elinewidth=0.8, linestyle="none")
    axes.set_yticks(range(len(pairs)), [a if a == b else f"{a} × {b}" for a, b in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(3e-4, 1)
    axes.set_xlabel("relative error")
