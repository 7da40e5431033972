"""`fig_window_length`: joules of a launch by the length of the windows that they were read in."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.config import load_protocol
from narrowbench.report import style
from narrowbench.report.kernels import GREY, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.select import Place, of_windows
from narrowbench.report.units import number

_NOTE = (
    "Each window is a mark, their median a stroke. Left: the counter's joules of a launch over the median of the "
    "longest windows. Right: over power\nintegrated in the same window, where enough readings of it fell inside. Left "
    "of the dotted line windows are too short for the protocol: such rows have no energy."
)


def figure(material: Material) -> Figure:
    """Each case of the record whose windows were made of several lengths."""
    found = list(_cases(material))
    if not found:
        return style.empty_figure("No case was measured in windows of several lengths yet.")
    figure = Figure(figsize=(style.PAGE_IN, 0.6 + 2.0 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), 2, squeeze=False)
    shortest_s = load_protocol().energy.min_window_s
    for (left, right), (title, lines) in zip(grid, found, strict=True):
        left.set_title(title, loc="left")
        _panel(left, [(line, _over_longest(line, lines)) for _, line in lines.iterrows()], shortest_s)
        left.set_ylabel("counter over\nthat of the longest windows")
        _panel(right, [(line, _over_integrated(line)) for _, line in lines.iterrows()], shortest_s)
        right.set_ylabel("counter over integrated power")
    kernels = pd.concat([lines for _, lines in found]).kernel
    style.legend_above(figure, style.legend_keys(kernels, with_line=False))
    style.footnote(figure, _NOTE)
    return figure


def _cases(material: Material) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and lines of each shape and data of a place, where some kernel has several lengths with a counter."""
    lines = of_windows(material.origin("record"))
    lines = lines[lines.readings_counter_j.map(_is_read).astype(bool)]
    for (device, m, n, k, data), case in lines.groupby(["device", "m", "n", "k", "distribution"]):
        several = case.groupby("kernel").window_s.transform("nunique") > 1
        if several.any():
            name = material.place_name(Place("record", str(device)))
            yield f"{name}, {m}×{n}×{k}, {str(data).replace('_', ' ')}", case[several]


def _is_read(joules: object) -> bool:
    """Whether the counter was read in any window of a line."""
    return joules is not None and not np.isnan(np.asarray(joules, dtype=float)).all()


def _counter(line: pd.Series) -> np.ndarray:
    return np.asarray(line.readings_counter_j, dtype=float)


def _over_longest(line: pd.Series, lines: pd.DataFrame) -> np.ndarray:
    """The counter of each window over the median of the same kernel's longest windows."""
    of_kernel = lines[lines.kernel == line.kernel]
    longest = of_kernel.loc[of_kernel.window_s.idxmax()]
    return _counter(line) / float(np.nanmedian(_counter(longest)))


def _over_integrated(line: pd.Series) -> np.ndarray:
    return _counter(line) / np.asarray(line.readings_integrated_j, dtype=float)


def _panel(axes: Axes, ratios: list[tuple[pd.Series, np.ndarray]], shortest_s: float) -> None:
    """Ratios of every window over the length that was asked for, kernels side by side."""
    kernels = in_legend_order(line.kernel for line, _ in ratios)
    aside = dict(zip(kernels, style.side_by_side(len(kernels)), strict=True))
    for line, each in ratios:
        known = each[~np.isnan(each)]
        place = float(line.window_s) * 10 ** (0.2 * aside[line.kernel])
        look = style.marks(line.kernel)
        axes.plot([place] * len(known), known, linestyle="none", **(look | {"markersize": 3}))
        if len(known):
            middle = float(np.median(known))
            axes.plot([place / 1.15, place * 1.15], [middle, middle], color=look["color"], linewidth=1.2)
    axes.set_xscale("log")
    lengths = sorted({float(line.window_s) for line, _ in ratios})
    axes.set_xticks(lengths, [number(length, 1 if length < 10 else 2) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.set_xlim(lengths[0] / 1.5, lengths[-1] * 1.5)
    axes.set_xlabel("length of a window (s)")
    axes.axhline(1.0, color=GREY, linewidth=0.8)
    axes.axvline(shortest_s / 1.3, color=GREY, linewidth=0.8, linestyle=":")
