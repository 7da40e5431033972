"""The time model by hand, and fitted on synthetic launches."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from narrowbench.models import hardware
from narrowbench.models.kerneltime import (
    Coefficients,
    KernelRun,
    check_times,
    fit_coefficients,
    kernel_time,
    machine_of,
    predict_s,
)
from narrowbench.models.prediction import halves
from narrowbench.models.tilings import has_known_schedule, tiling_of
from narrowgemm.gemm.registry import kernel_named, kernel_names
from narrowgemm.problem import GemmProblem

HOPPER: dict[str, Any] = {
    "tile_m": 128,
    "tile_n": 256,
    "stages": 4,
    "split": "m",
    "cluster_m": 1,
    "cluster_n": 1,
    "raster": "m",
    "raster_width": 8,
}
BLACKWELL: dict[str, Any] = {
    "tile_n": 256,
    "stages": 5,
    "ctas": 2,
    "accumulators": 2,
    "raster": "n",
    "raster_width": 8,
}
IDEAL = Coefficients(mma=1, memory=1, l2_bytes_per_cycle=1e9, store_bytes_per_cycle=1e9, tile_cycles=0, start_s=0)


def _h200(fmt: str = "fp8_e4m3") -> Any:
    return machine_of(hardware.load_profiles()["nvidia-h200"], fmt, fmt)


def test_a_full_wave_runs_at_the_dense_peak() -> None:
    """132 tiles of 128×256 on 132 SMs: 2·132·128·256·K over 1978.9 TFLOP/s."""
    problem = GemmProblem(128 * 12, 256 * 11, 65536, "fp8_e4m3", "fp8_e4m3")
    found = kernel_time(problem, tiling_of("hopper_wgmma_fp8", HOPPER, problem, 132), _h200(), IDEAL)
    assert (found.waves, found.bound) == (1, "multiply")
    assert found.total_s == pytest.approx(problem.flop / 1.9789e15, rel=1e-3)


def test_one_tile_more_costs_a_wave() -> None:
    full = GemmProblem(128 * 132, 256, 8192, "fp8_e4m3", "fp8_e4m3")
    more = GemmProblem(128 * 133, 256, 8192, "fp8_e4m3", "fp8_e4m3")
    times = [kernel_time(p, tiling_of("hopper_wgmma_fp8", HOPPER, p, 132), _h200(), IDEAL) for p in (full, more)]
    assert [t.waves for t in times] == [1, 2]
    assert times[1].multiply_s == pytest.approx(2 * times[0].multiply_s)


def test_decode_takes_the_time_of_its_bytes() -> None:
    problem = GemmProblem(16, 28672, 8192, "fp8_e4m3", "fp8_e4m3")
    found = kernel_time(problem, tiling_of("hopper_wgmma_fp8", HOPPER, problem, 132), _h200(), IDEAL)
    assert found.bound == "memory"
    assert found.total_s == pytest.approx((problem.bytes - 8) / 4.8e12, rel=1e-6)


def test_a_lower_clock_slows_the_cores_and_not_the_memory() -> None:
    profile = hardware.load_profiles()["nvidia-h200"]
    problem = GemmProblem(4096, 4096, 4096, "bf16", "bf16")
    tiling = tiling_of("hopper_wgmma_bf16", HOPPER, problem, 132)
    fast, slow = (
        kernel_time(problem, tiling, machine_of(profile, "bf16", "bf16", hz), IDEAL) for hz in (1.83e9, 0.915e9)
    )
    assert slow.cores_s == pytest.approx(2 * fast.cores_s)
    assert slow.memory_s == fast.memory_s


def test_a_store_is_seen_unless_the_next_tile_hides_it() -> None:
    problem = GemmProblem(128 * 132, 1024, 8192, "fp8_e4m3", "fp8_e4m3")
    tiling = tiling_of("hopper_wgmma_fp8", HOPPER, problem, 132)
    slow_store = replace(IDEAL, store_bytes_per_cycle=64)
    seen = kernel_time(problem, tiling, _h200(), slow_store)
    hidden = kernel_time(problem, replace(tiling, overlaps_store=True), _h200(), slow_store)
    assert seen.waves == 4
    assert seen.store_s == pytest.approx(4 * 128 * 256 * 2 / 64 / 1.83e9)
    assert hidden.store_s == pytest.approx(seen.store_s / 4)


def test_a_cluster_is_a_unit_that_loads_once() -> None:
    problem = GemmProblem(8192, 8192, 8192, "fp8_e4m3", "fp8_e4m3")
    alone, paired = (
        tiling_of("hopper_wgmma_fp8", HOPPER | {"cluster_m": size}, problem, 132).schedule for size in (1, 2)
    )
    assert (alone.units, paired.units, paired.cores_per_unit) == (132, 66, 2)
    assert (alone.tile_m, paired.tile_m) == (128, 256)


def test_a_pair_of_blackwell_blocks_halves_the_reads_of_shared_memory() -> None:
    problem = GemmProblem(8192, 8192, 8192, "fp8_e4m3", "fp8_e4m3")
    machine = machine_of(hardware.load_profiles()["nvidia-b200"], "fp8_e4m3", "fp8_e4m3")
    one, two = (
        kernel_time(
            problem,
            tiling_of("blackwell_tcgen05_fp8", BLACKWELL | {"ctas": ctas}, problem, machine.cores),
            machine,
            IDEAL,
        )
        for ctas in (1, 2)
    )
    # A row of A serves 256 columns either way, a row of B 128 rows alone and 256 in a pair.
    assert (one.waves, two.waves) == (14, 14)
    assert one.shared_s / two.shared_s == pytest.approx((1 / 256 + 1 / 128) / (1 / 256 + 1 / 256))


def test_unknown_schedules_and_figures_are_refused() -> None:
    problem = GemmProblem(512, 512, 512, "bf16", "bf16")
    with pytest.raises(ValueError, match=r"xla_dot_bf16.*not known"):
        tiling_of("xla_dot_bf16", {}, problem, 132)
    with pytest.raises(ValueError, match=r"hopper_wgmma_w4a8.*not known"):
        tiling_of("hopper_wgmma_w4a8", {}, problem, 132)
    with pytest.raises(ValueError, match="'ctas'"):
        tiling_of("blackwell_tcgen05_bf16", HOPPER, problem, 132)
    with pytest.raises(ValueError, match="no fp4 rate: no FP4"):
        _h200("mxfp4")


def _runs(true: Coefficients, noise: float) -> list[KernelRun]:
    rng = np.random.default_rng(7)
    runs = []
    for fmt in ("bf16", "fp8_e4m3"):
        machine = _h200(fmt)
        for m in (16, 128, 512, 2048, 8192):
            for n, k in ((2048, 7168), (8192, 1024), (4096, 4096), (28672, 8192), (1024, 512)):
                problem = GemmProblem(m, n, k, fmt, fmt)
                tiling = tiling_of("hopper_wgmma_fp8", HOPPER, problem, machine.cores)
                time_s = kernel_time(problem, tiling, machine, true).total_s * np.exp(noise * rng.standard_normal())
                runs.append(
                    KernelRun(f"{fmt} {m} {n} {k}", "hopper_wgmma_fp8", problem, tiling, machine, float(time_s))
                )
    return runs


def test_coefficients_fitted_on_half_predict_the_other() -> None:
    true = Coefficients(
        mma=0.85, memory=0.88, l2_bytes_per_cycle=40, store_bytes_per_cycle=30, tile_cycles=1500, start_s=4e-6
    )
    first, second = halves(_runs(true, 0.03))
    fitted = fit_coefficients(first)
    check = check_times(second, fitted)
    assert check.median_absolute < 0.04
    assert abs(check.bias) < 0.03
    assert fitted.mma == pytest.approx(true.mma, rel=0.05)
    assert fitted.memory == pytest.approx(true.memory, rel=0.05)
    assert predict_s(second[0], true) == pytest.approx(second[0].time_s, rel=0.15)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="6 runs for 6 coefficients"):
        fit_coefficients(_runs(IDEAL, 0)[:6])


@pytest.mark.parametrize("kernel", [name for name in kernel_names() if has_known_schedule(name)])
def test_every_kernels_own_config_has_a_tiling(kernel: str) -> None:
    """The models may not import the kernels, whose configs come in rows: here both are held in step."""
    found = kernel_named(kernel)
    a_format, b_format = found.a_formats[0], found.b_formats[0]
    problem = GemmProblem(found.max_m or 4096, 4096, 4096, a_format, b_format, found.out_formats[0])
    for config in found.candidates(problem)[:8]:
        tiling = tiling_of(kernel, asdict(config), problem, 132)
        assert tiling.schedule.items(problem) > 0
