"""The shapes of the record: how many, where each comes from, and that models' layers have their published extents."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from narrowbench.config import CONFIGS, PlanEntry, ShapeEntry, load_campaign, load_suite

MODELS: dict[str, dict[str, Any]] = yaml.safe_load((CONFIGS / "models.yaml").read_text(encoding="utf-8"))
ROWS = {1, 2, 4, 8, 16, 32, 64, 128, 256, 257, 512, 1024, 2048, 4096, 8192}

#: Layer -> (N, K) by a model's dimensions; a layer that a kind of attention changes is there under each kind.
LAYERS: dict[str, Callable[[dict[str, Any]], tuple[int, int]]] = {
    "qkv": lambda d: ((d["heads"] + 2 * d["kv_heads"]) * d["head"], d["width"]),
    "out": lambda d: (d["width"], d["heads"] * d["head"]),
    "gate-up": lambda d: (2 * d["mlp"], d["width"]),
    "up": lambda d: (d["mlp"], d["width"]),
    "down": lambda d: (d["width"], d["mlp"]),
    "expert-gate-up": lambda d: (2 * d["expert_mlp"], d["width"]),
    "expert-down": lambda d: (d["width"], d["expert_mlp"]),
    "vocabulary": lambda d: (d["vocabulary"], d["width"]),
    "latent out": lambda d: (d["width"], d["heads"] * d["head_value"]),
    "latent q-up": lambda d: (d["heads"] * (d["head_plain"] + d["head_rotary"]), d["q_rank"]),
    "latent kv-up": lambda d: (d["heads"] * (d["head_plain"] + d["head_value"]), d["kv_rank"]),
    "latent absorbed-q": lambda d: (d["kv_rank"], d["head_plain"]),
    "latent absorbed-v": lambda d: (d["head_value"], d["kv_rank"]),
    "latent q-kv-down": lambda d: (d["q_rank"] + d["kv_rank"] + d["head_rotary"], d["width"]),
}


def _recorded(device_class: str) -> set[str]:
    plan = load_campaign(CONFIGS / "record.yaml").plan[device_class]
    return {suite for entry in plan if isinstance(entry, PlanEntry) for suite in entry.suites}


def _model_and_layer(entry: ShapeEntry) -> tuple[str, str]:
    (model,) = (model for model in MODELS if entry.name.startswith(f"{model}-"))
    layer = entry.name.removeprefix(f"{model}-").removesuffix("-equal")
    return model, f"latent {layer}" if "q_rank" in MODELS[model] and f"latent {layer}" in LAYERS else layer


def test_the_record_of_hopper_has_at_least_120_shapes_of_every_model_and_number_of_rows() -> None:
    suites = [load_suite(name) for name in _recorded("hopper")]
    shapes = {(shape.m, shape.n, shape.k) for suite in suites for shape in suite.shapes}
    assert len(shapes) >= 120
    recorded = {name: load_suite(name).entries for name in _recorded("hopper")}
    of_models = [entry for name, entries in recorded.items() if name.startswith("llm_") for entry in entries]
    assert {m for entry in of_models for m in entry.m} == ROWS
    assert {_model_and_layer(entry)[0] for entry in [*of_models, *recorded["moe"]]} == set(MODELS)
    squares = {m for m, n, k in shapes if m == n == k}
    assert {512, 1024, 2048, 4096, 8192, 16384} <= squares


@pytest.mark.parametrize("name", sorted(_recorded("hopper")))
def test_every_layer_of_a_model_has_the_extents_that_its_published_dimensions_give(name: str) -> None:
    for entry in load_suite(name).entries:
        if name.startswith(("llm_", "moe")):
            model, layer = _model_and_layer(entry)
            assert (entry.n, entry.k) == LAYERS[layer](MODELS[model]), entry.name
        assert len(entry.origin) >= len("square")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_names_the_configuration_that_its_dimensions_are_from(model: str) -> None:
    assert MODELS[model]["source"].startswith("https://huggingface.co/")
    assert MODELS[model]["source"].endswith("/config.json")


def test_rows_of_experts_are_those_that_whole_tokens_give() -> None:
    """Tokens, as an origin names them, times experts of a token times the share of the experts that is here."""
    for entry in load_suite("moe").entries:
        assert entry.groups is not None
        model, layer = _model_and_layer(entry)
        if layer.startswith("latent"):
            assert (entry.groups.kind, entry.groups.count) == ("batched", MODELS[model]["heads"])
            tokens = [m // entry.groups.count for m in entry.m]
        else:
            experts, of_a_token = MODELS[model]["experts"], MODELS[model]["experts_of_a_token"]
            assert experts % entry.groups.count == 0
            tokens = [m * experts // (entry.groups.count * of_a_token) for m in entry.m]
            assert [t * of_a_token * entry.groups.count // experts for t in tokens] == entry.m
        assert entry.origin.startswith("As ") or all(str(t) in entry.origin for t in tokens), entry.name


def test_the_awkward_shapes_are_those_that_users_ran_into() -> None:
    shapes = {(shape.m, shape.n, shape.k) for shape in load_suite("awkward").shapes}
    assert {(m, 2048, 2048) for m in (1, 2, 5, 15, 17)} <= shapes
    assert {258, 260, 768} <= {n for _, n, _ in shapes}
    assert {32, 96, 160} <= {k for _, _, k in shapes}
    assert {9, 10, 12, 13} <= {m // 128 for m, n, _ in shapes if m == n and m % 128 == 0}
    assert {m % 128 for m, _, _ in shapes} >= {1, 100}
