"""What is modelled of absent devices is what the kernels themselves would do there."""

from dataclasses import asdict
from pathlib import Path

import pytest

from narrowbench.errors import ConfigError
from narrowbench.models import hardware
from narrowbench.models.chosen import load_chosen, modelled
from narrowbench.models.kerneltime import Coefficients
from narrowgemm.gemm.registry import kernel_named, kernel_names

PROFILES = hardware.load_profiles()


def test_the_choices_are_those_of_the_kernels() -> None:
    kernels = load_chosen(PROFILES).kernels
    assert sorted(kernels) == [name for name in kernel_names() if name.startswith("blackwell_")]
    for name, chosen in kernels.items():
        candidates = kernel_named(name).candidates
        for shape in {choice.shape for choice in chosen.choices}:
            leading: dict[int, object] = {}
            for config in candidates(chosen.problem(shape)):
                leading.setdefault(config.ctas, asdict(config))
            assert [choice.config for choice in chosen.choices if choice.shape == shape] == [*leading.values()], name


def test_nothing_is_faster_than_at_nominal_rates() -> None:
    for launch in modelled(load_chosen(PROFILES), PROFILES, Coefficients(), leading_only=False):
        assert launch.share < launch.most_share <= 1, launch


def test_pairs_of_blocks_load_a_tile_of_b_half_as_often() -> None:
    launches = modelled(load_chosen(PROFILES), PROFILES, Coefficients(), leading_only=False)
    square = [x for x in launches if x.problem.m == 8192 and x.device == "nvidia-b200" and x.kernel.endswith("_bf16")]
    loads = {x.schedule.cores_per_unit: (x.traffic.a_tile_loads, x.traffic.b_tile_loads) for x in square}
    assert loads == {1: (32, 64), 2: (32, 32)}


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "modelled.yaml"
    choice = "{shape: [128, 128, 128], config: {ctas: 1}}"
    path.write_text(
        f"devices: [nvidia-b20]\nkernels: {{any: {{a_format: bf16, b_format: bf16, choices: [{choice}]}}}}\n"
    )
    with pytest.raises(ConfigError, match="did you mean nvidia-b200"):
        load_chosen(PROFILES, path)
