"""`tab_compiled`: kernels compiled to machine code for devices that were not there. Nothing here ran."""

import json

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count


def table(material: Material) -> Table:
    """A line a kernel, target and config."""
    columns = [
        Column("kernel", "kernel"),
        Column("target", "target"),
        Column("shape", "M×N×K"),
        count("registers", "registers"),
        count("spill_bytes", "spilled (B)"),
        count("shared_memory_bytes", "shared memory (B)"),
        count("tensor_memory_columns", "tensor memory (columns)"),
        count("code_bytes", "code (B)"),
        Column("instructions", "instructions"),
        Column("config", "config"),
    ]
    frame = material.origin("record")
    lines = frame[(frame.evidence == "compiled") & (frame.status == "ok")]
    resources = ["registers", "spill_bytes", "shared_memory_bytes", "tensor_memory_columns", "code_bytes"]
    rows = [
        [
            line.kernel,
            line.target,
            f"{line.m}×{line.n}×{line.k}",
            *line[resources],
            _counts(line.instructions),
            line.config,
        ]
        for _, line in lines.iterrows()
    ]
    return Table(
        "Kernels compiled for devices that were not there", columns, rows, "Evidence: compiled. Nothing here was run."
    )


def _counts(instructions: object) -> str | None:
    if not isinstance(instructions, str):
        return None
    return ", ".join(f"{name} {count}" for name, count in json.loads(instructions).items())
