"""`fig_accuracy_by_format`: two errors kept apart, of kernels on quantised operands and of the formats."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.models.toggles import ORDERED
from narrowbench.report import style
from narrowbench.report.kernels import BLACK, in_legend_order, kernel_style
from narrowbench.report.load import Material
from narrowbench.report.ratios import bits
from narrowbench.report.select import CONSTANT, at, places, timed

_NOTE = (
    "Relative Frobenius norm. Kernel error: against float64 on the same quantised operands, rounding of the output "
    "included; the largest case of each K\nor distribution. Format error: float64 on the quantised operands against "
    "the original ones; median of the cases. Its figures on other data are in a table."
)


def figure(material: Material) -> Figure:
    """Kernel error over K and by data, and format error by format, for every device of the record."""
    lines = timed(material.origin("record"))
    lines = lines[lines.kernel_error.notna() & ~lines.distribution.isin([*CONSTANT, *ORDERED])]
    lines = lines[lines.epilogue == "none"]
    found = places(lines)
    if not found:
        return style.empty_figure("No GEMM passed the oracle yet: there is no accuracy to show.")
    figure = Figure(figsize=(style.PAGE_IN, 0.7 + 2.0 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), 3, squeeze=False)
    for row, place in zip(grid, found, strict=True):
        here = at(lines, place)
        _over_k(row[0], here[here.distribution == "normal"])
        _by_data(row[1], here)
        _by_format(row[2], here[(here.distribution == "normal") & here.format_error.notna()])
        row[0].set_title(f"{material.place_name(place)}\nkernel error, normal data", loc="left")
    style.legend_above(figure, style.legend_keys(lines.kernel))
    style.footnote(figure, _NOTE)
    return figure


def _over_k(axes: Axes, lines: pd.DataFrame) -> None:
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
    axes.set_ylabel("relative error")
    axes.set_xlim(lines.k.min() / 1.5, lines.k.max() * 1.5)
    axes.set_ylim(lines.kernel_error[lines.kernel_error > 0].min() / 2, lines.kernel_error.max() * 2)


def _by_data(axes: Axes, lines: pd.DataFrame) -> None:
    """The largest error of each kernel on each distribution, `normal` on top."""
    axes.set_title("kernel error by data", loc="left")
    names = sorted(lines.distribution.unique(), key=lambda name: (name != "normal", name))
    kernels = in_legend_order(lines.kernel)
    for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
        worst = lines[lines.kernel == kernel].groupby("distribution").kernel_error.max()
        worst = worst[worst > 0]
        axes.plot(worst, [names.index(name) + aside for name in worst.index], linestyle="none", **style.marks(kernel))
    _name_rows(axes, [name.replace("_", " ") for name in names])
    axes.set_xlim(lines.kernel_error[lines.kernel_error > 0].min() / 2, lines.kernel_error.max() * 2)


def _by_format(axes: Axes, lines: pd.DataFrame) -> None:
    axes.set_title("format error, normal data", loc="left")
    errors = lines.groupby(["a_format", "b_format"]).format_error.median()
    order = sorted(errors.index, key=lambda pair: (-bits(pair[0]), -bits(pair[1]), *pair))
    for y, pair in enumerate(order):
        if errors[pair] == 0:
            axes.text(0.02, y, "exact", va="center", transform=axes.get_yaxis_transform())
        else:
            axes.plot(errors[pair], y, color=BLACK, marker="o", linestyle="none")
    _name_rows(axes, [a if a == b else f"{a} × {b}" for a, b in order])
    axes.set_xlim(1e-5, 1)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One row for each name, the first on top, over a logarithmic axis of errors."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlabel("relative error")
