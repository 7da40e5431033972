"""Axes of a roofline, and roofs drawn on them: what the rooflines of results and of data sheets share."""

from dataclasses import dataclass, field
from typing import Any, Self

from matplotlib.axes import Axes

from narrowbench.models.hardware import DeviceProfile, Rates
from narrowbench.models.roofline import Roofs
from narrowbench.report import style
from narrowbench.report.units import prefixed

MEASURED_LINE: dict[str, Any] = {"linewidth": 1.3, "linestyle": "-"}
ZEROS_LINE: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (4, 1.5))}
SHEET_LINE: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 1.5))}

#: Keys of floating-point rates, from wide to narrow. Integer rates are no FLOP/s.
RATE_KEYS = tuple(name for name in Rates.model_fields if name not in ("dense", "int8", "int4"))


@dataclass(frozen=True)
class KnownRoofs:
    """The roofs of one device that are known: bytes/s of its memory, FLOP/s by key of the rate."""

    bandwidth: float | None = None
    arithmetic: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: DeviceProfile) -> Self:
        """Those of a data sheet, dense."""
        rates = {key: getattr(profile.rates_flop_per_s, key).value for key in RATE_KEYS}
        known = {key: rate for key, rate in rates.items() if rate is not None}
        return cls(profile.memory.bandwidth_bytes_per_s.value, known)


def frame_roofline(axes: Axes, scale: int) -> None:
    """Two logarithmic axes, intensity and throughput under the SI prefix of 10^scale."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_decades(axes.xaxis)
    style.plain_decades(axes.yaxis)
    axes.set_xlabel("arithmetic intensity (FLOP/byte)")
    axes.set_ylabel(f"throughput ({prefixed('FLOP/s', scale)})")


def draw_roof(axes: Axes, known: KnownRoofs, key: str, span: tuple[float, float], scale: int, **look: Any) -> None:
    """One format's roof over the intensities of `span`: the slope of the memory in grey, the flat part in its colour.

    Draws nothing where either is not known.
    """
    if known.bandwidth is None or key not in known.arithmetic:
        return
    roofs = Roofs(known.bandwidth, known.arithmetic[key])
    ridge = min(max(roofs.ridge_flop_per_byte(), span[0]), span[1])
    for ends, colour in (((span[0], ridge), style.GREY), ((ridge, span[1]), style.RATE_COLOURS[key])):
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
