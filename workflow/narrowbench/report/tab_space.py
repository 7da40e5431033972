"""`tab_space`: what became of every config of the kernels' search spaces, compiled for devices that were not there."""

import json
from typing import Any

import pandas as pd

from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count, scaled


def table(material: Material) -> Table:
    """A line a kernel and device."""
    columns = [
        Column("kernel", "kernel"),
        Column("device", "device"),
        Column("target", "target"),
        Column("shape", "M×N×K"),
        count("configs", "configs"),
        count("compiled", "compiled"),
        count("refused", "refused"),
        count("failed", "failed"),
        count("spilling", "that spill"),
        count("most_registers", "most registers"),
        count("most_shared_memory_bytes", "most shared memory (B)"),
        count("most_tensor_memory_columns", "most tensor memory (columns)"),
        count("fewest_multiplies", "fewest tensor-core instructions"),
        count("most_multiplies", "most"),
        scaled("compile_s", "compiling", "s", 0),
    ]
    frame = material.origin("record")
    lines = frame[frame.kind == "space"]
    rows = [
        _row(material, _of_newest_code(of_one))
        for kernel in in_legend_order(lines.kernel)
        for _, of_one in lines[lines.kernel == kernel].groupby(["device", "m", "n", "k"])
    ]
    note = (
        "Evidence: compiled. Nothing here was run. Every config that a kernel offers at that shape; resources and "
        "instructions are those of the machine code, the time is that of one process, all configs together, on a "
        "machine that did other things too. Refused: by a rule of the kernel or of the compiler, failed: with a fault "
        "of the compiler."
    )
    return Table("The kernels' whole search spaces, compiled", columns, rows, note)


def _of_newest_code(lines: pd.DataFrame) -> pd.DataFrame:
    """Configs of the kernel's code as it was compiled last: the space of older code may have been cut otherwise."""
    codes = lines.kernel_sha256.fillna("")
    newest: pd.DataFrame = lines[codes == codes[lines.utc_time.sort_values().index[-1]]]
    return newest


def _row(material: Material, lines: pd.DataFrame) -> list[Any]:
    first, compiled = lines.iloc[0], lines[lines.status == "ok"]
    multiplies = [sum(json.loads(counts).values()) for counts in compiled.instructions]
    resources = ("registers", "shared_memory_bytes", "tensor_memory_columns")
    return [
        first.kernel,
        material.device_name(first.device),
        compiled.target.iloc[0] if len(compiled) else None,
        f"{first.m}×{first.n}×{first.k}",
        int(lines.config.notna().sum()),
        len(compiled),
        int((lines.status == "unsupported").sum()),
        int((lines.status == "failed").sum()),
        int((compiled.spill_bytes > 0).sum()),
        *(compiled[name].max() if len(compiled) else None for name in resources),
        min(multiplies, default=None),
        max(multiplies, default=None),
        compiled.compile_s.sum() if len(compiled) else None,
    ]
