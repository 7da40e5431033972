"""Measured roofs of a device out of the frame, and whether every point lies below its own."""

from dataclasses import dataclass, field, replace
from typing import Self

import pandas as pd

from narrowbench.models.hardware import DeviceProfile, Rates, rate_key
from narrowbench.models.roofline import RoofedPoint, check_below_roofs
from narrowbench.report.select import (
    CONSTANT,
    Place,
    Reading,
    at,
    grouped,
    is_measured,
    is_timed,
    modes,
    reading,
    timed,
)

#: Key of the memory roof beside those of the rates.
MEMORY = "memory"
#: Data that arithmetic roofs are measured on. Zeros toggle no bits: what the units do at the highest clock. Normal
#: data: what a board's power leaves of that.
ROOF_DATA = ("zeros", "normal")

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


def measured_roofs(
    frame: pd.DataFrame, place: Place, mode: str, data: str = "normal", held_only: bool = False
) -> dict[str, Reading]:
    """The roofs that were measured: `memory` in bytes/s, and FLOP/s on such data by key of the rate.

    The best figure counts, of reading and copying, and of several sizes; on zeros, of a suite's GEMMs on constant data
    too, for that is what the micro-benchmark does. A roof that was not measured in a mode is that of a burst,
    unless `held_only`: nothing sustained is faster.
    """
    best = _best_lines(frame, place, mode, data, held_only)
    return {key: reading(line, _rate(line)) for key, line in best.items()}


def _best_lines(
    frame: pd.DataFrame, place: Place, mode: str, data: str, held_only: bool = False
) -> dict[str, pd.Series]:
    bounds = frame.quantity.isin(("read", "copy")) | ((frame.quantity == "flop") & (frame.distribution == data))
    roofs = is_measured(frame) & (frame.kind == "roof") & bounds
    constant = is_timed(frame) & frame.distribution.isin(CONSTANT if data == "zeros" else ())
    known = at(frame[roofs | constant], place)
    best: dict[str, pd.Series] = {}
    for wanted in dict.fromkeys((mode, mode if held_only else "burst")):
        fastest: dict[str, pd.Series] = {}
        for _, line in known[known["mode"] == wanted].iterrows():
            key = _bounded(line)
            if key not in fastest or line[_rate(line)] > fastest[key][_rate(line)]:
                fastest[key] = line
        best = fastest | best
    return best


def _bounded(line: pd.Series) -> str:
    """Key of what a line says the device can reach."""
    if line.kind == "gemm":
        return roof_key(line)
    return rate_key(line.roof_format, line.roof_format) if line.quantity == "flop" else MEMORY


def _rate(line: pd.Series) -> str:
    return "bytes_per_s" if line.kind == "roof" and line.quantity != "flop" else "flop_per_s"


def roof_key(line: pd.Series) -> str:
    """Key of the rate that bounds a GEMM's line: that of its wider operand."""
    return rate_key(line.a_format, line.b_format)


def check(frame: pd.DataFrame) -> None:
    """Raise AboveRoofError naming every point whose interval lies above the interval of a measured roof of its device.

    Arithmetic roofs are those on zeros, for no data is faster; where only normal data was tried, it bounds normal data.
    """
    points = []
    measured = pd.concat([timed(frame), grouped(frame)])
    for where in measured[["origin", "device"]].drop_duplicates().itertuples(index=False, name=None):
        place = Place(*where)
        lines = at(measured, place)
        for mode in modes(lines):
            normal, zeros = (_ceilings(frame, place, mode, data) for data in ("normal", "zeros"))
            for _, line in lines[lines["mode"] == mode].iterrows():
                points += _under_roofs(line, normal | zeros if line.distribution == "normal" else zeros)
    check_below_roofs(points)


def _ceilings(frame: pd.DataFrame, place: Place, mode: str, data: str) -> dict[str, Reading]:
    """The roofs, their intervals stretched up to their fast samples.

    A roof is what can be reached, and on a busy host the median of its samples is reached by half of them.
    """
    ceilings = {}
    for key, line in _best_lines(frame, place, mode, data).items():
        height = reading(line, _rate(line))
        if height.interval is not None:
            fast = height.value * float(line.time_s / line.time_p5_s)
            height = Reading(height.value, replace(height.interval, high=max(height.interval.high, fast)))
        ceilings[key] = height
    return ceilings


def _under_roofs(line: pd.Series, roofs: dict[str, Reading]) -> list[RoofedPoint]:
    name = f"{line.device}: {line.kernel} m={line.m} n={line.n} k={line.k} {line['mode']} {line.distribution}"
    key = roof_key(line)
    points = []
    if key in roofs:
        points.append(_under(name, reading(line, "flop_per_s"), f"the {key} roof, FLOP/s", roofs[key]))
    if MEMORY in roofs and line.cache == "rotated":
        points.append(_under(name, reading(line, "bytes_per_s"), "the memory roof, bytes/s", roofs[MEMORY]))
    return points


def _under(point: str, value: Reading, roof: str, height: Reading) -> RoofedPoint:
    return RoofedPoint(point, value.value, value.interval, roof, height.value, height.interval)
