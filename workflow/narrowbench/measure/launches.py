"""Workloads of JAX functions: launches unrolled into one jitted call, each on operands of its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
from jax import lax

from narrowbench.measure.timing import Workload, probe_call_s
from narrowgemm.errors import UnsupportedError

type Launch = Callable[..., Any]
type OperandSet = tuple[Any, ...]
type Platform = Literal["cpu", "cuda", "tpu"]

#: A call should keep the device busy for this long, so that the host's work of enqueuing it disappears behind it.
_CALL_S = 2e-3
#: Calls are enqueued ahead for this long, so that the device does not wait for a host that was interrupted.
_AHEAD_S = 20e-3
#: More launches in one call than this only make it slow to compile.
_MOST_UNROLLED = 64
#: Calls of single launches in flight: enough to bridge a hiccup of the host, and no memory to speak of.
_MOST_IN_FLIGHT = 32
#: Results of calls in flight may take this much memory.
RESULT_BYTES = 4 * 2**30
#: More operand sets than this take longer to make than to measure.
_MOST_SETS = 4096

#: Kernels go out one by one and stay apart: as one CUDA graph, independent ones could run side by side.
_COMPILER_OPTIONS: Mapping[Platform, dict[str, str]] = {
    "cpu": {},
    "cuda": {"xla_gpu_enable_command_buffer": ""},
    "tpu": {},
}


def rotation_sets(set_bytes: int, cache_bytes: int | None, multiple: float, cache: Literal["rotated", "warm"]) -> int:
    """Operand sets to go through, so that none is in the last-level cache when its turn comes; 1 for a warm cache.

    Raises UnsupportedError where the cache's size is unknown, or so many small sets would be needed that they could
    not be made.
    """
    if cache == "warm":
        return 1
    if cache_bytes is None:
        raise UnsupportedError(
            "rotation",
            {"cache": cache},
            "needs the size of the last-level cache, which is unknown here",
            "use cache=warm",
        )
    count = math.ceil(multiple * cache_bytes / set_bytes)
    if count > _MOST_SETS:
        raise UnsupportedError(
            "rotation",
            {"set_bytes": set_bytes, "cache_bytes": cache_bytes},
            f"need {count} operand sets to go through {multiple:g} caches, and {_MOST_SETS} are the most that are made",
            "use a larger shape or cache=warm",
        )
    return count


def workload_of(
    launch: Launch,
    sets: Sequence[OperandSet],
    set_bytes: int,
    result_bytes: int,
    platform: Platform,
    launch_s: float | None = None,
) -> Workload:
    """Calls of `launch(*operands)` over the sets in turn, as many launches a call as hide the host's work.

    A CPU works in the host's own time: there a call is one launch, and the next waits for it, because XLA would run
    independent launches side by side. `launch_s` is a first guess at the time of a launch; without one it is probed,
    which costs a compilation.
    """
    if platform == "cpu":
        return _workload(launch, sets, set_bytes, unroll=1, in_flight=1, platform=platform)
    if launch_s is None:
        launch_s = probe_call_s(_workload(launch, sets[:1], set_bytes, unroll=1, in_flight=8, platform=platform))
    unroll, in_flight = calls_of(launch_s, result_bytes)
    return _workload(launch, sets, set_bytes, unroll, in_flight, platform)


def calls_of(launch_s: float, result_bytes: int = 1) -> tuple[int, int]:
    """Launches in one call, and calls in flight, for a launch that takes so long; `result_bytes`: what each leaves."""
    unroll = min(_MOST_UNROLLED, math.ceil(_CALL_S / launch_s), max(1, RESULT_BYTES // (2 * result_bytes)))
    fitting = RESULT_BYTES // (unroll * result_bytes)
    return unroll, max(2, min(fitting, math.ceil(_AHEAD_S / (unroll * launch_s))))


def _workload(
    launch: Launch, sets: Sequence[OperandSet], set_bytes: int, unroll: int, in_flight: int, platform: Platform
) -> Workload:
    # The sets in turn, over calls of `unroll` launches: after this many calls it starts again with the first set.
    period = math.lcm(len(sets), unroll) // unroll
    groups = [tuple(sets[(call * unroll + i) % len(sets)] for i in range(unroll)) for call in range(period)]
    # Operands go in as plain arrays: taking quantised ones apart at each call would cost the host more than a launch.
    leaves = [jax.tree.leaves(group) for group in groups]
    structure = jax.tree.structure(groups[0])
    run = unrolled(launch)
    function = jax.jit(
        lambda *arrays: run(jax.tree.unflatten(structure, arrays)), compiler_options=_COMPILER_OPTIONS[platform]
    )
    return Workload(
        enqueue=lambda call: function(*leaves[call % period]),
        wait=jax.block_until_ready,
        launches_per_call=unroll,
        calls_in_flight=in_flight,
        rotation_sets=len(sets),
        rotation_bytes=len(sets) * set_bytes,
    )


def compile_launch(launch: Launch, operands: OperandSet, platform: Platform) -> Callable[..., Any]:
    """`launch` compiled for operands like these, arrays or shapes alone, which it then takes apart, as plain arrays."""
    leaves, structure = jax.tree.flatten(operands)
    function = jax.jit(
        lambda *arrays: launch(*jax.tree.unflatten(structure, arrays)), compiler_options=_COMPILER_OPTIONS[platform]
    )
    return function.lower(*leaves).compile()


def workload_of_compiled(
    function: Callable[..., Any], sets: Sequence[OperandSet], set_bytes: int, result_bytes: int, platform: Platform
) -> Workload:
    """Calls of what `compile_launch` gave, one launch each, over the sets in turn.

    For many functions that are timed briefly: nothing more is compiled. The host's work between launches is not hidden,
    so short launches need a timer of the device.
    """
    leaves = [jax.tree.leaves(operands) for operands in sets]
    fitting = min(_MOST_IN_FLIGHT, RESULT_BYTES // result_bytes)
    return Workload(
        enqueue=lambda call: function(*leaves[call % len(leaves)]),
        wait=jax.block_until_ready,
        launches_per_call=1,
        calls_in_flight=1 if platform == "cpu" else max(2, fitting),
        rotation_sets=len(sets),
        rotation_bytes=len(sets) * set_bytes,
    )


def unrolled(launch: Launch) -> Callable[[Sequence[OperandSet]], list[Any]]:
    """A function of operand sets that launches on one after the other and returns every result.

    The barrier makes each launch depend on the one before: without it XLA may merge launches on equal operands, or
    fuse the small epilogues of several into one kernel. It moves no data.
    """
    once = jax.jit(launch)

    def run(sets: Sequence[OperandSet]) -> list[Any]:
        results: list[Any] = []
        for operands in sets:
            tied = lax.optimization_barrier((operands, results[-1]))[0] if results else operands
            results.append(once(*tied))
        return results

    return run
