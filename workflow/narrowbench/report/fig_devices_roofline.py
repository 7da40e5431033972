"""`fig_devices_roofline`: what the data sheets promise of every device, dense rates by format. Nothing is measured."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.models.hardware import DeviceProfile
from narrowbench.report import style
from narrowbench.report.kernels import RATE_COLOURS, format_in_words
from narrowbench.report.load import Material
from narrowbench.report.roof_axes import SHEET_LINE, draw_roof, frame_roofline, label_decades, list_roofs
from narrowbench.report.roofs import KnownRoofs
from narrowbench.report.units import quantity

#: From decode (a few FLOP a byte) past the ridge of the fastest device's FP4.
_SPAN = (1.0, 9e3)
_HEIGHT = (0.2, 6e4)
_COLUMNS = 5
#: Rates that the panels show: those of the suite's formats (FP16 runs as fast as BF16 wherever both are given).
_KEYS = ("f32", "bf16", "fp8", "fp6", "fp4")
_NOTE = (
    "Data sheets, not measurements: dense rates and nominal bandwidth, each with a source in its device profile.\n"
    "The list in a panel names its roofs from top to bottom, TFLOP/s; an unknown rate is left out."
)


def figure(material: Material) -> Figure:
    """One small roofline a device, the one with the highest rate first."""
    profiles = sorted(material.profiles.values(), key=_highest_rate, reverse=True)
    rows = -(-len(profiles) // _COLUMNS)
    figure = Figure(figsize=(style.PAGE_IN, 0.5 + 1.45 * rows), layout="constrained")
    grid = figure.subplots(rows, _COLUMNS, sharey=True, squeeze=False)
    for axes, profile in zip(grid.flat, profiles, strict=False):
        _panel(axes, profile)
    for axes in grid.flat[len(profiles) :]:
        axes.set_axis_off()
    figure.supylabel("throughput (TFLOP/s) over arithmetic intensity (FLOP/byte)", fontsize=7)
    style.footnote(figure, _NOTE)
    return figure


def _highest_rate(profile: DeviceProfile) -> float:
    return max(KnownRoofs.of(profile).arithmetic.values(), default=0.0)


def _panel(axes: Axes, profile: DeviceProfile) -> None:
    known = KnownRoofs.of(profile)
    frame_roofline(axes, 12)
    axes.set(xlabel="", ylabel="", xlim=_SPAN, ylim=_HEIGHT)
    label_decades(axes)
    axes.minorticks_off()
    axes.set_title("\n".join(textwrap.wrap(profile.name, 24)), loc="left", size=6)
    by_rate: dict[float, list[str]] = {}
    for key in _KEYS:
        draw_roof(axes, known, key, _SPAN, 12, **SHEET_LINE)
        if key in known.arithmetic:
            by_rate.setdefault(known.arithmetic[key], []).append(key)
    list_roofs(
        axes,
        {
            f"{', '.join(map(format_in_words, keys))}  {rate / 1e12:,.5g}": RATE_COLOURS[keys[-1]]
            for rate, keys in sorted(by_rate.items())
        },
    )
    if known.bandwidth is not None:
        axes.text(0.04, 0.96, quantity(known.bandwidth, "B/s"), transform=axes.transAxes, va="top", size=5.5)
