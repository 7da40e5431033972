"""What hardware counters say of one launch, in SI units, from the profiler's own names and units. No JAX."""

import re
from dataclasses import dataclass

from narrowbench.store.counters import Counters, Metric

#: Bytes of an L2 sector, on every NVIDIA GPU since Maxwell (Nsight Compute, kernel profiling guide).
SECTOR_BYTES = 32
#: The profiler scales figures by powers of ten unless it is told to print base units.
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT = re.compile(r"([KMGT]?)(byte|sector|cycle|inst)s?")
_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
_WRITTEN = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
_FROM_L2 = ("lts__t_sectors_srcunit_tex_op_read.sum",)
_L2_HITS = ("lts__t_sector_hit_rate.pct",)
_TENSOR = ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",)


@dataclass(frozen=True)
class Counted:
    """Of all kernels of a launch together; null where a metric was not had.

    hbm_read_bytes, hbm_write_bytes: of the device's memory.
    l2_read_bytes:  what multiprocessors asked of the L2, a multicast once.
    l2_hit_share:   of the L2's sectors, those that it held; of a launch with one kernel alone.
    tensor_share:   of the cycles, those in which tensor cores worked; of a launch with one kernel alone.
    """

    hbm_read_bytes: float | None
    hbm_write_bytes: float | None
    l2_read_bytes: float | None
    l2_hit_share: float | None
    tensor_share: float | None


def counted(counters: Counters) -> Counted:
    """The figures of a row's counters. Raises ValueError for a metric in a unit that is not known."""
    sectors = _total(counters, _FROM_L2, "sector")
    return Counted(
        hbm_read_bytes=_total(counters, _READ, "byte"),
        hbm_write_bytes=_total(counters, _WRITTEN, "byte"),
        l2_read_bytes=None if sectors is None else SECTOR_BYTES * sectors,
        l2_hit_share=_share(counters, _L2_HITS),
        tensor_share=_share(counters, _TENSOR),
    )


def in_base(metric: Metric, base: str) -> float:
    """A figure in `base` (byte, sector, cycle or inst). Raises ValueError for another unit."""
    unit = _UNIT.fullmatch(metric.unit)
    if unit is None or unit[2] != base:
        raise ValueError(f"a metric in {metric.unit!r} where {base} is meant")
    return metric.value * _PREFIXES[unit[1]]


def _total(counters: Counters, names: tuple[str, ...], base: str) -> float | None:
    """The sum over all kernels of the first of these metrics that all of them have."""
    for name in names:
        found = [kernel.metrics.get(name) for kernel in counters.kernels]
        values = [in_base(metric, base) for metric in found if metric is not None]
        if len(values) == len(found):
            return sum(values)
    return None


def _share(counters: Counters, names: tuple[str, ...]) -> float | None:
    """The first of these percentages, as a share; shares of several kernels have no sum."""
    if len(counters.kernels) != 1:
        return None
    metrics = counters.kernels[0].metrics
    return next((metrics[name].value / 100 for name in names if name in metrics), None)
