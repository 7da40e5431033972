"""`fig_accuracy_by_format`: two errors kept apart, of kernels on quantised operands and of the formats."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import BLACK, in_legend_order, kernel_style
from narrowbench.report.load import Material
from narrowbench.report.ratios import bits
from narrowbench.report.select import CONSTANT, at, places, timed

_NOTE = (
    "Relative Frobenius norm, by input distribution. Kernel error: against float64 on the same quantised operands, "
    "rounding of the output included; the largest\ncase of each K. Format error: float64 on the quantised operands "
    "against the original ones; median of the cases."
)


def figure(material: Material) -> Figure:
    """Kernel error over K by distribution, and format error by format, for every device of the record."""
    lines = timed(material.origin("record"))
    lines = lines[lines.kernel_error.notna() & ~lines.distribution.isin(CONSTANT) & (lines.epilogue == "none")]
    found = places(lines)
    if not found:
        return style.empty_figure("No GEMM passed the oracle yet: there is no accuracy to show.")
    data = sorted(lines.distribution.unique(), key=_usual_first)
    figure = Figure(figsize=(style.PAGE_IN, 0.7 + 2.0 * len(found)), layout="constrained")
    widths = [1.0] * len(data) + [max(1.0, 0.5 * len(data))]
    grid = figure.subplots(len(found), len(widths), width_ratios=widths, squeeze=False)
    for row, place in zip(grid, found, strict=True):
        here = at(lines, place)
        span = (here.kernel_error[here.kernel_error > 0].min() / 2, here.kernel_error.max() * 2)
        for axes, distribution in zip(row, data, strict=False):
            _kernel_error(axes, here[here.distribution == distribution], distribution, span)
        row[0].set_title(f"{material.place_name(place)}\nkernel error, {data[0]}", loc="left")
        row[0].set_ylabel("relative error")
        _format_error(row[-1], here, data)
    style.legend_above(figure, style.legend_keys(lines.kernel))
    style.footnote(figure, _NOTE)
    return figure


def _usual_first(distribution: str) -> tuple[bool, str]:
    return distribution != "normal", distribution


def _kernel_error(axes: Axes, lines: pd.DataFrame, distribution: str, span: tuple[float, float]) -> None:
    axes.set_title(distribution, loc="left")
    if lines.empty:
        style.without_data(axes, "not measured here")
        return
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
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("K")
    axes.set_xlim(lines.k.min() / 1.5, lines.k.max() * 1.5)
    axes.set_ylim(*span)


def _format_error(axes: Axes, lines: pd.DataFrame, data: Sequence[str]) -> None:
    axes.set_title("format error", loc="left")
    known = lines[lines.format_error.notna()]
    errors = known.groupby(["a_format", "b_format", "distribution"]).format_error.median()
    order = sorted(errors.index, key=lambda case: (-bits(case[0]), *case[:2], data.index(case[2])))
    for y, case in enumerate(order):
        if errors[case] == 0:
            axes.text(0.02, y, "exact", va="center", transform=axes.get_yaxis_transform())
        else:
            axes.plot(errors[case], y, color=BLACK, marker="o", linestyle="none")
    axes.set_yticks(
        range(len(order)), [f"{a if a == b else f'{a} × {b}'}, {distribution}" for a, b, distribution in order]
    )
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(1e-5, 1)
    axes.set_xlabel("relative error")
