from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem
from narrowgemm.tune.search import Trial, search

PROBLEM = GemmProblem(64, 64, 64, "bf16", "bf16")


@dataclass(frozen=True)
class Config:
    tile: int


def kernel_with(*tiles: int) -> Kernel:
    def candidates(_: GemmProblem) -> Sequence[Config]:
        return [Config(tile) for tile in tiles]

    def untouched(*_: object) -> Any:
        pytest.fail("a search asks the clock it was handed, and nothing else")

    return Kernel("tiles", "any", False, ("bf16",), ("bf16",), ("bf16",), Config, untouched, candidates, untouched)


def clock(**times: float | Exception) -> Callable[[Config], float]:
    def measure(config: Config) -> float:
        found = times[f"t{config.tile}"]
        if isinstance(found, Exception):
            raise found
        return found

    return measure


def test_every_candidate_is_tried_once_and_the_fastest_is_first() -> None:
    asked = []

    def measure(config: Config) -> float:
        asked.append(config.tile)
        return {8: 3.0, 16: 1.0, 32: 2.0}[config.tile]

    assert search(PROBLEM, kernel_with(8, 16, 32), measure) == [
        Trial(Config(16), 1, "ok", 1.0, None),
        Trial(Config(32), 2, "ok", 2.0, None),
        Trial(Config(8), 0, "ok", 3.0, None),
    ]
    assert asked == [8, 16, 32]


def test_configs_of_equal_time_stay_in_the_kernels_order() -> None:
    found = search(PROBLEM, kernel_with(8, 16, 32), clock(t8=2.0, t16=1.0, t32=1.0))
    assert [trial.config.tile for trial in found] == [16, 32, 8]


def test_what_a_config_raises_is_its_outcome_and_the_others_go_on() -> None:
    refusal = UnsupportedError("tiles", {"tile": 8}, "is too small", "use 16")
    found = search(PROBLEM, kernel_with(8, 16, 32), clock(t8=refusal, t16=RuntimeError("no\nregisters"), t32=1.0))
    assert found == [
        Trial(Config(32), 2, "ok", 1.0, None),
        Trial(Config(8), 0, "unsupported", None, "tiles: tile=8 is too small; use 16"),
        Trial(Config(16), 1, "failed", None, "RuntimeError: no\nregisters"),
    ]


def test_an_interrupt_is_no_outcome() -> None:
    def interrupted(_: Config) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(PROBLEM, kernel_with(8), interrupted)


def test_top_tries_the_kernels_first_guesses_alone() -> None:
    found = search(PROBLEM, kernel_with(8, 16, 32), clock(t8=2.0, t16=1.0), top=2)
    assert [(trial.config.tile, trial.rank) for trial in found] == [(16, 1), (8, 0)]


def test_a_shape_without_candidates_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="m=64, n=64, k=64 is a shape that it has no candidates for"):
        search(PROBLEM, kernel_with(), clock())
