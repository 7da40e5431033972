"""Rows as samples of the models: which are taken, and with what figures."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from narrowbench.models import hardware
from narrowbench.models.samples import energy_samples, group_of, kernel_runs, memory_samples
from narrowbench.report.frame import collect
from narrowbench.store.rows import Clocks, Compiled, Energy, Row, Spread

CONFIG: dict[str, object] = {
    "tile_m": 128,
    "tile_n": 128,
    "stages": 4,
    "split": "n",
    "cluster_m": 2,
    "cluster_n": 1,
    "raster": "n",
    "raster_width": 4,
}
CLOCKS = Clocks(
    sm_hz=Spread(min=1.4e9, median=1.5e9, max=1.6e9, count=9),
    memory_hz=None,
    temperature_c=None,
    power_w=None,
    power_limit_w=700,
    throttle_reasons={},
)


def _energy(joules: float) -> Energy:
    window = {"window_s": 5.0, "launches": 10, "counter_j": 10 * joules, "integrated_j": None}
    return Energy.model_validate(
        {
            "source": "counter",
            "meter": "nvml",
            "scope": "board",
            "windows": [window] * 10,
            "idle_w": 75.0,
            "gain_error_relative": None,
        }
    )


@pytest.fixture
def frame(make_row: Callable[..., Row], make_roof_row: Callable[..., Row]) -> pd.DataFrame:
    """On an H200: our kernel and a baseline, sustained with energy; a widened baseline; a copy. One row of a CPU."""
    where = {"device": "nvidia-h200", "device_kind": "NVIDIA H200", "mode": "sustained"}
    fp8 = where | {"m": 1024, "n": 2048, "k": 512, "a_format": "fp8_e4m3", "b_format": "fp8_e4m3", "out_format": "bf16"}
    metered: dict[str, Any] = {"energy": _energy(2.0), "energy_reason": None, "clocks": CLOCKS, "clocks_reason": None}
    ours = make_row(kernel="hopper_wgmma_fp8", **fp8).model_copy(update=metered | {"config": CONFIG})
    theirs = make_row(kernel="xla_dot_fp8_e4m3", **fp8).model_copy(update=metered)
    widened = theirs.model_copy(update={"compile": Compiled(hlo_calls=["dot"], upcast=True)})
    copied = make_roof_row(quantity="copy", work=1 << 30, **where).model_copy(update=metered)
    return collect([ours, theirs, widened, copied, make_row()], "record")


def test_a_run_has_its_schedule_and_the_clock_it_held(frame: pd.DataFrame) -> None:
    (run,) = kernel_runs(frame, hardware.load_profiles())
    assert run.shape == (1024, 2048, 512)
    assert run.machine.clock_hz == 1.5e9
    assert run.machine.flop_per_cycle == pytest.approx(8192, rel=1e-3)
    assert (run.tiling.schedule.tile_m, run.tiling.schedule.units) == (256, 66)
    assert (run.tiling.mma_n, run.tiling.overlaps_store) == (64, False)
    assert run.time_s == pytest.approx(1.075e-3)


def test_energy_samples_leave_out_widened_baselines_and_unknown_devices(frame: pd.DataFrame) -> None:
    samples = {sample.name.split()[1]: sample for sample in energy_samples(frame, hardware.load_profiles())}
    assert set(samples) == {"hopper_wgmma_fp8", "xla_dot_fp8_e4m3"}
    ours = samples["hopper_wgmma_fp8"]
    assert ours.group == "fp8_e4m3 × fp8_e4m3, normal"
    assert ours.energy_j == 2.0
    assert ours.flop == 2 * 1024 * 2048 * 512
    assert ours.hbm_bytes == 1024 * 512 + 2048 * 512 + 2 * 1024 * 2048
    # 16 tiles across read all of A each, 4 clusters down all of B, and the result is written.
    assert ours.l2_bytes == 1024 * 512 * 16 + 2048 * 512 * 4 + 2 * 1024 * 2048


def test_moving_bytes_is_a_sample_without_arithmetic(frame: pd.DataFrame) -> None:
    (sample,) = memory_samples(frame, hardware.load_profiles())
    assert sample.hbm_bytes == 1 << 30
    assert set(sample.terms) == {"hbm_j_per_byte", "l2_j_per_byte", "p0_w"}


def test_reading_the_cache_again_and_again_moves_no_byte_of_memory(make_roof_row: Callable[..., Row]) -> None:
    where = {"device": "nvidia-h200", "device_kind": "NVIDIA H200", "mode": "sustained"}
    row = make_roof_row(quantity="cache_read", work=1 << 30, **where)
    metered = row.model_copy(update={"energy": _energy(2.0), "energy_reason": None})
    (sample,) = memory_samples(collect([metered], "record"), hardware.load_profiles())
    assert (sample.hbm_bytes, sample.l2_bytes, sample.flop) == (0, 1 << 30, 0)


def test_folded_weights_have_arithmetic_of_their_own() -> None:
    line = pd.Series(
        {"kernel": "hopper_wgmma_w4a8", "a_format": "fp8_e4m3", "b_format": "mxfp4", "distribution": "ones"}
    )
    assert group_of(line) == "fp8_e4m3 × mxfp4, ones"
    assert group_of(line.replace("hopper_wgmma_w4a8", "hopper_wgmma_w4a8_folded")) == "fp8_e4m3 × mxfp4, folded, ones"
