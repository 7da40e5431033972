"""`tab_epilogues`: a GEMM that finishes its result in the kernel, over a baseline's GEMM and what it does after it."""

from narrowbench.report.load import Material
from narrowbench.report.ratios import as_reading, speed_ups
from narrowbench.report.select import once, timed
from narrowbench.report.tables import Column, Table, ratio, scaled


def table(material: Material) -> Table:
    """A line for each case of the record with an epilogue, and the best baseline's time for the same."""
    columns = [
        Column("device", "device"),
        Column("mode", "mode"),
        Column("shape", "M×N×K"),
        Column("epilogue", "epilogue"),
        Column("out_format", "result"),
        Column("kernel", "kernel"),
        scaled("time_s", "time", "s", -6),
        Column("baseline", "baseline"),
        scaled("baseline_time_s", "its time", "s", -6),
        ratio("speed_up", "ratio"),
        Column("turns", "sampled"),
    ]
    lines = timed(material.origin("record"))
    found = speed_ups(once(lines[lines.epilogue != "none"]))
    rows = [
        [
            material.device_name(each.line.device),
            each.line["mode"],
            f"{each.line.m}×{each.line.n}×{each.line.k}",
            each.line.epilogue,
            each.line.out_format,
            each.line.kernel,
            each.line.time_s,
            each.baseline.kernel,
            each.baseline.time_s,
            as_reading(each.ratio),
            each.pairing,
        ]
        for each in sorted(found, key=lambda each: (each.line.device, each.line["mode"], each.line.k, each.line.flop))
    ]
    note = (
        "Ratio: how many times the kernel's time the baseline's is, with its 95 % interval; above 1 the fused kernel "
        "is faster. The baseline is its library's product and the passes over C that XLA makes of the rest; between "
        "them C is BF16."
    )
    return Table("Epilogues in the kernel, over a product and what follows it", columns, rows, note)
