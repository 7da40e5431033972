"""What a block of a persistent kernel works on where parts of K are divided among the blocks of its cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.gemm._hopper_parts import steps_of_part
from narrowgemm.tiling import ceil_div


@dataclass(frozen=True)
class Work:
    """What a block does of a tile: `steps` of K from `first_step`, after `done` steps of tiles before.

    loaded:     the steps, and what they are filled up with.
    is_divided: whether the other blocks of the cluster do the rest.
    """

    tile: jax.Array
    done: jax.Array
    first_step: jax.Array
    steps: jax.Array
    loaded: jax.Array
    is_divided: bool

    def step(self, number: jax.Array, k_steps: int) -> jax.Array:
        """The step of K that is loaded as this number; those that fill up lie outside of K, where TMA finds zeros."""
        if self.loaded is self.steps:
            return self.first_step + number
        return jnp.where(number < self.steps, self.first_step + number, k_steps)


def for_each_work(
    visit: Callable[[Work], None],
    tiles: tuple[int, int],
    parts: tuple[int, int],
    k_steps: int,
    *,
    blocks: int,
    unit: int = 1,
    in_step: bool = False,
) -> jax.Array:
    """Call visit(work) for the tiles of this block, of a grid with the axes `clusters` and `parts`; return its steps.

    tiles:   how many there are before those that only the last wave divides, and how many of these.
    parts:   of K of the former, and of the latter.
    blocks:  of a cluster; where they are more than the former's parts, each has tiles of its own.
    unit:    of which the steps of a tile are filled up to a multiple.
    in_step: whether all blocks of a cluster take as many steps, filled up where a part has one less.
    """
    whole, tail = tiles
    splits, tail_splits = parts
    part = lax.axis_index("parts")
    axes = ("clusters", "parts") if blocks > splits else "clusters"
    first, steps = steps_of_part(part if splits > 1 else jnp.int32(0), splits, k_steps)

    @plgpu.nd_loop((whole,), collective_axes=axes, init_carry=jnp.int32(0))
    def steps_done(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
        work = Work(loop.index[0], carry, first, steps, _filled(steps, unit), splits > 1)
        visit(work)
        done: jax.Array = carry + work.loaded
        return done

    total: jax.Array = steps_done
    if tail:
        cluster = lax.axis_index("clusters")
        first, steps = steps_of_part(part, tail_splits, k_steps)
        longest = jnp.int32(ceil_div(k_steps, tail_splits)) if in_step else steps
        work = Work(whole + cluster, total, first, steps, _filled(longest, unit), is_divided=True)
        pl.when(cluster < tail)(lambda: visit(work))
        total = total + jnp.where(cluster < tail, work.loaded, 0)
    return total


def empty_barrier(stages: int, arrivals: int, shared: str | None) -> Any:
    """How stages are given back: `arrivals` from each block, of all along the axis `shared` where they share A."""
    if shared is None:
        return plgpu.Barrier(num_arrivals=arrivals, num_barriers=stages)
    return plgpu.ClusterBarrier(collective_axes=(shared,), num_arrivals=arrivals, num_barriers=stages)


def _filled(steps: jax.Array, unit: int) -> jax.Array:
    return steps if unit == 1 else (steps + unit - 1) // unit * unit
