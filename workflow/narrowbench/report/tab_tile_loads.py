"""`tab_tile_loads`: how often operand tiles are loaded, in a model of the kernel's order and as hardware counted it."""

from typing import Any

import pandas as pd

from narrowbench.models.chosen import Modelled
from narrowbench.models.kerneltime import Coefficients
from narrowbench.models.samples import CountedLaunch, counted_launches
from narrowbench.models.traffic import Traffic, operand_bytes
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count, scaled
from narrowbench.report.time_model import absent_kernels
from narrowbench.report.units import number

#: One device is enough of those that are modelled alone, for the counts of the first columns are the same on all.
DEVICE = "nvidia-b200"
#: One kernel for each width of the operands' elements.
KERNELS = ("blackwell_tcgen05_bf16", "blackwell_tcgen05_fp8", "blackwell_tcgen05_nvfp4")


def table(material: Material) -> Table:
    """A line a counted launch, and one a kernel, shape and number of blocks that make a tile on a modelled device."""
    columns = [
        Column("kernel", "kernel"),
        Column("device", "device"),
        Column("shape", "M×N×K"),
        count("blocks_per_tile", "blocks a tile"),
        Column("tile", "tile"),
        count("a_tile_loads", "loads of a tile of A"),
        count("b_tile_loads", "loads of a tile of B"),
        scaled("l2_read_bytes", "from L2", "B", 9),
        scaled("counted_l2_read_bytes", "counted", "B", 9),
        scaled("hbm_read_bytes", "from memory", "B", 9),
        scaled("counted_hbm_read_bytes", "counted", "B", 9),
        _loads("l2_loads", "L2 loads of a byte"),
        _loads("counted_l2_loads", "counted"),
        _loads("hbm_loads", "memory loads of a byte"),
        _loads("counted_hbm_loads", "counted"),
        Column("evidence", "evidence"),
    ]
    counted = counted_launches(material.origin("record"), material.profiles)
    rows = [_row(material, str(each.line.device), str(each.line.kernel), each, each.line) for each in counted]
    rows += [
        _row(material, each.device, each.kernel, each, None)
        for each in absent_kernels(material, Coefficients(), leading_only=False)
        if each.device == DEVICE and each.kernel in KERNELS
    ]
    note = (
        "Modelled, but for what is counted: by hardware counters, in one launch that found the L2 empty. A tile of an "
        "operand is brought into shared memory once for every output tile in its row or column. Most of these loads "
        "are served by the L2, in the model a least-recently-used one; a byte that is loaded from memory once is the "
        "least. Of the L2, sectors are counted that multiprocessors are served: fewer than modelled where one read of "
        "the L2 serves several of them."
    )
    return Table("How often an operand tile is loaded", columns, rows, note)


def _loads(name: str, heading: str) -> Column:
    return Column(name, heading, lambda value: number(value, 3), "right")


def _row(
    material: Material, device: str, kernel: str, launch: CountedLaunch | Modelled, line: pd.Series | None
) -> list[Any]:
    """One launch; `line` is that of the frame where it was counted."""
    problem, schedule = launch.problem, launch.schedule
    least = operand_bytes(problem)
    figures = _figures(launch.traffic, line)
    return [
        kernel,
        material.device_name(device),
        f"{problem.m}×{problem.n}×{problem.k}",
        None if schedule is None else schedule.cores_per_unit,
        None if schedule is None else f"{schedule.tile_m}×{schedule.tile_n}",
        None if launch.traffic is None else launch.traffic.a_tile_loads,
        None if launch.traffic is None else launch.traffic.b_tile_loads,
        *figures,
        *(None if figure is None else figure / least for figure in figures),
        " and ".join([*(["modelled"] if launch.traffic else []), *([] if line is None else ["measured"])]),
    ]


def _figures(traffic: Traffic | None, line: pd.Series | None) -> list[float | None]:
    """Bytes from the L2 and from memory, each modelled and counted."""
    figures: list[float | None] = []
    for name in ("l2_read_bytes", "hbm_read_bytes"):
        figures.append(None if traffic is None else getattr(traffic, name))
        figures.append(None if line is None or pd.isna(line[name]) else float(line[name]))
    return figures
