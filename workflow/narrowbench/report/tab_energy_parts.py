"""`tab_energy_parts`: what moving a byte costs, by where it comes from, and what a board draws that does nothing."""

import pandas as pd

from narrowbench.models.statistics import Interval
from narrowbench.report.load import Material
from narrowbench.report.select import CONFIDENCE, Reading, board_of, is_measured, reading
from narrowbench.report.tables import Column, Table, measured, scaled

#: Micro-benchmarks of roofs as people read them, from the farthest memory to none.
_IN_WORDS = {
    "copy": "memory, read and written",
    "read": "memory, read",
    "cache_read": "last-level cache, read",
    "shared_read": "shared memory, read",
    "active_idle": "nothing, clocks up",
}


def table(material: Material) -> Table:
    """A line a device of the record and micro-benchmark whose energy was measured."""
    columns = [
        Column("device", "device"),
        Column("board", "board"),
        Column("what", "what"),
        measured("bytes_per_s", "rate", "B/s", 12),
        scaled("mean_power_w", "power", "W", 0),
        scaled("idle_w", "idle before", "W", 0),
        measured("j_per_byte", "energy", "J/B", -12),
        scaled("j_per_byte_net", "without idle", "J/B", -12),
        scaled("sm_clock_hz", "clock", "Hz", 9),
    ]
    rows = [_row(material, line) for _, line in lines_of_parts(material).iterrows()]
    note = (
        "Sustained, medians with their 95 % order-statistic intervals; bytes of a copy count both ways. A byte is one "
        "that arrives in a register, so that what is on its way is in its energy, and what is done with the word, an "
        "addition or an exclusive or, as well. Idle: read before the case, with no work on the device."
    )
    return Table("Energy of bytes, and power of a board that waits", columns, rows, note)


def lines_of_parts(material: Material) -> pd.DataFrame:
    """The record's micro-benchmarks with energy, each device's from the farthest memory to none."""
    frame = material.origin("record")
    lines = frame[is_measured(frame) & (frame.kind == "roof") & frame.energy_j.notna()]
    lines = lines[lines.quantity.isin(_IN_WORDS)]
    ranks = lines.quantity.map({quantity: rank for rank, quantity in enumerate(_IN_WORDS)})
    return lines.assign(rank=ranks).sort_values(["device", "rank"])


def _row(material: Material, line: pd.Series) -> list[object]:
    moved = line.quantity != "active_idle"
    return [
        material.device_name(line.device),
        board_of(line),
        _IN_WORDS[line.quantity],
        reading(line, "bytes_per_s") if moved else None,
        line.mean_power_w,
        line.idle_w,
        _a_byte(line) if moved else None,
        line.energy_net_j / line.work if moved else None,
        line.sm_clock_hz,
    ]


def _a_byte(line: pd.Series) -> Reading:
    low, high = line.energy_low_j / line.work, line.energy_high_j / line.work
    return Reading(line.energy_j / line.work, None if pd.isna(low) else Interval(low, high, CONFIDENCE))
