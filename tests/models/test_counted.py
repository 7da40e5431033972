"""What a profiler prints, in SI units."""

import pytest

from narrowbench.models.counted import Counted, counted, in_base
from narrowbench.store.counters import CountedKernel, Counters, Metric


def _counters(*kernels: dict[str, tuple[float, str]]) -> Counters:
    read = [
        CountedKernel(name="k", metrics={name: Metric(value=v, unit=unit) for name, (v, unit) in kernel.items()})
        for kernel in kernels
    ]
    return Counters(kernels=read, missing={}, cache_control="all", clock_control="none")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(3, "byte", 3), (1.5, "Kbyte", 1500), (2, "Mbyte", 2e6), (2.5, "Gbyte", 2.5e9), (4, "bytes", 4)],
)
def test_bytes_come_in_any_scale(value: float, unit: str, expected: float) -> None:
    assert in_base(Metric(value=value, unit=unit), "byte") == expected


@pytest.mark.parametrize("unit", ["sector", "byte/second", "", "%"])
def test_another_unit_is_no_bytes(unit: str) -> None:
    with pytest.raises(ValueError, match="where byte is meant"):
        in_base(Metric(value=1, unit=unit), "byte")


def test_a_launch_of_one_kernel_has_all_figures() -> None:
    kernel = {
        "dram__bytes_read.sum": (50.0, "Mbyte"),
        "dram__bytes_write.sum": (67_108_864.0, "byte"),
        "lts__t_sectors_srcunit_tex_op_read.sum": (1000.0, "sector"),
        "lts__t_sector_hit_rate.pct": (80.0, "%"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": (90.0, "%"),
    }
    assert counted(_counters(kernel)) == Counted(50e6, 67_108_864.0, 32_000.0, 0.8, 0.9)


def test_kernels_of_a_launch_add_up_and_have_no_common_share() -> None:
    first = {"dram__bytes_read.sum": (10.0, "byte"), "lts__t_sector_hit_rate.pct": (80.0, "%")}
    second = {"dram__bytes_read.sum": (5.0, "byte"), "lts__t_sector_hit_rate.pct": (10.0, "%")}
    found = counted(_counters(first, second))
    assert found == Counted(15.0, None, None, None, None)


def test_a_sum_lacks_no_kernel() -> None:
    assert counted(_counters({"dram__bytes_read.sum": (10.0, "byte")}, {})).hbm_read_bytes is None


def test_newer_chips_have_another_name_for_the_same() -> None:
    assert counted(_counters({"dram__bytes_op_read.sum": (10.0, "byte")})).hbm_read_bytes == 10
