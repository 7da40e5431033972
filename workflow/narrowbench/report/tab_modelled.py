"""`tab_modelled`: modelled times of kernels that were compiled for absent devices. Nothing here ran."""

from typing import Any

from narrowbench.models.chosen import Modelled
from narrowbench.models.kerneltime import Coefficients
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count, percent, scaled
from narrowbench.report.time_model import absent_kernels, time_model
from narrowbench.report.units import number, quantity


def table(material: Material) -> Table:
    """A line a kernel, device and shape, with the config that the kernel would use."""
    columns = [
        Column("kernel", "kernel"),
        Column("device", "device"),
        Column("shape", "M×N×K"),
        Column("tile", "tile"),
        count("blocks_per_tile", "blocks a tile"),
        count("waves", "waves"),
        scaled("time_s", "time", "s", -6),
        scaled("flop_per_s", "throughput", "FLOP/s", 12),
        percent("share_of_peak", "of dense peak"),
        percent("share_at_nominal_rates", "at nominal rates"),
        Column("bound", "binds"),
        Column("evidence", "evidence"),
    ]
    model = time_model(material)
    rows = [_row(material, launch) for launch in absent_kernels(material, model.coefficients)]
    note = (
        f"Nothing here was run. {model.basis} Taken are {_listed(model.coefficients)}. The clock is that of the data "
        "sheet's rate; power limits it no further, as it does a real board. At nominal rates: what whole waves and "
        "the memory's nominal bandwidth alone leave."
    )
    return Table("Modelled times of kernels compiled for absent devices", columns, rows, note)


def _row(material: Material, launch: Modelled) -> list[Any]:
    problem, schedule = launch.problem, launch.schedule
    return [
        launch.kernel,
        material.device_name(launch.device),
        f"{problem.m}×{problem.n}×{problem.k}",
        f"{schedule.tile_m}×{schedule.tile_n}",
        schedule.cores_per_unit,
        launch.time.waves,
        launch.time.total_s,
        launch.rate_flop_per_s,
        launch.share,
        launch.most_share,
        launch.time.bound,
        "modelled",
    ]


def _listed(coefficients: Coefficients) -> str:
    c = coefficients
    return (
        f"{number(c.mma)} of the tensor cores' rate, {number(c.memory)} of the memory's bandwidth, a core "
        f"{number(c.l2_bytes_per_cycle)} B a cycle from the L2 and {number(c.store_bytes_per_cycle)} to it, "
        f"{number(c.tile_cycles)} cycles a tile to fill and drain, {quantity(c.start_s, 's')} to start"
    )
