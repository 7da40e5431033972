"""`tab_bit_order`: joules of a GEMM on ordered operands over those on the same operands as they were drawn."""

from collections.abc import Iterator

import pandas as pd

from narrowbench.models.toggles import ORDERED
from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, unpaired, with_joules
from narrowbench.report.select import SAME_CASE, once, reading, timed_anywhere
from narrowbench.report.tables import Column, Table, measured, ratio, scaled

#: What ordered and drawn operands have in common, beside what they are drawn from.
_SAME_BUT_DATA = [name for name in SAME_CASE if name != "distribution"]
_IN_WORDS = {"k": "K, by B", "rows": "rows of A and of B", "sorted": "each row sorted (control)"}


def table(material: Material) -> Table:
    """A line for each case of the record with ordered operands, joules, and the same case on operands as drawn."""
    columns = [
        Column("device", "device"),
        Column("shape", "M×N×K"),
        Column("kernel", "kernel"),
        Column("distribution", "data"),
        Column("order", "order"),
        measured("drawn_j_per_flop", "as drawn", "J/FLOP", -12),
        measured("j_per_flop", "ordered", "J/FLOP", -12),
        ratio("energy_ratio", "ratio"),
        scaled("drawn_sm_clock_hz", "clock, as drawn", "Hz", 9),
        scaled("sm_clock_hz", "ordered", "Hz", 9),
        _bits("drawn_toggles_along_k", "bits along K, as drawn"),
        _bits("toggles_along_k", "ordered"),
        _bits("drawn_toggles_along_rows", "bits along rows, as drawn"),
        _bits("toggles_along_rows", "ordered"),
    ]
    rows = [
        [
            material.device_name(line.device),
            f"{line.m}×{line.n}×{line.k}",
            line.kernel,
            ORDERED[line.distribution].base,
            _IN_WORDS[ORDERED[line.distribution].order],
            reading(drawn, "j_per_flop"),
            reading(line, "j_per_flop"),
            as_reading(unpaired(line.windows_j, drawn.windows_j)) if _is_same_board(line, drawn) else None,
            drawn.sm_clock_hz,
            line.sm_clock_hz,
            line.drawn_toggles_along_k,
            line.toggles_along_k,
            line.drawn_toggles_along_rows,
            line.toggles_along_rows,
        ]
        for line, drawn in _pairs(timed_anywhere(material.origin("record")))
    ]
    note = (
        "Ratio: joules of a launch on ordered operands over those on the same operands as drawn, with a 95 % bootstrap "
        "interval of the windows' medians; below 1 the order saves; none where the two ran on different boards. Bits: "
        "how many change from one code to the next, mean of both operands, counted and not measured. Sorting every row "
        "gives another product: it shows what order alone can change."
    )
    if not rows:
        note = "The record holds no joules of ordered operands yet."
    return Table("Joules of a GEMM by the order of its operands", columns, rows, note)


def _bits(name: str, heading: str) -> Column:
    return Column(name, heading, lambda value: f"{value:.2f}", "right")


def _pairs(lines: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Each line of ordered operands with that of the drawn ones: of the same board where there is one, the newest."""
    lines = with_joules(lines)
    for _, line in once(lines[lines.distribution.isin(ORDERED)]).iterrows():
        drawn = lines[lines.distribution == ORDERED[line.distribution].base]
        drawn = drawn[(drawn[_SAME_BUT_DATA] == line[_SAME_BUT_DATA]).all(axis=1)]
        ranked = drawn.sort_values("utc_time", kind="stable")
        on_board = [other for _, other in ranked.iterrows() if _is_same_board(line, other)]
        if not ranked.empty:
            yield line, on_board[-1] if on_board else ranked.iloc[-1]


def _is_same_board(line: pd.Series, other: pd.Series) -> bool:
    boards = [None if pd.isna(each.device_uuid_hash) else str(each.device_uuid_hash) for each in (line, other)]
    return boards[0] == boards[1]
