"""Profiles: what the schema refuses, and what the committed profiles must hold."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from narrowbench.config import ROOT
from narrowbench.models import hardware
from narrowgemm.formats.spec import FORMATS
from narrowgemm.slug import slugged

DEVICES = hardware.DEVICES


@pytest.fixture(scope="module")
def profiles() -> dict[str, hardware.DeviceProfile]:
    return hardware.load_profiles()


def _keep(_: dict[str, Any]) -> None:
    """No change."""


def _write(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A folder with the sources and an H200 profile that `change` has spoilt."""
    profile = yaml.safe_load((DEVICES / "nvidia-h200.yaml").read_text(encoding="utf-8"))
    change(profile)
    (folder / "nvidia-h200.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    (folder / "sources.yaml").write_text((DEVICES / "sources.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def test_every_device_of_the_suite_has_a_profile(profiles: dict[str, hardware.DeviceProfile]) -> None:
    assert set(profiles) == {
        "amd-instinct-mi300x",
        "amd-instinct-mi355x",
        "intel-xeon-platinum-8480-plus",
        "nvidia-b200",
        "nvidia-b300-sxm6-ac",
        "nvidia-gb200",
        "nvidia-geforce-rtx-5090",
        "nvidia-h100-80gb-hbm3",
        "nvidia-h200",
        "nvidia-rtx-pro-6000-blackwell-workstation-edition",
        "tpu-v5e",
        "tpu-v5p",
        "tpu-v6e",
        "tpu-v7",
    }


def test_rates_are_whole_operations_per_core_and_cycle(profiles: dict[str, hardware.DeviceProfile]) -> None:
    """A sparse rate or a rate of two GPUs would not fail this, a wrong core count, clock or digit does."""
    checked = 0
    for slug, profile in profiles.items():
        for key in hardware.RATE_KEYS:
            rate = getattr(profile.rates_flop_per_s, key)
            cores = profile.cores.count.value
            if rate.value is None or rate.clock_basis_hz is None or cores is None:
                continue
            per_cycle = rate.value / (cores * rate.clock_basis_hz)
            nearest = 2.0 ** round(math.log2(per_cycle))
            assert per_cycle == pytest.approx(nearest, rel=2e-3), f"{slug} {key}"
            checked += 1
    assert checked > 50


def test_b200_rates_are_dense_and_of_one_gpu(profiles: dict[str, hardware.DeviceProfile]) -> None:
    rates = profiles["nvidia-b200"].rates_flop_per_s
    assert (rates.bf16.value, rates.fp8.value, rates.fp4.value) == (2.25e15, 4.5e15, 9.0e15)


def test_narrow_formats_that_a_device_lacks_have_no_rate(profiles: dict[str, hardware.DeviceProfile]) -> None:
    for profile in profiles.values():
        for name in ("fp6", "fp4", "int8"):
            rate = getattr(profile.rates_flop_per_s, name)
            if getattr(profile.native, name).native is False:
                assert rate.value is None
                assert rate.reason


def test_a_device_that_multiplies_int8_has_a_rate_for_it(profiles: dict[str, hardware.DeviceProfile]) -> None:
    for slug, profile in profiles.items():
        assert (profile.rates_flop_per_s.int8.value is not None) == profile.native.int8.native, slug


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p["memory"].update(bandwith_bytes_per_s=1), ["memory", "bandwith_bytes_per_s", "did you mean"]),
        (lambda p: p.update(colour="green"), ["nvidia-h200.yaml", "colour"]),
        (lambda p: p["power"]["limit_w"].pop("sources"), ["power.limit_w", "without sources"]),
        (lambda p: p["power"]["limit_w"].pop("grade"), ["power.limit_w", "without sources and grade"]),
        (lambda p: p["power"]["limit_w"].update(sources=["N99"]), ["power.limit_w", "N99", "did you mean"]),
        (lambda p: p["power"]["limit_w"].update(grade="B"), ["power.limit_w", "grade B", "N11"]),
        (lambda p: p["power"]["limit_w"].update(grade="C"), ["power.limit_w", "formula"]),
        (lambda p: p["power"].update(limit_w={"value": None}), ["power.limit_w", "say why"]),
        (lambda p: p["power"]["limit_w"].update(value=0), ["power.limit_w.value", "greater than 0"]),
        (lambda p: p["power"]["limit_w"].update(reason="none"), ["power.limit_w", "reason"]),
        (lambda p: p["rates_flop_per_s"].pop("dense"), ["rates_flop_per_s.dense", "required"]),
        (lambda p: p["rates_flop_per_s"].update(dense=False), ["rates_flop_per_s.dense", "True"]),
        (lambda p: p["rates_flop_per_s"]["fp8"].pop("clock_basis_hz"), ["rates_flop_per_s.fp8", "clock_basis"]),
        (lambda p: p["memory"]["capacity_bytes"]["alternatives"][0].pop("sources"), ["alternatives.0.sources"]),
    ],
)
def test_a_spoilt_profile_is_refused_by_name(tmp_path: Path, change: Callable[..., None], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"nvidia-h200\.yaml") as refusal:
        hardware.load_profiles(_write(tmp_path, change))
    for word in words:
        assert word in str(refusal.value)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _keep)
    path = tmp_path / "nvidia-h200.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "vendor: amd\n", encoding="utf-8")
    with pytest.raises(ValueError, match="twice: vendor"):
        hardware.load_profiles(tmp_path)


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, _keep)
    (tmp_path / "nvidia-h200.yaml").write_text("name: [", encoding="utf-8")
    with pytest.raises(ValueError, match=r"nvidia-h200\.yaml"):
        hardware.load_profiles(tmp_path)


def test_a_device_is_found_by_slug_and_by_what_its_driver_calls_it(
    profiles: dict[str, hardware.DeviceProfile],
) -> None:
    assert hardware.profile_for("nvidia-h200", profiles).architecture == "hopper"
    assert hardware.profile_of("nvidia-h200", "a test", profiles) is profiles["nvidia-h200"]
    assert hardware.profile_of("nvidia-h200-n1", "NVIDIA H200", profiles) is profiles["nvidia-h200"]
    assert hardware.profile_of("amd-epyc-2c", "AMD EPYC", profiles) is None
    with pytest.raises(ValueError, match="did you mean nvidia-h200"):
        hardware.profile_for("nvidia-h20", profiles)


def test_stems_are_the_slugs_of_reported_names(profiles: dict[str, hardware.DeviceProfile]) -> None:
    for slug, profile in profiles.items():
        assert slug in {slugged(name) for name in profile.reported_names}


def test_the_page_lists_the_sources() -> None:
    """Where this fails: end docs/devices.md with what `sources_markdown` gives."""
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    assert page.endswith("## Sources\n\n" + hardware.sources_markdown(hardware.load_sources()))


def test_reported_names_belong_to_one_profile(profiles: dict[str, hardware.DeviceProfile]) -> None:
    names = [name for profile in profiles.values() for name in profile.reported_names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_rate(name: str) -> None:
    assert hardware.rate_key(name, name) in hardware.RATE_KEYS


@pytest.mark.parametrize(
    ("a_format", "b_format", "key"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8_e4m3", "fp8_e5m2", "fp8"),
        ("bf16", "mxfp4", "bf16"),
        ("fp8_e4m3", "mxfp6_e2m3", "fp8"),
        ("nvfp4", "nvfp4", "fp4"),
        ("int8", "int8", "int8"),
    ],
)
def test_the_wider_operand_sets_the_rate(a_format: str, b_format: str, key: str) -> None:
    assert hardware.rate_key(a_format, b_format) == key
    assert hardware.rate_key(b_format, a_format) == key
