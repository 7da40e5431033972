"""`fig_roofline`: measured GEMMs under the measured and the data sheet's roofs, a row a device, a column a mode."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from narrowbench.report import style
from narrowbench.report.kernels import GREY, RATE_COLOURS, format_in_words, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.roof_axes import (
    MEASURED_LINE,
    SHEET_LINE,
    ZEROS_LINE,
    draw_roof,
    frame_roofline,
    label_decades,
    list_roofs,
)
from narrowbench.report.roofs import MEMORY, KnownRoofs, measured_roofs, roof_key
from narrowbench.report.select import Place, at, modes, once, places, usual
from narrowbench.report.units import number, quantity, rate_prefix

_NOTE = (
    "Normal data, rotated operands. A point is the median of a case, its bar the 95 % order-statistic interval. "
    "Intensity counts the least traffic.\nThe list in a panel: each roof as far as it is known. Zeros toggle no bits: "
    "the arithmetic at the highest clock; normal data: what the board's power leaves of it.\n"
    "Where no roofs were measured sustained, those of a burst are drawn."
)
#: Of this machine's own run, which may share its host.
_NOTE_ON_HOSTS = "On a busy host a roof's median may lie below a point: no point\nlies above the roof's fast samples."
#: Kind of a roof -> its line.
_LINES = {"normal data": MEASURED_LINE, "zeros": ZEROS_LINE, "data sheet": SHEET_LINE}
_LABELS = {
    "normal data": "roof, measured on normal data",
    "zeros": "roof, measured on zeros",
    "data sheet": "roof, data sheet (dense)",
}


def figure(material: Material) -> Figure:
    """Rooflines of every device of the record."""
    return rooflines(material, "record")


def rooflines(material: Material, *origins: str) -> Figure:
    """Rooflines of every device that results of these origins come from."""
    frame = material.origin(*origins)
    lines = once(usual(frame))
    found = places(lines)
    if not found:
        return style.empty_figure("No measured GEMM yet: there is nothing to put under a roof.")
    columns = modes(lines)
    figure = Figure(figsize=(style.PAGE_IN, 0.7 + 2.5 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), len(columns), squeeze=False)
    for row, place in zip(grid, found, strict=True):
        for axes, mode in zip(row, columns, strict=True):
            _panel(axes, material, frame, at(lines, place), place, mode)
    roofs = [Line2D([], [], color=GREY, label=_LABELS[kind], **look) for kind, look in _LINES.items()]
    style.legend_above(figure, style.legend_keys(lines.kernel, with_line=False) + roofs)
    style.footnote(figure, _NOTE if origins == ("record",) else f"{_NOTE} {_NOTE_ON_HOSTS}")
    return figure


def _panel(axes: Axes, material: Material, frame: pd.DataFrame, here: pd.DataFrame, place: Place, mode: str) -> None:
    """One mode of a place; `here` are the place's lines of both, for panels of a place have one scale."""
    lines = here[here["mode"] == mode]
    axes.set_title(f"{material.place_name(place)}, {mode}", loc="left")
    if lines.empty:
        style.without_data(axes, f"no case measured in {mode} mode")
        return
    scale = rate_prefix(lines.flop_per_s.max())
    frame_roofline(axes, scale)
    span = _span(here.intensity_flop_per_byte)
    known = _known(material, frame, place, mode)
    keys = sorted({roof_key(line) for _, line in lines.iterrows()})
    for kind, roofs in known.items():
        for key in keys:
            draw_roof(axes, roofs, key, span, scale, **_LINES[kind])
    _list(axes, keys, known, scale)
    for kernel in in_legend_order(lines.kernel):
        _draw_points(axes, lines[lines.kernel == kernel], kernel, scale)
    axes.set_xlim(*span)
    axes.set_ylim(bottom=here.flop_per_s.min() / 5 / 10.0**scale)
    label_decades(axes)


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


def _known(material: Material, frame: pd.DataFrame, place: Place, mode: str) -> dict[str, KnownRoofs]:
    """Kind of a roof -> those of a place and mode that are known."""
    profile = material.profiles.get(place.device)
    known = {"data sheet": KnownRoofs()} if profile is None else {"data sheet": KnownRoofs.of(profile)}
    for data, kind in (("zeros", "zeros"), ("normal", "normal data")):
        heights = {key: roof.value for key, roof in measured_roofs(frame, place, mode, data).items()}
        known[kind] = KnownRoofs(heights.pop(MEMORY, None), heights)
    return known


def _list(axes: Axes, keys: list[str], known: dict[str, KnownRoofs], scale: int) -> None:
    """Every roof of a panel in words, rates in the unit of the axis."""
    bandwidths = {"measured": known["normal data"].bandwidth, "data sheet": known["data sheet"].bandwidth}
    shown = [f"{quantity(value, 'B/s')} {kind}" for kind, value in bandwidths.items() if value is not None]
    entries = {f"memory: {', '.join(shown)}": GREY} if shown else {}
    for key in sorted(keys, key=lambda key: known["normal data"].arithmetic.get(key, 0)):
        rates = {kind: known[kind].arithmetic[key] for kind in _LINES if key in known[kind].arithmetic}
        shown = [f"{number(rate / 10.0**scale)} {kind}" for kind, rate in rates.items()]
        entries[f"{format_in_words(key)}: {', '.join(shown)}"] = RATE_COLOURS[key]
    list_roofs(axes, entries)
