"""Launches unrolled into calls: what they compute, on which operands, and that none is merged with another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from narrowbench.measure import launches
from narrowbench.measure.operands import operand_sets
from narrowgemm.errors import UnsupportedError
from narrowgemm.problem import GemmProblem


def _dot(a: Any, b: Any) -> Any:
    return a @ b.T


def _sets(count: int) -> list[tuple[Any, Any]]:
    keys = jax.random.split(jax.random.key(0), 2 * count)
    return [
        (jax.random.normal(keys[2 * i], (8, 16)), jax.random.normal(keys[2 * i + 1], (4, 16))) for i in range(count)
    ]


@pytest.mark.parametrize(("count", "unroll"), [(3, 1), (3, 2), (1, 4), (4, 2)])
def test_calls_go_through_the_sets_in_turn(count: int, unroll: int) -> None:
    sets = _sets(count)
    workload = launches._workload(_dot, sets, set_bytes=100, unroll=unroll, in_flight=2, platform="cpu")
    assert (workload.launches_per_call, workload.rotation_sets, workload.rotation_bytes) == (unroll, count, 100 * count)
    for call in range(2 * count):
        results = workload.enqueue(call)
        workload.wait(results)
        for i, result in enumerate(results):
            a, b = sets[(call * unroll + i) % count]
            assert jnp.allclose(result, a @ b.T, rtol=1e-5)


def test_launches_on_equal_operands_are_not_merged() -> None:
    """Without the barrier XLA sees one dot of the same two arrays and does it once."""
    (operands,) = _sets(1)

    def dots(run: Callable[[Any], Any]) -> int:
        return str(jax.jit(run).lower(operands).compile().as_text()).count(" dot(")

    assert dots(lambda operands: [_dot(*operands)] * 3) == 1
    assert dots(lambda operands: [_dot(*operands) for _ in range(3)]) == 1
    assert dots(lambda operands: launches.unrolled(_dot)([operands] * 3)) == 3


def test_quantised_operands_go_in_and_come_apart_again() -> None:
    problem = GemmProblem(16, 8, 64, "mxfp4", "fp8_e4m3")
    sets = operand_sets(problem, "normal", 0, 2)

    def launch(a: Any, b: Any) -> Any:
        assert (a.format, b.format) == ("mxfp4", "fp8_e4m3")
        return a.codes.astype(jnp.float32).sum() + b.codes.astype(jnp.float32).sum()

    workload = launches._workload(launch, sets, 1, unroll=2, in_flight=1, platform="cpu")
    assert len(workload.enqueue(0)) == 2


def test_a_cpu_does_one_launch_at_a_time() -> None:
    workload = launches.workload_of(_dot, _sets(2), set_bytes=1, result_bytes=1, platform="cpu")
    assert (workload.launches_per_call, workload.calls_in_flight) == (1, 1)


def test_rotation_goes_past_the_cache() -> None:
    assert launches.rotation_sets(10 * 2**20, 60 * 2**20, 3.0, "rotated") == 18
    assert launches.rotation_sets(2**30, 60 * 2**20, 3.0, "rotated") == 1
    assert launches.rotation_sets(1, None, 3.0, "warm") == 1


def test_rotation_that_cannot_be_done_is_unsupported_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match="size of the last-level cache, which is unknown here; use cache=warm"):
        launches.rotation_sets(1, None, 3.0, "rotated")
    with pytest.raises(UnsupportedError, match=r"set_bytes=8192.*4096 are the most"):
        launches.rotation_sets(8192, 60 * 2**20, 3.0, "rotated")
