"""How the sums of a tile come together that Hopper's kernels compute apart: by blocks of a cluster, or by consumers.

Parts of K that the blocks of a cluster compute side by side: block c owns what consumer c has of the tile. The others
send it their sums, and it adds them to its own in the order of the parts: the same bits on every run. `sent` has an
arrival, with its bytes, from every other block; in the interpreter, which has no store into another block's shared
memory, sums pass through global memory, and `sent` is a barrier of the cluster at which all consumers arrive.

Steps of K that two pairs of consumers take in turn: the second hands its sums to the first through shared memory. Of
each consumer and its partner `handed` has an arrival once they lie there, and `taken` one once they have been added;
the partner waits for it before the next tile's, and at the end, so that no block ends before.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.gemm import _wgmma_weights

#: What is done with the total, FP32 in wgmma's layout.
type Finish = Callable[[jax.Array], None]


def sum_of_parts(
    own: jax.Array, place: tuple[jax.Array, jax.Array], slots: Any, sent: Any, finish: Finish, interpret: bool
) -> None:
    """Send this block's sums to their owner, or add the others' to one's own and finish the total.

    place: number of this block in its cluster, and of the one that owns these sums.
    slots: FP32 (blocks − 1, rows, columns) in the owner, one for each other block; interpreted, in global memory.
    """
    part, owner = place
    number = part - (part > owner).astype(jnp.int32)

    @pl.when(part != owner)
    def _send() -> None:
        if interpret:
            slots[number] = own
        else:
            plgpu.async_store_smem(own, slots.at[number], sent, cluster_idx=owner, cluster_dim="parts")

    if interpret:
        plgpu.barrier_arrive(sent)
        plgpu.barrier_wait(sent)

    @pl.when(part == owner)
    def _add() -> None:
        if not interpret:
            plgpu.barrier_wait(sent)
        total = own
        for slot in range(slots.shape[0]):
            total += slots[slot]
        finish(total)


def sum_of_pairs(
    own: jax.Array,
    pair: jax.Array,
    is_later: jax.Array,
    exchange: tuple[Any, Any, Any],
    finish: Finish,
    interpret: bool,
) -> None:
    """Hand this consumer's sums to its partner in the first pair, or add the second's to one's own and finish.

    is_later: whether this is not the block's first tile.
    exchange: FP32 shared memory of the sums (rows, columns), and the barriers `handed` and `taken`, of these partners.
    """
    sums, handed, taken = exchange

    @pl.when(pair == 1)
    def _hand_over() -> None:
        pl.when(is_later)(lambda: plgpu.barrier_wait(taken))
        _wgmma_weights.hand_over(own, sums, interpret)
        plgpu.commit_smem()
        plgpu.barrier_arrive(handed)

    @pl.when(pair == 0)
    def _add() -> None:
        plgpu.barrier_wait(handed)
        total = own + _wgmma_weights.take_over(sums, own.shape[1], interpret)
        plgpu.commit_smem()
        plgpu.barrier_arrive(taken)
        finish(total)
