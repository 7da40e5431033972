"""Axes of a roofline, and roofs drawn on them: what the rooflines of results and of data sheets share."""

from typing import Any

from matplotlib.axes import Axes

from narrowbench.models.roofline import Roofs
from narrowbench.report import style
from narrowbench.report.kernels import GREY, RATE_COLOURS
from narrowbench.report.roofs import KnownRoofs
from narrowbench.report.units import prefixed

MEASURED_LINE: dict[str, Any] = {"linewidth": 1.3, "linestyle": "-"}
ZEROS_LINE: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (4, 1.5))}
SHEET_LINE: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 1.5))}


def frame_roofline(axes: Axes, scale: int) -> None:
    """Two logarithmic axes, intensity and throughput under the SI prefix of 10^scale."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP/byte)")
    axes.set_ylabel(f"throughput ({prefixed('FLOP/s', scale)})")


def label_decades(axes: Axes) -> None:
    """Labels for both axes, once their limits are known."""
    style.plain_decades(axes.xaxis, *axes.get_xlim())
    style.plain_decades(axes.yaxis, *axes.get_ylim())


def draw_roof(axes: Axes, known: KnownRoofs, key: str, span: tuple[float, float], scale: int, **look: Any) -> None:
    """One format's roof over the intensities of `span`: the slope of the memory in grey, the flat part in its colour.

    Draws nothing where either is not known.
    """
    if known.bandwidth is None or key not in known.arithmetic:
        return
    roofs = Roofs(known.bandwidth, known.arithmetic[key])
    ridge = min(max(roofs.ridge_flop_per_byte(), span[0]), span[1])
    for ends, colour in (((span[0], ridge), GREY), ((ridge, span[1]), RATE_COLOURS[key])):
        heights = [roofs.attainable_flop_per_s(x) / 10.0**scale for x in ends]
        axes.plot(ends, heights, color=colour, **look)


def list_roofs(axes: Axes, entries: dict[str, str]) -> None:
    """Text -> colour: a list in the lower right corner, which no roofline reaches, first entry lowest."""
    for line, (text, colour) in enumerate(entries.items()):
        axes.annotate(
            text,
            (1, 0),
            (-2, 3 + 7.5 * line),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            size=5.5,
            color=colour,
        )
