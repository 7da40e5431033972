"""`tab_energy_ratios`: joules of a narrow format over those of a wider one, for the same work."""

from collections.abc import Iterator

import pandas as pd

from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, bits, unpaired, with_joules
from narrowbench.report.select import BOARD, SAME_WORK, is_native, once, reading, timed
from narrowbench.report.tables import Column, Table, measured, ratio

#: Formats of both operands that narrower ones are held against, the widest first.
_BASES = ("bf16", "fp8_e4m3")


def table(material: Material) -> Table:
    """A line for each work, narrow format and base format of the record."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("shape", "M×N×K"),
        Column("distribution", "data"),
        Column("formats", "formats"),
        Column("kernel", "kernel"),
        measured("j_per_flop", "energy", "J/FLOP", -12),
        Column("base_formats", "over"),
        Column("base_kernel", "kernel"),
        ratio("energy_ratio", "ratio"),
    ]
    lines = once(timed(material.origin("record")), BOARD)
    lines = with_joules(lines[is_native(lines)])
    rows = [
        [
            material.device_name(line.device),
            line["mode"],
            f"{line.m}×{line.n}×{line.k}",
            line.distribution,
            _formats(line),
            line.kernel,
            reading(line, "j_per_flop"),
            _formats(base),
            base.kernel,
            as_reading(unpaired(line.windows_j, base.windows_j)),
        ]
        for line, base in _pairs(lines)
    ]
    note = (
        "Of each pair of formats the kernel whose median launch spends least. Ratio: joules of a launch over those of "
        "the base, with a 95 % bootstrap interval of the windows' medians; below 1 it saves. Both were measured on one "
        "board, so that its sensor's gain error cancels, but not in turn; where several boards did the same work, each "
        "has its line."
    )
    return Table("Energy of narrow formats over wider ones, for the same work", columns, rows, note)


def _pairs(lines: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series]]:
    """The leanest line of each pair of formats, and that of every wider base for the same work on the same board."""
    for _, work in lines.groupby([*SAME_WORK, BOARD], sort=True, dropna=False):
        ordered = work.sort_values("energy_j", kind="stable")
        leanest = {_formats(line): line for _, line in list(ordered.iterrows())[::-1]}
        for line in sorted(leanest.values(), key=lambda line: (-_bits(line), _formats(line))):
            for base in _BASES:
                wider = leanest.get(f"{base} × {base}")
                if wider is not None and _bits(wider) > _bits(line):
                    yield line, wider


def _formats(line: pd.Series) -> str:
    return f"{line.a_format} × {line.b_format}"


def _bits(line: pd.Series) -> int:
    """Bits of an element of both operands together."""
    return bits(line.a_format) + bits(line.b_format)
