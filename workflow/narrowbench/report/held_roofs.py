"""Three roofs over each sustained case: memory, arithmetic at the clock that it held, and power. No Matplotlib."""

from dataclasses import dataclass

import pandas as pd

from narrowbench.models.hardware import DeviceProfile
from narrowbench.models.roofline import RoofName, Roofs, held_rate_flop_per_s, power_roof_flop_per_s
from narrowbench.report.load import Material
from narrowbench.report.roofs import MEMORY, measured_roofs, roof_key
from narrowbench.report.select import Place, at, is_native, once, places, usual


@dataclass(frozen=True)
class HeldPoint:
    """A sustained case and its own roofs: at its clock, and at its joules a FLOP under the board's limit.

    key: of the rate that its formats use.
    """

    line: pd.Series
    key: str
    roofs: Roofs

    @property
    def intensity(self) -> float:
        """FLOP/byte."""
        return float(self.line.intensity_flop_per_byte)

    @property
    def binding(self) -> RoofName:
        """The lowest roof over the case."""
        return self.roofs.binding(self.intensity)


def held_places(material: Material) -> list[Place]:
    """Places of the record with a case that has all three roofs, the fastest first."""
    return [place for place in places(material.origin("record")) if held_points(material, place)]


def held_points(material: Material, place: Place) -> list[HeldPoint]:
    """Sustained cases of normal data whose clock, power limit and energy were read, in the formats that they name.

    A case whose memory roof was not measured, or whose rate has no known clock in the profile, has not all three roofs.
    """
    frame = material.origin("record")
    profile = material.profiles.get(place.device)
    bandwidth = measured_roofs(frame, place, "sustained").get(MEMORY)
    if profile is None or bandwidth is None:
        return []
    lines = at(once(usual(frame)), place, "sustained")
    lines = lines[is_native(lines) & lines[["j_per_flop", "power_limit_w", "sm_clock_hz"]].notna().all(axis=1)]
    found = (_point(line, profile, bandwidth.value) for _, line in lines.iterrows())
    return [point for point in found if point is not None]


def _point(line: pd.Series, profile: DeviceProfile, bandwidth: float) -> HeldPoint | None:
    key = roof_key(line)
    rate = getattr(profile.rates_flop_per_s, key)
    if rate.value is None or rate.clock_basis_hz is None:
        return None
    held = held_rate_flop_per_s(rate.value, rate.clock_basis_hz, line.sm_clock_hz)
    power = power_roof_flop_per_s(line.power_limit_w, line.j_per_flop)
    return HeldPoint(line, key, Roofs(bandwidth, held, power))


def leading(points: list[HeldPoint]) -> dict[str, HeldPoint]:
    """The fastest case of each rate's key: the one whose roofs a figure draws."""
    return {point.key: point for point in sorted(points, key=lambda point: float(point.line.flop_per_s))}
