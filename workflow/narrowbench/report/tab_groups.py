"""`tab_groups`: batches and groups of rows of the record, many products in one launch, against the best baseline."""

from typing import Any

import pandas as pd

from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, speed_ups
from narrowbench.report.select import OF_GROUPS, grouped, once, reading
from narrowbench.report.tables import Column, Table, count, measured, ratio, scaled

_ORDER = ["device", "mode", "n", "k", "groups", "groups_kind", "m", "rank"]


def table(material: Material) -> Table:
    """A line for each device, mode, layer, kind and number of rows, and kernel; the newest of each."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("layer", "layer"),
        count("groups", "groups"),
        Column("kind", "kind"),
        count("rows", "rows"),
        Column("n_k", "N×K"),
        Column("kernel", "kernel"),
        scaled("time_s", "time", "s", -6, digits=4),
        measured("flop_per_s", "rate", "FLOP/s", 12),
        scaled("bytes_per_s", "traffic", "B/s", 9, digits=4),
        ratio("ratio", "ratio"),
        Column("baseline", "baseline"),
        Column("hlo_calls", "what ran"),
    ]
    lines = once(grouped(material.origin("record")), *OF_GROUPS)
    found = {comparison.line.name: comparison for comparison in speed_ups(lines)}
    rank = {kernel: place for place, kernel in enumerate(in_legend_order(lines.kernel))}
    ordered = lines.assign(rank=lines.kernel.map(rank)).sort_values(_ORDER, kind="stable")
    rows: list[list[Any]] = [
        [
            material.device_name(line.device),
            line["mode"],
            _layer(material, line),
            line.groups,
            line.groups_kind,
            line.m,
            f"{line.n}×{line.k}",
            line.kernel,
            line.time_s,
            reading(line, "flop_per_s"),
            line.bytes_per_s,
            as_reading(found[index].ratio) if index in found else None,
            found[index].baseline.kernel if index in found else None,
            line.hlo_calls,
        ]
        for index, line in ordered.iterrows()
    ]
    note = (
        "Rows: of all groups together. Ragged: each row drawn to a group by itself, sizes unknown to the compiler. "
        "Work counts all rows, traffic the B of each group that has rows once. Ratio: times as fast as the fastest "
        "baseline that multiplies in the format of the activations, with its interval; a dash where XLA widens it."
    )
    return Table("Batches, and groups of rows with a B of their own", columns, rows, note)


def _layer(material: Material, line: pd.Series) -> str | None:
    """The layer of the suite that has the line's products; of no model: None."""
    return material.layers_in_groups.get((int(line.n), int(line.k), int(line.groups), str(line.groups_kind)))
