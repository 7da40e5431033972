"""Estimates: ranges by hand, and the public figures that must lie in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrowbench.config import CONFIGS
from narrowbench.models import hardware
from narrowbench.models.estimate import (
    Assumption,
    Assumptions,
    Range,
    estimate,
    estimates,
    load_assumptions,
    misses,
)

Profiles = dict[str, hardware.DeviceProfile]


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return hardware.load_profiles()


@pytest.fixture(scope="module")
def assumptions(profiles: Profiles) -> Assumptions:
    return load_assumptions(profiles, hardware.load_sources())


def test_a_range_is_as_wide_as_its_factors() -> None:
    half = Assumption(low=0.5, high=0.9, why="a test")
    assert Range(100, 200).times(half) == Range(50, 180)
    assert Range(100, 200).over(Range(5, 10)) == Range(10, 40)
    assert Range(4, 9).middle == 6


def test_h200_by_hand(profiles: Profiles, assumptions: Assumptions) -> None:
    """700 W × (0.7 .. 1) over 1978.9 TFLOP/s × (0.5 .. 0.9): 0.275 to 0.707 pJ/FLOP, which holds the probe's 0.54."""
    energy = estimate("nvidia-h200", profiles["nvidia-h200"], "fp8", assumptions).energy_j_per_flop
    assert energy is not None
    assert energy.low == pytest.approx(0.275e-12, rel=2e-3)
    assert energy.high == pytest.approx(0.7075e-12, rel=2e-3)
    assert energy.holds(0.54e-12)


@pytest.mark.parametrize(
    ("device", "part", "figure", "low", "high"),
    [
        ("nvidia-b300-sxm6-ac", "power", "limit_w", 1100, 1400),
        ("amd-instinct-mi300x", "memory", "bandwidth_bytes_per_s", 5.3e12, 5.3e12),
        ("tpu-v6e", "power", "limit_w", 300, 380),
    ],
)
def test_disagreeing_sources_widen_a_range_and_doubtful_ones_do_not(
    profiles: Profiles, device: str, part: str, figure: str, low: float, high: float
) -> None:
    assert getattr(getattr(profiles[device], part), figure).range == (low, high)


def test_what_is_missing_has_a_reason(profiles: Profiles, assumptions: Assumptions) -> None:
    every = estimates(profiles, assumptions)
    assert len(every) == 4 * len(profiles)
    for one in every:
        assert one.evidence == "modelled"
        lacking = one.rate_flop_per_s is None or one.energy_j_per_flop is None or one.bandwidth_bytes_per_s is None
        assert lacking == bool(one.reasons)
    v5e = estimate("tpu-v5e", profiles["tpu-v5e"], "bf16", assumptions)
    assert v5e.energy_j_per_flop is None
    assert v5e.reasons == ("power: Google publishes none",)


def test_public_figures_lie_in_their_ranges(profiles: Profiles, assumptions: Assumptions) -> None:
    found = misses(profiles, assumptions)
    assert len(found) == len(assumptions.published)
    assert all(miss.is_inside for miss in found)
    jax_tutorial = next(miss for miss in found if "JAX tutorial" in miss.published.what)
    assert jax_tutorial.relative == pytest.approx(1.562e15 / jax_tutorial.estimated.middle - 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a["published"][0].update(device="nvidia-h20"), "did you mean nvidia-h200"),
        (lambda a: a["published"][0].update(sources=["M9"]), "source 'M9'"),
        (lambda a: a["streamed_fraction"].update(sources=["Q"]), "source 'Q'"),
        (lambda a: a["attained_fraction"].update(low=0.95), "low=0.95 is above high=0.9"),
        (lambda a: a["attained_fraction"].update(high=1.2), "attained_fraction.high"),
        (lambda a: a.update(guess=1), "unknown key 'guess'"),
    ],
)
def test_spoilt_assumptions_are_refused(
    tmp_path: Path, profiles: Profiles, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    data = yaml.safe_load((CONFIGS / "estimates.yaml").read_text(encoding="utf-8"))
    change(data)
    path = tmp_path / "estimates.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_assumptions(profiles, hardware.load_sources(), path)
