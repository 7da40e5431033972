"""Measured roofs of a device out of the frame, and whether every point lies below its own."""

from dataclasses import replace

import pandas as pd

from narrowbench.models.hardware import rate_key
from narrowbench.models.roofline import RoofedPoint, check_below_roofs
from narrowbench.report.select import Place, Reading, at, modes, places, reading, usual

#: Key of the memory roof beside those of the rates.
MEMORY = "memory"


def measured_roofs(frame: pd.DataFrame, place: Place, mode: str, held_only: bool = False) -> dict[str, Reading]:
    """The roofs that were measured: `memory` in bytes/s, and FLOP/s by key of the rate.

    The best figure counts, of reading and copying, and of several sizes. A mode whose roofs were not measured has those
    of a burst, unless `held_only`: nothing sustained is faster.
    """
    lines = at(frame, place)
    lines = lines[(lines.kind == "roof") & (lines.status == "ok") & (lines.evidence == "measured")]
    held = lines[lines["mode"] == mode]
    best: dict[str, Reading] = {}
    for _, line in (held if held_only or len(held) else lines[lines["mode"] == "burst"]).iterrows():
        is_rate = line.quantity == "flop"
        key = rate_key(line.roof_format, line.roof_format) if is_rate else MEMORY
        height = _ceiling(line, "flop_per_s" if is_rate else "bytes_per_s")
        if key not in best or height.value > best[key].value:
            best[key] = height
    return best


def _ceiling(line: pd.Series, name: str) -> Reading:
    """A roof's figure; its interval reaches up to its fast samples.

    A roof is what can be reached, and on a busy host the median of its samples is reached by half of them.
    """
    height = reading(line, name)
    if height.interval is None:
        return height
    fast = height.value * float(line.time_s / line.time_p5_s)
    return Reading(height.value, replace(height.interval, high=max(height.interval.high, fast)))


def roof_key(line: pd.Series) -> str:
    """Key of the rate that bounds a GEMM's line: that of its wider operand."""
    return rate_key(line.a_format, line.b_format)


def check(frame: pd.DataFrame) -> None:
    """Raise AboveRoofError naming every point whose interval lies above the interval of a measured roof of its device.

    Only normal data: on zeros a board that its power limits is faster, and not every roof was measured with them.
    """
    points = []
    for place in places(frame):
        lines = at(usual(frame), place)
        for mode in modes(lines):
            roofs = measured_roofs(frame, place, mode)
            for _, line in lines[lines["mode"] == mode].iterrows():
                points += _under_roofs(line, roofs)
    check_below_roofs(points)


def _under_roofs(line: pd.Series, roofs: dict[str, Reading]) -> list[RoofedPoint]:
    name = f"{line.device}: {line.kernel} m={line.m} n={line.n} k={line.k} {line['mode']}"
    key = roof_key(line)
    points = []
    if key in roofs:
        points.append(_under(name, reading(line, "flop_per_s"), f"the {key} roof, FLOP/s", roofs[key]))
    if MEMORY in roofs:
        points.append(_under(name, reading(line, "bytes_per_s"), "the memory roof, bytes/s", roofs[MEMORY]))
    return points


def _under(point: str, value: Reading, roof: str, height: Reading) -> RoofedPoint:
    return RoofedPoint(point, value.value, value.interval, roof, height.value, height.interval)
