"""`tab_compiled`: kernels compiled to machine code for devices that were not there. Nothing here ran."""

import json
import re
from typing import Any

import pandas as pd

from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count
from narrowgemm.machine_code import MULTIPLY

#: Mnemonic of the bulk loads that feed the tensor cores.
_LOAD = re.compile(r"UTMALDG")


def table(material: Material) -> Table:
    """A line a kernel, device and config."""
    columns = [
        Column("kernel", "kernel"),
        Column("device", "device"),
        Column("target", "target"),
        Column("shape", "M×N×K"),
        Column("config", "config", _settings),
        count("registers", "registers"),
        count("spill_bytes", "spilled (B)"),
        count("shared_memory_bytes", "shared memory (B)"),
        count("tensor_memory_columns", "tensor memory (columns)"),
        count("code_bytes", "code (B)"),
        Column("multiplies", "tensor-core instructions"),
        count("loads", "bulk loads"),
    ]
    frame = material.origin("record")
    lines = frame[(frame.kind == "compile") & (frame.status == "ok")]
    rows = [
        _row(material, line)
        for kernel in in_legend_order(lines.kernel)
        for _, line in lines[lines.kernel == kernel].iterrows()
    ]
    note = "Evidence: compiled. Nothing here was run. Instructions are counted in the machine code, not in time."
    return Table("Kernels compiled for devices that were not there", columns, rows, note)


def _row(material: Material, line: pd.Series) -> list[Any]:
    counts = {} if pd.isna(line.instructions) else json.loads(line.instructions)
    multiplies = ", ".join(f"{name} ×{number}" for name, number in counts.items() if MULTIPLY.match(name))
    loads = sum(number for name, number in counts.items() if _LOAD.match(name))
    resources = ["registers", "spill_bytes", "shared_memory_bytes", "tensor_memory_columns", "code_bytes"]
    return [
        line.kernel,
        material.device_name(line.device),
        line.target,
        f"{line.m}×{line.n}×{line.k}",
        line.config,
        *line[resources],
        multiplies or None,
        loads if counts else None,
    ]


def _settings(config: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in json.loads(config).items())
