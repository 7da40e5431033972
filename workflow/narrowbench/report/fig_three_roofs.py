"""`fig_three_roofs`: sustained cases under memory, held arithmetic and power; ranges for absent devices."""

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from narrowbench.models.roofline import Roofs
from narrowbench.report import style
from narrowbench.report.absent import assumptions_of
from narrowbench.report.estimate_panel import draw_published, draw_ranges, estimate_keys
from narrowbench.report.held_roofs import HeldPoint, held_places, held_points, leading
from narrowbench.report.kernels import GREY, RATE_COLOURS, format_in_words, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.roof_axes import frame_roofline, label_decades, list_roofs
from narrowbench.report.units import number, quantity, rate_prefix

_HELD_LINE: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (4, 1.5))}
_POWER_LINE: dict[str, Any] = {"linewidth": 1.3, "linestyle": (0, (6, 1, 1, 1))}
#: Initials have room for so many columns of cases a decade of intensity.
_COLUMNS_A_DECADE = 10
_NOTE = (
    "Left: measured, sustained, normal data. The initial under a case names its lowest roof (Memory, Arithmetic, "
    "Power), at its own clock and joules. Lines: the\nroofs of the fastest case of a format: memory as measured, the "
    "data sheet's dense rate at the held clock, the board's limit over the joules of a FLOP.\n"
    "Right: modelled ranges from published rates and assumed fractions of them (configs/estimates.yaml); crosses: "
    "measured and published by others."
)


def figure(material: Material) -> Figure:
    """A panel a device of the record with an energy meter, and one of all the others."""
    found = held_places(material)
    figure = Figure(figsize=(style.PAGE_IN, 0.8 + 3.2 * max(1, len(found))), layout="constrained")
    grid = figure.add_gridspec(max(1, len(found)), 2, width_ratios=(1.25, 1))
    kernels: list[str] = []
    for row, place in enumerate(found):
        points = held_points(material, place)
        kernels += [point.line.kernel for point in points]
        axes = figure.add_subplot(grid[row, 0])
        axes.set_title(f"{material.place_name(place)}, sustained", loc="left")
        _roof_panel(axes, points)
    if not found:
        style.without_data(figure.add_subplot(grid[0, 0]), WITHOUT)
    _range_panel(figure.add_subplot(grid[:, 1]), material)
    lines = [
        Line2D([], [], color=GREY, linewidth=1.0, label="memory"),
        Line2D([], [], color=GREY, label="arithmetic, held clock", **_HELD_LINE),
        Line2D([], [], color=GREY, label="power", **_POWER_LINE),
    ]
    measured = style.legend_keys(kernels, with_line=False) + (lines if found else [])
    style.legend_above(figure, [*measured, *estimate_keys(with_published=True)])
    style.footnote(figure, _NOTE)
    return figure


WITHOUT = "No sustained case of the record has its energy, its clock,\nits power limit and a measured memory roof yet."


def _roof_panel(axes: Axes, points: list[HeldPoint]) -> None:
    rates = [float(point.line.flop_per_s) for point in points]
    scale = rate_prefix(max(rates))
    frame_roofline(axes, scale)
    low, high = min(point.intensity for point in points) / 2, max(point.intensity for point in points) * 2
    span = (low, high) if high > 100 * low else (high / 100, high)
    entries: dict[str, str] = {}
    for key, point in leading(points).items():
        _draw_roofs(axes, point.roofs, key, span, 10.0**scale)
        flat = [point.roofs.arithmetic_flop_per_s, point.roofs.power_flop_per_s or 0.0]
        held, power = (number(rate / 10.0**scale) for rate in flat)
        entries[f"{format_in_words(key)}: {held} arithmetic, {power} power"] = RATE_COLOURS[key]
    list_roofs(axes, {f"memory: {quantity(points[0].roofs.bandwidth_bytes_per_s, 'B/s')}": GREY} | entries)
    draw_points(axes, points, "flop_per_s", 10.0**scale)
    name_binding(axes, points, rates, 10.0**scale)
    axes.set_xlim(*span)
    axes.set_ylim(bottom=min(*rates, points[0].roofs.bandwidth_bytes_per_s * span[0]) / 2 / 10.0**scale)
    label_decades(axes)


def _draw_roofs(axes: Axes, roofs: Roofs, key: str, span: tuple[float, float], scale: float) -> None:
    flat = [roofs.arithmetic_flop_per_s, roofs.power_flop_per_s or roofs.arithmetic_flop_per_s]
    top = max(flat) / roofs.bandwidth_bytes_per_s
    axes.plot([span[0], top], [roofs.bandwidth_bytes_per_s * x / scale for x in (span[0], top)], color=GREY, lw=1.0)
    for height, look in zip(flat, (_HELD_LINE, _POWER_LINE), strict=True):
        ridge = height / roofs.bandwidth_bytes_per_s
        axes.plot([ridge, span[1]], [height / scale] * 2, color=RATE_COLOURS[key], **look)


def draw_points(axes: Axes, points: list[HeldPoint], column: str, scale: float) -> None:
    """Measured cases over intensity, a mark a kernel, with the intervals of a column of rates."""
    for kernel in in_legend_order(point.line.kernel for point in points):
        lines = [point.line for point in points if point.line.kernel == kernel]
        middle, low, high = ([line[f"{column}{end}"] / scale for line in lines] for end in ("", "_low", "_high"))
        reach = [
            [m - lo for m, lo in zip(middle, low, strict=True)],
            [h - m for m, h in zip(middle, high, strict=True)],
        ]
        places = [line.intensity_flop_per_byte for line in lines]
        axes.errorbar(places, middle, yerr=reach, linestyle="none", elinewidth=0.6, **style.marks(kernel))


def name_binding(axes: Axes, points: list[HeldPoint], heights: list[float], scale: float) -> None:
    """Under each column of cases of nearly one intensity the initials of the roofs that are lowest there."""
    columns: list[list[tuple[float, HeldPoint]]] = []
    for height, point in sorted(zip(heights, points, strict=True), key=lambda pair: pair[1].intensity):
        start = columns[-1][0][1].intensity if columns else 0.0
        if columns and math.log10(point.intensity / start) < 1 / _COLUMNS_A_DECADE:
            columns[-1].append((height, point))
        else:
            columns.append([(height, point)])
    for column in columns:
        lowest, point = min(column, key=lambda pair: pair[0])
        initials = sorted({other.binding[0].upper() for _, other in column})
        place = (point.intensity, lowest / scale)
        axes.annotate("\n".join(initials), place, (0, -4), textcoords="offset points", ha="center", va="top", size=5.5)


def _range_panel(axes: Axes, material: Material) -> None:
    assumptions = assumptions_of(material)
    axes.set_title("absent devices: a large GEMM", loc="left")
    draw_ranges(axes, material, assumptions, lambda found: found.rate_flop_per_s, 1e12)
    draw_published(axes, material, assumptions, 1e12)
    axes.set_xlabel("modelled throughput (TFLOP/s)")
