"""Aims: what the schema refuses, what is missed by how much, and that committed ones name kernels that there are."""

from typing import Any

import pytest

from narrowbench.config import parse
from narrowbench.errors import ConfigError
from narrowbench.measure.named import is_of_another_library
from narrowbench.models.aims import Aim, load_aims
from narrowgemm.gemm.registry import kernel_named, kernel_names

GOOD: dict[str, Any] = {"says": "quick", "kernels": ["ours"], "rows": [1, 64], "over": ["theirs"], "mean": 1.2}


def test_the_committed_aims_name_kernels_and_formats_that_there_are() -> None:
    aims = load_aims()
    assert len({aim.says for aim in aims}) == len(aims) > 0
    for aim in aims:
        assert not any(kernel_named(name).is_baseline for name in aim.kernels)
        assert all(name in kernel_names() or is_of_another_library(name) for name in aim.over)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean": None}, ["«quick»", "neither a mean nor a least"]),
        ({"over": []}, ["«quick»", "over other kernels"]),
        ({"quantity": "roof"}, ["«quick»", "share of the roof over none"]),
        ({"rows": [65, 64]}, ["rows go from 65 to 64"]),
        ({"weight_mb": [128, 64]}, ["weight_mb go from 128 to 64"]),
        ({"quantity": "speed"}, ["quantity", "'joules'"]),
        ({"kernel": "ours"}, ["did you mean kernels"]),
    ],
)
def test_what_is_no_aim_is_refused_by_key_and_rule(change: dict[str, Any], words: list[str]) -> None:
    parse(Aim, GOOD, "good.yaml")
    with pytest.raises(ConfigError) as refusal:
        parse(Aim, GOOD | change, "bad.yaml")
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("mean", "lowest", "missed"), [(1.2, 1.0, 0.0), (1.14, 1.05, 0.05), (1.3, 0.9, 0.1), (1.08, 0.7, 0.3)]
)
def test_the_threshold_that_is_missed_most_says_by_how_much(mean: float, lowest: float, missed: float) -> None:
    aim = Aim.model_validate(GOOD | {"least": 1.0})
    assert aim.shortfall(mean, lowest) == pytest.approx(missed)
    assert aim.wanted == "mean ≥ 1.2, each ≥ 1"
