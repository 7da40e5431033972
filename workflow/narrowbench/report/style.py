"""How every figure looks, and how it is written: one legend key a kernel, and the same bytes every time.

A filled marker is measured; a hollow one is modelled and says so in the legend.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import matplotlib as mpl
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from narrowbench.report.kernels import GREY, in_legend_order, kernel_style
from narrowbench.store.whole import whole

Evidence = Literal["measured", "modelled"]

#: Inches: width of the paper's text.
PAGE_IN = 7.0

_PARAMETERS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "figure.titlesize": 8,
    "mathtext.fontset": "dejavusans",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "errorbar.capsize": 1.5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "narrowgemm",
}


def marks(name: str, evidence: Evidence = "measured") -> dict[str, Any]:
    """Arguments of `Axes.plot` and `errorbar` for a kernel's points: filled if measured, hollow if modelled."""
    style = kernel_style(name)
    is_stroke = style.marker in "x+1234"
    is_hollow = evidence == "modelled" or is_stroke
    return {
        "color": style.colour,
        "marker": style.marker,
        "markeredgewidth": 0.9 if is_hollow else 0.4,
        "markerfacecolor": "none" if is_hollow else style.colour,
        "markeredgecolor": style.colour if is_hollow else "white",
    }


def legend_keys(kernels: Iterable[str], evidence: Evidence = "measured", with_line: bool = True) -> list[Line2D]:
    """One key for each kernel: its marker, on its line where the figure joins the points, labelled with the stem."""
    suffix = "" if evidence == "measured" else " (modelled)"
    return [
        Line2D(
            [],
            [],
            linestyle=kernel_style(name).line if with_line else "none",
            label=f"{name}{suffix}",
            **marks(name, evidence),
        )
        for name in in_legend_order(kernels)
    ]


def legend_above(figure: Figure, keys: Sequence[Artist], columns: int = 5) -> float:
    """The figure's one legend, above its panels, in as many columns as fit; its height in inches."""
    is_laid_out = figure.get_layout_engine() is not None
    place: Any = "outside upper center" if is_laid_out else "upper center"
    for count in range(min(columns, len(keys)), 0, -1):
        legend = figure.legend(handles=keys, loc=place, ncols=count, handlelength=3)
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or count == 1:
            return float(box.height) / figure.dpi
        legend.remove()
    return 0.0


def footnote(figure: Figure, text: str) -> None:
    """The line under a figure: what data went in, and what a mark and its bar stand for."""
    figure.supxlabel(text, fontsize=6, color=GREY, x=0.01, ha="left", va="bottom")


def plain_decades(axis: Axis, low: float, high: float) -> None:
    """Label a logarithmic axis in full: 0.1, 1, 10, 1,000; at 2 and 5 too where it spans little."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def scale_to(axes: Axes, values: pd.Series, bars: pd.Series) -> None:
    """A vertical axis for values and the upper ends of their bars (null where there is none).

    From nought where the values are of one magnitude, logarithmic where they are not.
    """
    if values.max() < 8 * values.min():
        axes.set_ylim(0, 1.08 * max(values.max(), bars.fillna(0).max()))
        return
    axes.set_yscale("log")
    plain_decades(axes.yaxis, values.min(), values.max())


def side_by_side(count: int) -> list[float]:
    """Offsets that keep the points of several kernels at one position apart, and positions apart from each other."""
    step = min(0.2, 0.6 / count)
    return [step * (index - (count - 1) / 2) for index in range(count)]


def without_data(axes: Axes, why: str) -> None:
    """Say in an empty panel why it is empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", wrap=True, color=GREY, transform=axes.transAxes)


def empty_figure(why: str) -> Figure:
    """A figure for which there are no rows: one sentence in place of panels."""
    figure = Figure(figsize=(PAGE_IN, 0.6), layout="constrained")
    without_data(figure.subplots(), why)
    return figure


@contextmanager
def house() -> Iterator[None]:
    """Matplotlib's settings for all that is drawn and written inside, whatever the user's own are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, _PARAMETERS))
        yield


def save(figure: Figure, stem: str, folder: Path) -> list[Path]:
    """Write a figure as PDF, SVG and PNG; no dates and no versions inside, so that equal figures are equal bytes.

    Raises UserWarning where Matplotlib finds no room for what the figure holds: its panels would overlap.
    """
    nothing: dict[str, dict[str, Any]] = {
        "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
        "svg": {"Creator": None, "Date": None, "Format": None, "Type": None},
        "png": {"Software": None},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not again for each format
    paths = []
    for suffix, metadata in nothing.items():
        path = folder / f"{stem}.{suffix}"
        with whole(path) as draft:
            figure.savefig(draft, format=suffix, metadata=metadata)
        paths.append(path)
    return paths
