"""Panels whose horizontal axis is a suite's shapes: ticks of M, grouped by layer (N×K)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from narrowbench.names import INTERLEAVED
from narrowbench.report import style
from narrowbench.report.kernels import GREY
from narrowbench.report.load import Material
from narrowbench.report.select import Place, at, modes, places

type Shape = tuple[int, int, int]

#: Shapes in one row of panels, the least width of a panel in shapes, and how far a short row is stretched at most.
_A_ROW, _A_PANEL, _STRETCH = 40, 8, 2.0
#: Characters of a title on the width of a shape.
_CHARACTERS = 2
#: Inches: of a row of panels, around the axes inside it, between legend and rows, below all rows.
_ROW_IN, _BESIDE_IN, _ABOVE_IN, _BELOW_IN, _TOP_IN, _FOOT_IN = 1.98, 0.55, 0.4, 0.55, 0.12, 0.42
#: Inches: of a place without panels, of its name alone, and between the panels of two places.
_ABSENT_IN, _NAME_IN, _BETWEEN_IN = 0.45, 0.16, 0.12
_AXES_IN = _ROW_IN - _ABOVE_IN - _BELOW_IN
#: Suites in this order, all others after them.
_SUITES = ("square", "llm_prefill", "llm_decode")


@dataclass(frozen=True)
class ShapePanel:
    """The lines of one place, suite and mode, and the order of their shapes."""

    place: Place
    suite: str
    mode: str
    lines: pd.DataFrame

    @property
    def shapes(self) -> list[Shape]:
        """Squares by size, everything else by layer and then M."""
        found = {(int(m), int(n), int(k)) for m, n, k in zip(self.lines.m, self.lines.n, self.lines.k, strict=True)}
        return sorted(found, key=lambda shape: (not _is_square(shape), shape[1] * shape[2], shape[1], shape[0]))

    @property
    def width(self) -> int:
        """Room that the panel asks for, in shapes."""
        return max(len(self.shapes), _A_PANEL)


def shape_panels(lines: pd.DataFrame) -> list[ShapePanel]:
    """The panels that these lines fill, place by place and suite by suite, burst first."""
    found = []
    for place in places(lines):
        here = _housed(at(lines, place))
        for suite in sorted(here.suite.unique(), key=_suite_rank):
            of_suite = here[here.suite == suite]
            found += [ShapePanel(place, suite, mode, of_suite[of_suite["mode"] == mode]) for mode in modes(of_suite)]
    return found


def _housed(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines, those of comparisons under the suite that has their shape and mode, where one has."""
    columns = [lines[name].tolist() for name in ("m", "n", "k", "mode", "suite")]
    cases = [(tuple(case), str(suite)) for *case, suite in zip(*columns, strict=True)]
    ranked = sorted(cases, key=lambda pair: _suite_rank(pair[1]), reverse=True)  # of several, the first in rank stays
    homes = {case: suite for case, suite in ranked if suite != INTERLEAVED}
    return lines.assign(suite=[homes.get(case, suite) if suite == INTERLEAVED else suite for case, suite in cases])


def _suite_rank(suite: str) -> tuple[int, str]:
    return (_SUITES.index(suite) if suite in _SUITES else len(_SUITES), suite)


def left_out(lines: pd.DataFrame, panels: Sequence[ShapePanel], why: Callable[[pd.DataFrame], str]) -> dict[Place, str]:
    """Places of this machine's own run that have lines and no panel, each with what `why` says of its lines."""
    shown = {panel.place for panel in panels}
    own = [place for place in places(lines) if place.origin == "local" and place not in shown]
    return {place: why(at(lines, place)) for place in own}


def no_panels(material: Material, why: str, absent: Mapping[Place, str]) -> Figure:
    """The figure where no place has a panel: why, and what `left_out` says of this machine."""
    reasons = [f"{material.place_name(place)}: {reason}." for place, reason in absent.items()]
    return style.empty_figure("\n".join([why, *reasons]))


def draw_panels(
    material: Material,
    panels: Sequence[ShapePanel],
    draw: Callable[[Axes, ShapePanel, dict[Shape, int]], None],
    keys: Sequence[Line2D],
    absent: Mapping[Place, str] = MappingProxyType({}),
) -> Figure:
    """A figure of all panels under one legend, each as wide as its number of shapes, and above them who is absent.

    `draw` gets the position of each shape; `absent` has places without a panel, each with the reason.
    """
    rows = _flow(panels)
    heads = [number for number, row in enumerate(rows) if number == 0 or rows[number - 1][0].place != row[0].place]
    panels_in = _ROW_IN * len(rows) + _BETWEEN_IN * len(heads[1:]) + _FOOT_IN
    below_in = panels_in + _ABSENT_IN * len(absent)
    figure = Figure(figsize=(style.PAGE_IN, below_in))
    height_in = below_in + _TOP_IN + style.legend_above(figure, keys)
    figure.set_size_inches(style.PAGE_IN, height_in)
    for number, (place, reason) in enumerate(absent.items()):
        top_in = below_in - _ABSENT_IN * number
        _write_name(figure, material.place_name(place), top_in / height_in)
        figure.text(0.01, (top_in - _NAME_IN) / height_in, reason, va="top", size=6.5, color=GREY)
    for number, row in enumerate(rows):
        top_in = panels_in - _ROW_IN * number - _BETWEEN_IN * sum(0 < head <= number for head in heads)
        if number in heads:
            _write_name(figure, material.place_name(row[0].place), top_in / height_in)
        for panel, (left_in, width_in) in zip(row, _columns(row), strict=True):
            bottom_in = top_in - _ROW_IN + _BELOW_IN
            box = (left_in / style.PAGE_IN, bottom_in / height_in, width_in / style.PAGE_IN, _AXES_IN / height_in)
            axes = figure.add_axes(box)
            title = f"{panel.suite}, {panel.mode}"
            axes.set_title(title if len(title) <= _CHARACTERS * panel.width else title.replace(" ", "\n"), loc="left")
            draw(axes, panel, {shape: x for x, shape in enumerate(panel.shapes)})
            _label_shapes(axes, panel.shapes)
    return figure


def _write_name(figure: Figure, name: str, top: float) -> None:
    figure.text(0.01, top, name, weight="bold", va="top", size=7.5)


def _flow(panels: Sequence[ShapePanel]) -> list[list[ShapePanel]]:
    """Panels in rows, each in the first row of its place that still has room."""
    rows: list[list[ShapePanel]] = []
    for panel in panels:
        fitting = (
            row
            for row in rows
            if row[0].place == panel.place and sum(other.width for other in row) + panel.width <= _A_ROW
        )
        row = next(fitting, None)
        if row is None:
            rows.append([panel])
        else:
            row.append(panel)
    return rows


def _columns(row: Sequence[ShapePanel]) -> list[tuple[float, float]]:
    """Left edge and width of the axes of each panel, in inches; a row that is not full is stretched."""
    used = sum(panel.width for panel in row)
    shape_in = style.PAGE_IN / _A_ROW * min(_STRETCH, _A_ROW / used)
    columns, left_in = [], 0.0
    for panel in row:
        columns.append((left_in + _BESIDE_IN, panel.width * shape_in - _BESIDE_IN - 0.08))
        left_in += panel.width * shape_in
    return columns


def positions(lines: pd.DataFrame, position: dict[Shape, int]) -> list[int]:
    """Where each line stands on a panel's axis."""
    return [position[int(m), int(n), int(k)] for m, n, k in zip(lines.m, lines.n, lines.k, strict=True)]


def by_layer(lines: pd.DataFrame) -> list[pd.DataFrame]:
    """Lines of one layer each, to be joined by a stroke: all squares, or one N×K; in order of M."""
    layer = ["square" if m == n == k else f"{n}×{k}" for m, n, k in zip(lines.m, lines.n, lines.k, strict=True)]
    return [group.sort_values("m") for _, group in lines.groupby(layer)]


def _is_square(shape: Shape) -> bool:
    return len(set(shape)) == 1


def _label_shapes(axes: Axes, shapes: Sequence[Shape]) -> None:
    """M under every tick, and under the ticks of one layer its N×K."""
    axes.set_xticks(range(len(shapes)), [str(shape[0]) for shape in shapes], rotation=90, size=5)
    axes.tick_params(axis="x", length=2, pad=1)
    axes.set_xlim(-0.7, len(shapes) - 0.3)
    axes.grid(visible=False, axis="x")
    layers = ["M=N=K" if _is_square(shape) else f"{shape[1]}×{shape[2]}" for shape in shapes]
    start = 0
    for end in range(1, len(layers) + 1):
        if end == len(layers) or layers[end] != layers[start]:
            _bracket(axes, start, end - 1, layers[start])
            start = end


def _bracket(axes: Axes, first: int, last: int, text: str) -> None:
    across = axes.get_xaxis_transform()
    axes.plot([first - 0.3, last + 0.3], [-0.26, -0.26], transform=across, clip_on=False, color=GREY, linewidth=0.6)
    is_wide = last - first >= 3
    axes.text(
        (first + last) / 2,
        -0.3,
        text,
        transform=across,
        ha="center" if is_wide else "right",
        va="top",
        size=4.8,
        rotation=0 if is_wide else 30,
        rotation_mode="anchor",
    )
