"""What every kernel offers to try: what it admits, none twice, some wherever it can, and nothing wasteful first."""

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowbench.config import CONFIGS, load_suite
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import xla_scaled_dot
from narrowgemm.gemm.registry import Kernel, kernel_named, kernel_names
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

_SHAPES = sorted({(s.m, s.n, s.k) for p in (CONFIGS / "suites").glob("*.yaml") for s in load_suite(p.stem).shapes})
_TILED = [name for name in kernel_names() if not name.startswith("xla_")]

#: Wider than what kernels offer, to find what they admit and do not offer.
_SPACES: dict[str, dict[str, tuple[object, ...]]] = {
    "hopper": {
        "tile_m": (64, 128, 256),
        "tile_n": (32, 64, 96, 168, 256),
        "stages": (1, 4),
        "split": ("m", "n", None),
        "cluster_m": (1, 2),
    },
    "hopper_weights": {"tile_m": (8, 16, 64, 128), "stages": (1, 8), "splits": (1, 2, 16)},
    "hopper_folded": {
        "tile_m": (8, 16, 64, 128, 256),
        "stages": (2, 3, 4),
        "splits": (1, 2, 8),
        "cluster_n": (1, 2),
        "tile_n": (64, 96, 128),
        "groups": (1, 2, 4),
        "tail_splits": (1, 2),
    },
    "hopper_decode": {
        "tile_m": (8, 48, 128, 256),
        "tile_n": (32, 64, 128, 256),
        "tile_k": (64, 128, 256),
        "stages": (1, 2),
        "splits": (1, 3, 8),
        "tail_splits": (1, 2),
        "cluster_n": (1, 2),
    },
    "blackwell": {"tile_n": (16, 32, 64, 96, 128, 256), "stages": (1, 3, 5), "ctas": (1, 2), "accumulators": (1, 2)},
    "tpu": {"tile_m": (32, 512), "tile_n": (128, 512), "tile_k": (128, 384, 640, 1024)},
}


@pytest.fixture(autouse=True)
def _on_blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's block-scaled dots are refused by device alone, and the device is not what is tested here."""
    monkeypatch.setattr(xla_scaled_dot, "arch_of", lambda _: "blackwell")


def _space(kernel: Kernel) -> Iterator[Any]:
    few_rows = "hopper_decode" if kernel.max_m else "hopper_weights"
    splits = "hopper_folded" if kernel.name.endswith("_folded") else few_rows
    space = _SPACES[splits if "splits" in kernel.config_type.__dataclass_fields__ else kernel.arch]
    for values in itertools.product(*space.values()):
        yield kernel.config_type(**dict(zip(space, values, strict=True)))


def _is_admitted(kernel: Kernel, problem: GemmProblem, config: Any) -> bool:
    try:
        kernel.check(problem, config)
    except UnsupportedError:
        return False
    return True


def _offered(kernel: Kernel, problem: GemmProblem) -> list[Any]:
    """The candidates, after what holds for those of every kernel has been asserted."""
    try:
        found = list(kernel.candidates(problem))
    except UnsupportedError:
        assert not [config for config in _space(kernel) if _is_admitted(kernel, problem, config)], problem
        return []
    assert found, problem
    assert len(set(found)) == len(found), problem
    for config in found:
        kernel.check(problem, config)
    return found


def _result_shape(kernel: Kernel, problem: GemmProblem) -> tuple[int, int]:
    """Rows and columns of what the kernel tiles: MXFP6 weights are the rows, so that the product is transposed."""
    is_transposed = kernel.arch == "blackwell" and problem.b_format.startswith("mxfp6")
    return (problem.n, problem.m) if is_transposed else (problem.m, problem.n)


def _tile_n(config: Any) -> int:
    return int(getattr(config, "tile_n", 128))


def _cluster(config: Any) -> tuple[int, int]:
    """Tiles that a cluster takes side by side; Blackwell's pair of blocks takes one tile."""
    return getattr(config, "cluster_m", 1), getattr(config, "cluster_n", 1)


def _covered(kernel: Kernel, problem: GemmProblem, config: Any) -> int:
    """Elements of all output tiles, clusters filled up."""
    rows, columns = _result_shape(kernel, problem)
    cluster_m, cluster_n = _cluster(config)
    whole_m, whole_n = config.tile_m * cluster_m, _tile_n(config) * cluster_n
    return ceil_div(rows, whole_m) * whole_m * ceil_div(columns, whole_n) * whole_n


def _assert_nothing_is_wasted(kernel: Kernel, problem: GemmProblem, found: list[Any]) -> None:
    rows, columns = _result_shape(kernel, problem)
    for config in found:
        cluster_m, cluster_n = _cluster(config)
        assert cluster_m <= ceil_div(rows, config.tile_m), (problem, config)
        assert cluster_n <= ceil_div(columns, _tile_n(config)), (problem, config)
        k_steps, splits = ceil_div(problem.k, getattr(config, "tile_k", 128)), getattr(config, "splits", 1)
        # Parts that blocks of a cluster have differ by at most a step; of others the last one has what is left.
        is_even = kernel.max_m or kernel.name.endswith("_folded")
        before_the_last = splits - 1 if is_even else ceil_div(k_steps, splits) * (splits - 1)
        assert before_the_last < k_steps, (problem, config)
    first = found[0]
    # A pair of Blackwell's blocks is no waste for few rows: each loads half of B, and the second would have been idle.
    alike = [config for config in found if getattr(config, "ctas", 1) == getattr(first, "ctas", 1)]
    if kernel.max_m or kernel.name.endswith("_folded"):  # their tiles of 64 rows come last: no GPU has run them yet
        alike = [config for config in alike if config.tile_n > 64]
    assert first.tile_m < 2 * max(rows, min(config.tile_m for config in alike)), (problem, first)
    assert _tile_n(first) < 2 * max(columns, min(map(_tile_n, alike))), (problem, first)
    if kernel.arch == "hopper":
        least = min(_covered(kernel, problem, config) for config in alike)
        assert _covered(kernel, problem, first) <= max(2 * rows * columns, 2 * least - 1), (problem, first)


@pytest.mark.parametrize("name", kernel_names())
def test_candidates_of_every_suite_are_admitted(name: str) -> None:
    kernel = kernel_named(name)
    formats = itertools.product(kernel.a_formats, kernel.b_formats, kernel.out_formats)
    for shape, (a, b, out) in zip(_SHAPES, itertools.cycle(formats), strict=False):
        problem = GemmProblem(*shape, a, b, out)
        if name not in _TILED:
            assert [_is_admitted(kernel, problem, config) for config in kernel.candidates(problem)]
        elif found := _offered(kernel, problem):
            _assert_nothing_is_wasted(kernel, problem, found)


@pytest.mark.parametrize("name", _TILED)
def test_nothing_is_wasted_on_few_columns_or_few_steps(name: str) -> None:
    """Rows on both sides of a wave of 132 tiles of 64, 128 and 192, where a wider tile can save the second wave."""
    kernel = kernel_named(name)
    formats = kernel.a_formats[0], kernel.b_formats[0], kernel.out_formats[0]
    for m, n, k in itertools.product((1, 8449, 16_897, 20_000), (16, 64, 1024), (16, 640, 8192)):
        problem = GemmProblem(m, n, k, *formats)
        if found := _offered(kernel, problem):
            _assert_nothing_is_wasted(kernel, problem, found)


@pytest.mark.parametrize("name", _TILED)
@given(data=st.data())
@settings(max_examples=25)
def test_candidates_are_admitted_once_each_and_waste_nothing(name: str, data: st.DataObject) -> None:
    kernel = kernel_named(name)
    m = data.draw(st.integers(1, 20_000) | st.integers(1, 200), label="m")
    n, k = (16 * data.draw(st.integers(1, 1800) | st.integers(1, 40), label=label) for label in "nk")
    formats = [data.draw(st.sampled_from(known)) for known in (kernel.a_formats, kernel.b_formats, kernel.out_formats)]
    problem = GemmProblem(m, n, k, *formats)
    if found := _offered(kernel, problem):
        _assert_nothing_is_wasted(kernel, problem, found)


@pytest.mark.parametrize("name", [name for name in _TILED if name.startswith("hopper_")])
def test_a_shape_that_no_config_does_is_refused_with_its_own_rule(name: str) -> None:
    kernel = kernel_named(name)
    problem = GemmProblem(256, 258, 512, kernel.a_formats[0], kernel.b_formats[0], "f32")
    with pytest.raises(UnsupportedError, match=r"n=258 is not a multiple of 4.*pad n to 260"):
        kernel.candidates(problem)


@pytest.mark.parametrize("name", _TILED)
def test_a_config_that_holds_what_no_config_can_is_refused_by_field(name: str) -> None:
    """Whatever else it says: a rule that divides by nought or compares text would fail as a bug does."""
    kernel = kernel_named(name)
    formats = kernel.a_formats[0], kernel.b_formats[0]
    problem = GemmProblem(64, 1024, 1024, *formats, "bf16")
    config = kernel.candidates(problem)[0]
    for field in fields(config):
        for value in (0, -1, True, 2.5, "zz", None, 10**6):
            if (field.name, value) in (("split", None), ("raster_width", 10**6)):
                continue
            try:
                odd = replace(config, **{field.name: value})
            except ValueError as error:
                assert field.name in str(error)  # noqa: PT017 (a config may refuse it when it is made)
                continue
            with pytest.raises(UnsupportedError) as refusal:
                kernel.check(problem, odd)
            assert field.name in refusal.value.values
