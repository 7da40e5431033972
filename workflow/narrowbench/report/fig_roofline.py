"""`fig_roofline`: measured GEMMs under the measured and the data sheet's roofs, a row a device, a column a mode."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from narrowbench.report import style
from narrowbench.report.load import Material
from narrowbench.report.roof_axes import MEASURED_LINE, SHEET_LINE, KnownRoofs, draw_roof, frame_roofline, list_roofs
from narrowbench.report.roofs import MEMORY, measured_roofs, roof_key
from narrowbench.report.select import Place, at, modes, places, usual
from narrowbench.report.units import number, quantity, rate_prefix

_NOTE = (
    "Normal data, rotated operands. A point is the median of a case, its bar the 95 % order-statistic interval. "
    "Intensity counts the least traffic.\n"
    "In the corners: the memory's and each format's roof, «measured of data sheet»."
)
_ROOF_KEYS = [
    Line2D([], [], color=style.GREY, label="roof, measured here", **MEASURED_LINE),
    Line2D([], [], color=style.GREY, label="roof, data sheet (dense)", **SHEET_LINE),
]


def figure(material: Material) -> Figure:
    """Rooflines of every device of the record."""
    return rooflines(material, "record")


def rooflines(material: Material, *origins: str) -> Figure:
    """Rooflines of every device that results of these origins come from."""
    frame = material.origin(*origins)
    lines = usual(frame)
    found = places(lines)
    if not found:
        return style.empty_figure("No measured GEMM yet: there is nothing to put under a roof.")
    columns = modes(lines)
    figure = Figure(figsize=(style.PAGE_IN, 0.7 + 2.5 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), len(columns), squeeze=False)
    for row, place in zip(grid, found, strict=True):
        for axes, mode in zip(row, columns, strict=True):
            _panel(axes, material, frame, place, mode)
    style.legend_above(figure, style.legend_keys(lines.kernel, with_line=False) + _ROOF_KEYS)
    style.footnote(figure, _NOTE)
    return figure


def _panel(axes: Axes, material: Material, frame: pd.DataFrame, place: Place, mode: str) -> None:
    lines = at(usual(frame), place, mode)
    axes.set_title(f"{material.place_name(place)}, {mode}", loc="left")
    if lines.empty:
        style.without_data(axes, f"no case measured in {mode} mode")
        return
    scale = rate_prefix(lines.flop_per_s.max())
    frame_roofline(axes, scale)
    span = _span(at(usual(frame), place).intensity_flop_per_byte)
    sheet = KnownRoofs.of(material.profiles[place.device]) if place.device in material.profiles else KnownRoofs()
    heights = {key: roof.value for key, roof in measured_roofs(frame, place, mode).items()}
    measured = KnownRoofs(heights.pop(MEMORY, None), heights)
    keys = sorted({roof_key(line) for _, line in lines.iterrows()})
    for key in keys:
        draw_roof(axes, sheet, key, span, scale, **SHEET_LINE)
        draw_roof(axes, measured, key, span, scale, **MEASURED_LINE)
    _list(axes, keys, measured, sheet, scale)
    _name_memory(axes, measured.bandwidth, sheet.bandwidth)
    for kernel in style.in_legend_order(lines.kernel):
        _draw_points(axes, lines[lines.kernel == kernel], kernel, scale)
    axes.set_xlim(*span)
    axes.set_ylim(bottom=at(usual(frame), place).flop_per_s.min() / 3 / 10.0**scale)


def _span(intensities: pd.Series) -> tuple[float, float]:
    """Intensities that the panels of a place show: those of its cases, and two decades at least."""
    low, high = intensities.min() / 2, intensities.max() * 2
    return (low, high) if high > 100 * low else (low / 10, high * 10)


def _draw_points(axes: Axes, lines: pd.DataFrame, kernel: str, scale: int) -> None:
    middle, low, high = (lines[f"flop_per_s{end}"] / 10.0**scale for end in ("", "_low", "_high"))
    axes.errorbar(
        lines.intensity_flop_per_byte,
        middle,
        yerr=[middle - low, high - middle],
        linestyle="none",
        elinewidth=0.6,
        **style.marks(kernel),
    )


def _list(axes: Axes, keys: list[str], measured: KnownRoofs, sheet: KnownRoofs, scale: int) -> None:
    entries = {}
    for key in sorted(keys, key=lambda key: measured.arithmetic.get(key, 0)):
        rates = [known.arithmetic[key] for known in (measured, sheet) if key in known.arithmetic]
        shown = " of ".join(number(rate / 10.0**scale) for rate in rates)
        entries[f"{style.format_in_words(key)}  {shown}"] = style.RATE_COLOURS[key]
    list_roofs(axes, entries)


def _name_memory(axes: Axes, measured: float | None, sheet: float | None) -> None:
    known = [quantity(rate, "B/s") for rate in (measured, sheet) if rate is not None]
    if known:
        axes.text(0.02, 0.97, "memory " + " of ".join(known), transform=axes.transAxes, va="top", size=6)
