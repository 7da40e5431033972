"""`tab_tile_loads`: how often one operand tile is loaded, counted in a model of the kernel's own order of tiles."""

from typing import Any

from narrowbench.models.chosen import Modelled
from narrowbench.models.kerneltime import Coefficients
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count, scaled
from narrowbench.report.time_model import absent_kernels
from narrowbench.report.units import number

#: One device is enough, for the counts of the first columns are the same on all.
DEVICE = "nvidia-b200"
#: One kernel for each width of the operands' elements.
KERNELS = ("blackwell_tcgen05_bf16", "blackwell_tcgen05_fp8", "blackwell_tcgen05_nvfp4")


def table(material: Material) -> Table:
    """A line a kernel, shape and number of blocks that make a tile together."""
    columns = [
        Column("kernel", "kernel"),
        Column("shape", "M×N×K"),
        count("blocks_per_tile", "blocks a tile"),
        Column("tile", "tile"),
        count("a_tile_loads", "loads of a tile of A"),
        count("b_tile_loads", "loads of a tile of B"),
        scaled("l2_read_bytes", "from L2", "B", 9),
        scaled("hbm_read_bytes", "from memory", "B", 9),
        Column("hbm_loads", "loads of a byte from memory", lambda value: number(value, 3), "right"),
        Column("evidence", "evidence"),
    ]
    launches = absent_kernels(material, Coefficients(), leading_only=False)
    rows = [_row(launch) for launch in launches if launch.device == DEVICE and launch.kernel in KERNELS]
    note = (
        f"Modelled for an {material.profiles[DEVICE].name}; nothing was counted in hardware. A tile of an operand is "
        "brought into shared memory once for every output tile in its row or column. Most of these loads are served by "
        "the L2, a least-recently-used one here; a byte that is loaded from memory once is the least."
    )
    return Table("How often an operand tile is loaded", columns, rows, note)


def _row(launch: Modelled) -> list[Any]:
    problem, schedule, traffic = launch.problem, launch.schedule, launch.traffic
    return [
        launch.kernel,
        f"{problem.m}×{problem.n}×{problem.k}",
        schedule.cores_per_unit,
        f"{schedule.tile_m}×{schedule.tile_n}",
        traffic.a_tile_loads,
        traffic.b_tile_loads,
        traffic.l2_read_bytes,
        traffic.hbm_read_bytes,
        traffic.hbm_loads,
        "modelled",
    ]
