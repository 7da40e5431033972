"""Three roofs over arithmetic intensity: memory, arithmetic at the clock that was held, and power. No JAX.

After Williams, Waterman and Patterson, «Roofline» (CACM 2009), with a third roof for boards that are limited by power:
where a FLOP costs J joules, no more than cap / J FLOP/s can be sustained.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from narrowbench.models.statistics import Interval

RoofName = Literal["memory", "arithmetic", "power"]


def held_rate_flop_per_s(rate_flop_per_s: float, clock_basis_hz: float, held_hz: float) -> float:
    """The rate of an arithmetic unit at the clock that was held, from its rate at another clock."""
    return rate_flop_per_s * held_hz / clock_basis_hz


def power_roof_flop_per_s(power_cap_w: float, energy_j_per_flop: float) -> float:
    """The rate at which a board spends its whole power limit, a FLOP costing `energy_j_per_flop` all told."""
    return power_cap_w / energy_j_per_flop


@dataclass(frozen=True)
class Roofs:
    """The roofs of one device for one format.

    bandwidth_bytes_per_s: of memory.
    arithmetic_flop_per_s: at the clock that was held, or a data sheet's.
    power_flop_per_s:      None in burst mode or where no energy is known.
    """

    bandwidth_bytes_per_s: float
    arithmetic_flop_per_s: float
    power_flop_per_s: float | None = None

    def at(self, intensity_flop_per_byte: float) -> dict[RoofName, float]:
        """Height of each roof, FLOP/s, at an arithmetic intensity."""
        heights: dict[RoofName, float] = {
            "memory": self.bandwidth_bytes_per_s * intensity_flop_per_byte,
            "arithmetic": self.arithmetic_flop_per_s,
        }
        if self.power_flop_per_s is not None:
            heights["power"] = self.power_flop_per_s
        return heights

    def attainable_flop_per_s(self, intensity_flop_per_byte: float) -> float:
        """Height of the lowest roof, FLOP/s, at an arithmetic intensity."""
        return min(self.at(intensity_flop_per_byte).values())

    def binding(self, intensity_flop_per_byte: float) -> RoofName:
        """The lowest roof at an arithmetic intensity; of equal ones the first of memory, arithmetic, power."""
        heights = self.at(intensity_flop_per_byte)
        return min(heights, key=lambda name: heights[name])

    def ridge_flop_per_byte(self) -> float:
        """Intensity where the memory roof meets the lower of the flat ones."""
        flat = [self.arithmetic_flop_per_s, self.power_flop_per_s or self.arithmetic_flop_per_s]
        return min(flat) / self.bandwidth_bytes_per_s


def percent(value: float, roof: float) -> float:
    """`value` in percent of `roof`."""
    return 100.0 * value / roof


@dataclass(frozen=True)
class RoofedPoint:
    """A measured point and a measured roof over it, in one unit; the names say which they are in a message.

    An interval is None where there were too few samples for one: the value itself then stands for it.
    """

    point: str
    value: float
    value_interval: Interval | None
    roof: str
    height: float
    height_interval: Interval | None

    @property
    def is_above(self) -> bool:
        """Whether the whole interval of the point lies above the whole interval of the roof."""
        low = self.value if self.value_interval is None else self.value_interval.low
        high = self.height if self.height_interval is None else self.height_interval.high
        return low > high

    def __str__(self) -> str:
        point = _shown(self.value, self.value_interval)
        return f"{self.point}: {point} lies above {self.roof}: {_shown(self.height, self.height_interval)}"


def _shown(value: float, interval: Interval | None) -> str:
    return f"{value:.4g}" + (f" ({interval.low:.4g} .. {interval.high:.4g})" if interval else "")


class AboveRoofError(ValueError):
    """Measured points lie above their own roof: the points or the roof are wrong, and nothing may be built on them.

    `points` are the offenders.
    """

    def __init__(self, points: list[RoofedPoint]) -> None:
        self.points = points
        remedy = "measure the roof again, or find what the point's timer missed"
        super().__init__("\n".join([*map(str, points), remedy]))


def check_below_roofs(points: Iterable[RoofedPoint]) -> None:
    """Raise AboveRoofError naming every point that lies above its roof beyond both intervals."""
    above = [point for point in points if point.is_above]
    if above:
        raise AboveRoofError(above)
