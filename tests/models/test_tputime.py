"""The TPU model by hand."""

import pytest

from narrowbench.models import hardware
from narrowbench.models.estimate import Assumptions, load_assumptions
from narrowbench.models.tputime import Blocks, hbm_bytes, tpu_time
from narrowgemm.problem import GemmProblem

Profiles = dict[str, hardware.DeviceProfile]
PROBLEM = GemmProblem(1024, 2048, 4096, "bf16", "bf16")


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return hardware.load_profiles()


@pytest.fixture(scope="module")
def assumptions(profiles: Profiles) -> Assumptions:
    return load_assumptions(profiles, hardware.load_sources())


def test_blocks_are_read_again_for_every_row_and_column_of_them() -> None:
    a, b, c = 2 * 1024 * 4096, 2 * 2048 * 4096, 2 * 1024 * 2048
    assert hbm_bytes(PROBLEM, Blocks(512, 256, 1024)) == 8 * a + 2 * b + c
    assert hbm_bytes(PROBLEM, Blocks(512, 256, 4096)) == a + 2 * b + c
    assert hbm_bytes(PROBLEM, Blocks(1024, 2048, 1024)) == a + b + c


def test_v5e_by_hand(profiles: Profiles, assumptions: Assumptions) -> None:
    """17.2 GFLOP at 0.9 × 197 TFLOP/s take 96.9 µs at best; 38 MB at 0.95 × 859 GB/s 46 µs."""
    found = tpu_time(PROBLEM, Blocks(1024, 1024, 1024), profiles["tpu-v5e"], assumptions)
    assert found.total_s.low == pytest.approx(PROBLEM.flop / (0.9 * 1.97e14))
    assert found.total_s.high == pytest.approx(PROBLEM.flop / (0.5 * 1.97e14))
    assert found.memory_s.low == pytest.approx(found.hbm_bytes / (0.95 * 8.59e11))


def test_small_blocks_make_it_memory_bound(profiles: Profiles, assumptions: Assumptions) -> None:
    found = tpu_time(PROBLEM, Blocks(128, 128, 512), profiles["tpu-v5e"], assumptions)
    assert found.total_s == found.memory_s


def test_padding_costs_arithmetic(profiles: Profiles, assumptions: Assumptions) -> None:
    ragged = GemmProblem(1025, 2048, 4096, "bf16", "bf16")
    whole, padded = (
        tpu_time(problem, Blocks(1024, 1024, 1024), profiles["tpu-v6e"], assumptions) for problem in (PROBLEM, ragged)
    )
    assert padded.multiply_s.low == pytest.approx(2 * whole.multiply_s.low)


def test_a_missing_rate_is_refused(profiles: Profiles, assumptions: Assumptions) -> None:
    problem = GemmProblem(256, 256, 256, "fp8_e4m3", "fp8_e4m3")
    with pytest.raises(ValueError, match="no fp8 rate or bandwidth: no rate above BF16's"):
        tpu_time(problem, Blocks(256, 256, 256), profiles["tpu-v5e"], assumptions)
