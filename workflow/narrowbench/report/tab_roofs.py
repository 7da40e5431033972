"""`tab_roofs`: every roof that was measured, beside the data sheet's."""

from collections.abc import Iterator
from typing import Any

from narrowbench.report.kernels import format_in_words
from narrowbench.report.load import Material
from narrowbench.report.roofs import MEMORY, RATE_KEYS, ROOF_DATA, KnownRoofs, measured_roofs
from narrowbench.report.select import Place, modes, places, timed
from narrowbench.report.tables import Column, Table, measured, percent


def table(material: Material) -> Table:
    """A line a device of the record, mode and roof."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("roof", "roof"),
        Column("unit", "unit", lambda unit: f"T{unit}"),
        measured("measured", "measured", "", 12),
        Column("data_sheet", "data sheet", lambda value: f"{value / 1e12:,.5g}", "right"),
        percent("share", "share"),
    ]
    lines = timed(material.origin("record"))
    rows = [
        row
        for place in places(lines)
        for mode in modes(material.origin("record"))
        for row in _rows(material, place, mode)
    ]
    note = (
        "Bandwidth counts reads plus writes: the better of reading and copying. Median with its 95 % order-statistic "
        "interval; share: measured of data sheet, dense. Zeros toggle no bits: arithmetic at the highest clock; "
        "normal data: what the power of the board leaves of it."
    )
    return Table("Measured roofs of the devices of the record", columns, rows, note)


def _rows(material: Material, place: Place, mode: str) -> Iterator[list[Any]]:
    profile = material.profiles.get(place.device)
    sheet = KnownRoofs() if profile is None else KnownRoofs.of(profile)
    roofs = {data: measured_roofs(material.origin("record"), place, mode, data, held_only=True) for data in ROOF_DATA}
    keys = [key for key in (MEMORY, *RATE_KEYS) if any(key in known for known in roofs.values())]
    for key, data in ((key, data) for key in keys for data in ROOF_DATA if key in roofs[data]):
        if key == MEMORY and data != ROOF_DATA[0]:
            continue  # bandwidth does not ask for data, so that it is in both
        roof = roofs[data][key]
        promised = sheet.bandwidth if key == MEMORY else sheet.arithmetic.get(key)
        unit, name = ("B/s", "memory") if key == MEMORY else ("FLOP/s", f"{format_in_words(key)} on {data}")
        share = None if promised is None else roof.value / promised
        yield [material.place_name(place), mode, name, unit, roof, promised, share]
