"""`tab_gemm`: every measured GEMM of the record, against its roofs and its baseline."""

import pandas as pd

from narrowbench.models.roofline import Roofs
from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, speed_ups
from narrowbench.report.roofs import MEMORY, ROOF_DATA, KnownRoofs, measured_roofs, roof_key
from narrowbench.report.select import Place, data_of, reading, timed
from narrowbench.report.tables import Column, Table, count, measured, percent, ratio, scaled


def table(material: Material) -> Table:
    """A line a case, in the order of the frame."""
    columns = [
        Column("device", "device"),
        Column("suite", "suite"),
        Column("kernel", "kernel"),
        *(count(name, name.upper()) for name in "mnk"),
        Column("mode", "mode"),
        Column("distribution", "data"),
        scaled("time_s", "time", "s", -6, digits=4),
        measured("flop_per_s", "rate", "FLOP/s", 12),
        count("samples", "n"),
        percent("share_of_measured_roof", "of measured roof"),
        percent("share_of_sheet_roof", "of data sheet"),
        ratio("ratio", "ratio"),
        Column("baseline", "baseline"),
        Column("pairing", "samples"),
        scaled("sm_clock_hz", "clock", "Hz", 9),
        Column("hlo_calls", "what ran"),
    ]
    lines = timed(material.origin("record"))
    ratios = {comparison.line.name: comparison for comparison in speed_ups(lines)}
    shares = RoofShares(material, lines)
    rows = []
    for index, line in lines.iterrows():
        found = ratios.get(index)
        rows.append(
            [
                material.device_name(line.device),
                *line[["suite", "kernel", "m", "n", "k", "mode"]],
                data_of(line),
                line.time_s,
                reading(line, "flop_per_s"),
                line.samples,
                shares.measured(line),
                shares.sheet(line),
                as_reading(found.ratio) if found else None,
                found.baseline.kernel if found else None,
                found.pairing if found else None,
                line.sm_clock_hz,
                line.hlo_calls,
            ]
        )
    note = (
        "Median with its 95 % order-statistic interval. Ratio: times as fast as the fastest baseline for the same "
        "work; of pairs, with an order-statistic interval, where the samples were taken in turn, else of medians with "
        "a bootstrap interval, which says nothing of how two boards differ. Roof: the lower of memory and arithmetic "
        "(on zeros, where measured) at its intensity."
    )
    return Table("Every measured GEMM of the record", columns, rows, note)


class RoofShares:
    """How much of its roof a case reaches: of the measured one, and of the data sheet's dense one."""

    def __init__(self, material: Material, lines: pd.DataFrame) -> None:
        places = lines[["origin", "device", "mode"]].drop_duplicates().itertuples(index=False, name=None)
        self._measured = {
            (*where, data): measured_roofs(material.frame, Place(*where[:2]), where[2], data)
            for where in places
            for data in ROOF_DATA
        }
        self._sheets = {device: KnownRoofs.of(profile) for device, profile in material.profiles.items()}

    def measured(self, line: pd.Series) -> float | None:
        """Share of the lower measured roof; None where it was not measured.

        The arithmetic roof is that on zeros, which bounds all data; where there is none, that on normal data for these.
        """
        where = (line.origin, line.device, line["mode"])
        roofs = self._measured[*where, "zeros"]
        if line.distribution == "normal":
            roofs = self._measured[*where, "normal"] | roofs
        heights = {key: roof.value for key, roof in roofs.items()}
        return _share(line, KnownRoofs(heights.pop(MEMORY, None), heights))

    def sheet(self, line: pd.Series) -> float | None:
        """Share of the lower roof of the data sheet; None where it does not give both."""
        return _share(line, self._sheets.get(line.device, KnownRoofs()))


def _share(line: pd.Series, known: KnownRoofs) -> float | None:
    key = roof_key(line)
    if known.bandwidth is None or key not in known.arithmetic:
        return None
    roofs = Roofs(known.bandwidth, known.arithmetic[key])
    return float(line.flop_per_s) / roofs.attainable_flop_per_s(line.intensity_flop_per_byte)
