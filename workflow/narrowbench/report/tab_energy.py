"""`tab_energy`: joules of every case of the record whose energy was measured."""

from narrowbench.report.load import Material
from narrowbench.report.ratios import energy_savings
from narrowbench.report.select import Reading, once, reading, timed
from narrowbench.report.tables import Column, Table, count, measured, ratio, scaled


def table(material: Material) -> Table:
    """A line a case with energy, in the order of the frame."""
    columns = [
        Column("device", "device"),
        Column("kernel", "kernel"),
        Column("shape", "M×N×K"),
        Column("distribution", "data"),
        scaled("mean_power_w", "power", "W", 0),
        scaled("sm_clock_hz", "clock", "Hz", 9),
        measured("j_per_flop", "energy", "J/FLOP", -12),
        scaled("j_per_flop_net", "without idle", "J/FLOP", -12),
        count("energy_windows", "windows"),
        ratio("saving", "saving"),
        Column("baseline", "baseline"),
        Column("scope", "scope"),
    ]
    lines = once(timed(material.origin("record")))
    lines = lines[lines.energy_j.notna()]
    savings = {comparison.line.name: comparison for comparison in energy_savings(lines)}
    rows = []
    for index, line in lines.iterrows():
        found = savings.get(index)
        rows.append(
            [
                material.device_name(line.device),
                line.kernel,
                f"{line.m}×{line.n}×{line.k}",
                line.distribution,
                line.mean_power_w,
                line.sm_clock_hz,
                reading(line, "j_per_flop"),
                *line[["j_per_flop_net", "energy_windows"]],
                Reading(found.ratio.value, found.ratio.interval) if found else None,
                found.baseline.kernel if found else None,
                f"{line.energy_scope}, {line.energy_source}",
            ]
        )
    note = (
        "Median of the windows with its 95 % order-statistic interval, sustained; the sensor's gain error is not in "
        "it. Saving: the joules of the baseline that spends least, over the kernel's. Scope: what the meter covers, "
        "and whether its counter was read or its power integrated."
    )
    return Table("Energy of the sustained cases of the record", columns, rows, note)
