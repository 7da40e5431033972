"""Estimates for devices that were not measured: from published power, rates and bandwidth, as ranges. No JAX.

Every estimate is of evidence `modelled`. A range multiplies the least with the least and the largest with the largest,
so it is as wide as its assumptions allow, and no interval of any confidence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from narrowbench.config import CONFIGS, Settings, load
from narrowbench.errors import ConfigError
from narrowbench.models.hardware import DeviceProfile, Figure, Grade, Source, profile_for
from narrowgemm.errors import unknown_name

#: Rates that estimates are made for.
ESTIMATED_KEYS = ("bf16", "fp8", "fp6", "fp4")


class Assumption(Settings):
    """A factor that is not known of a device, with the range it is taken to lie in."""

    low: float = Field(gt=0, le=1)
    high: float = Field(gt=0, le=1)
    why: str
    sources: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        return self


class Published(Settings):
    """A rate that somebody measured and published, to be shown beside the estimate."""

    device: str
    rate_key: Literal["bf16", "fp8", "fp6", "fp4"]
    rate_flop_per_s: PositiveFloat
    what: str
    sources: tuple[str, ...] = Field(min_length=1)
    grade: Grade


class Assumptions(Settings):
    """What is assumed of every device, and the public figures."""

    attained_fraction: Assumption
    streamed_fraction: Assumption
    compute_power_fraction: Assumption
    streaming_power_fraction: Assumption
    published: tuple[Published, ...]


@dataclass(frozen=True)
class Range:
    """From the least to the largest value that the assumptions allow."""

    low: float
    high: float

    def times(self, factor: Assumption) -> "Range":
        return Range(self.low * factor.low, self.high * factor.high)

    def over(self, other: "Range") -> "Range":
        return Range(self.low / other.high, self.high / other.low)

    @property
    def middle(self) -> float:
        """Geometric mean of the ends."""
        return math.sqrt(self.low * self.high)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """What a large GEMM and a read of memory are expected to do on a device; None with a reason where a figure lacks.

    rate_flop_per_s, energy_j_per_flop: of a compute-bound GEMM at the device's own power.
    bandwidth_bytes_per_s, energy_j_per_byte: of a memory-bound one.
    """

    device: str
    rate_key: str
    rate_flop_per_s: Range | None
    energy_j_per_flop: Range | None
    bandwidth_bytes_per_s: Range | None
    energy_j_per_byte: Range | None
    reasons: tuple[str, ...]
    evidence: Literal["modelled"] = "modelled"


@dataclass(frozen=True)
class Miss:
    """A public figure against the estimate: `relative` is published over the middle of the range, minus one."""

    published: Published
    estimated: Range
    relative: float
    is_inside: bool


def load_assumptions(
    profiles: Mapping[str, DeviceProfile], sources: Mapping[str, Source], path: Path = CONFIGS / "estimates.yaml"
) -> Assumptions:
    """The assumptions and public figures. Raises ConfigError naming an unknown device or source."""
    assumptions = load(Assumptions, path)
    factors = (getattr(assumptions, name) for name in Assumptions.model_fields if name != "published")
    for named in (*factors, *assumptions.published):
        for key in named.sources:
            if key not in sources:
                raise ConfigError(f"{path.name}: {unknown_name('source', key, sources)}")
    for published in assumptions.published:
        if published.device not in profiles:
            raise ConfigError(f"{path.name}: {unknown_name('device', published.device, profiles)}")
    return assumptions


def estimate(device: str, profile: DeviceProfile, rate_key: str, assumptions: Assumptions) -> Estimate:
    """The estimate for one device and one of `ESTIMATED_KEYS`."""
    reasons: list[str] = []
    peak = _range(getattr(profile.rates_flop_per_s, rate_key), "rate", reasons)
    bandwidth = _range(profile.memory.bandwidth_bytes_per_s, "bandwidth", reasons)
    power = _range(profile.power.limit_w, "power", reasons)
    rate = peak and peak.times(assumptions.attained_fraction)
    streamed = bandwidth and bandwidth.times(assumptions.streamed_fraction)
    return Estimate(
        device=device,
        rate_key=rate_key,
        rate_flop_per_s=rate,
        energy_j_per_flop=power.times(assumptions.compute_power_fraction).over(rate) if power and rate else None,
        bandwidth_bytes_per_s=streamed,
        energy_j_per_byte=(
            power.times(assumptions.streaming_power_fraction).over(streamed) if power and streamed else None
        ),
        reasons=tuple(reasons),
    )


def estimates(profiles: Mapping[str, DeviceProfile], assumptions: Assumptions) -> list[Estimate]:
    """Estimates for every device and rate, by device and in the order of `ESTIMATED_KEYS`."""
    return [estimate(slug, profile, key, assumptions) for slug, profile in profiles.items() for key in ESTIMATED_KEYS]


def misses(profiles: Mapping[str, DeviceProfile], assumptions: Assumptions) -> list[Miss]:
    """Every public figure against the estimate for it. Raises ValueError where a device has no such rate."""
    found = []
    for published in assumptions.published:
        profile = profile_for(published.device, profiles)
        rate = estimate(published.device, profile, published.rate_key, assumptions).rate_flop_per_s
        if rate is None:
            raise ValueError(f"{published.device} has no {published.rate_key} rate, yet {published.what} is published")
        value = published.rate_flop_per_s
        found.append(Miss(published, rate, value / rate.middle - 1, rate.holds(value)))
    return found


def _range(figure: Figure, what: str, reasons: list[str]) -> Range | None:
    """The range of a figure, or None after adding the reason to `reasons`."""
    if figure.range is None:
        reasons.append(f"{what}: {figure.reason}")
        return None
    return Range(*figure.range)
