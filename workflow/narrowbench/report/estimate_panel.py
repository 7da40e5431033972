"""A panel of ranges for devices that were not measured: hatched bars, modelled, and public figures beside them."""

import textwrap
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from narrowbench.models.estimate import (
    ESTIMATED_KEYS,
    Assumptions,
    Estimate,
    Range,
    estimate,
)
from narrowbench.report import style
from narrowbench.report.absent import absent_devices
from narrowbench.report.kernels import GREY, RATE_COLOURS, format_in_words
from narrowbench.report.load import Material

_BAR = 0.8 / len(ESTIMATED_KEYS)


def draw_ranges(
    axes: Axes, material: Material, assumptions: Assumptions, value: Callable[[Estimate], Range | None], scale: float
) -> None:
    """A row a device, first on top, a hatched bar a rate from the least to the largest value over `scale`."""
    devices = absent_devices(material)
    axes.set_xscale("log")
    ends: list[float] = []
    for row, slug in enumerate(devices):
        found = [value(estimate(slug, material.profiles[slug], key, assumptions)) for key in ESTIMATED_KEYS]
        for index, (key, known) in enumerate(zip(ESTIMATED_KEYS, found, strict=True)):
            if known is not None:
                low, high = known.low / scale, known.high / scale
                axes.barh(row + _aside(index), high - low, 0.8 * _BAR, left=low, **_look(key))
                ends += [low, high]
        if not any(found):
            said = "what it follows from is not published"
            axes.text(0.02, row, said, transform=axes.get_yaxis_transform(), va="center", size=5, color=GREY)
    axes.set_xlim(min(ends) / 1.3, max(ends) * 1.3)
    style.plain_decades(axes.xaxis, *axes.get_xlim())
    axes.set_yticks(range(len(devices)), [_in_two_lines(material.profiles[slug].name) for slug in devices], size=5.5)
    axes.set_ylim(len(devices) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def draw_published(axes: Axes, material: Material, assumptions: Assumptions, scale: float) -> None:
    """Rates that others measured and published, on the bars of `draw_ranges`."""
    devices = absent_devices(material)
    for published in assumptions.published:
        if published.device in devices:
            row = devices.index(published.device) + _aside(ESTIMATED_KEYS.index(published.rate_key))
            axes.plot(published.rate_flop_per_s / scale, row, **_PUBLISHED)


def estimate_keys(with_published: bool) -> list[Line2D | Patch]:
    """Legend keys of the hatched bars and of published figures."""
    keys: list[Line2D | Patch] = [
        Patch(label=f"{format_in_words(key)} (modelled)", **_look(key)) for key in ESTIMATED_KEYS
    ]
    return keys + ([Line2D([], [], label="published elsewhere", **_PUBLISHED)] if with_published else [])


_PUBLISHED: dict[str, Any] = {
    "marker": "x",
    "linestyle": "none",
    "color": "black",
    "markersize": 3.5,
    "markeredgewidth": 0.8,
}


def _in_two_lines(name: str) -> str:
    return "\n".join(textwrap.wrap(name, 24))


def _aside(index: int) -> float:
    return _BAR * (index - (len(ESTIMATED_KEYS) - 1) / 2)


def _look(key: str) -> dict[str, Any]:
    return {"facecolor": "none", "edgecolor": RATE_COLOURS[key], "hatch": "//////", "linewidth": 0.5}
