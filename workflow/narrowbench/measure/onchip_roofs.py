"""Micro-benchmarks of a Hopper GPU that no XLA program can be: its shared memory read, and the whole of it waiting.

Neither kernel touches memory but for a few words at its ends.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

#: A block's warpgroups, threads of one, and words that a thread reads at a time.
WARPGROUPS, THREADS, VECTOR_WORDS = 4, 128, 4
#: Words of a slot, which a warpgroup reads at once, and its slots. That they are no power of two keeps the compiler
#: from unrolling over all of them, whose reads it could then take out of the loop.
SLOT_WORDS, SLOTS = 16 * THREADS, 5
#: Turns of a launch, which make it last half a millisecond or more.
READ_TURNS, WAIT_TURNS = 4096, 2**20


def shared_bytes(cores: int) -> int:
    """Bytes that a launch of `read_shared` reads from shared memory."""
    return 4 * SLOT_WORDS * WARPGROUPS * READ_TURNS * cores


def read_shared(cores: int, interpret: Any = False) -> Callable[[jax.Array], jax.Array]:
    """A launch that reads every slot of words, uint32 (SLOTS, SLOT_WORDS), again and again, on `cores` multiprocessors.

    Each warpgroup has slots of its own. The launch returns their exclusive or, (cores, WARPGROUPS, SLOT_WORDS).
    """
    layout = plgpu.Layout.WG_STRIDED((SLOT_WORDS,), vec_size=VECTOR_WORDS)

    def body(words_gmem: Any, out_gmem: Any, slots: Any) -> None:
        block, warpgroup = lax.axis_index("blocks"), lax.axis_index("warpgroups")
        for slot in range(SLOTS):
            slots[warpgroup, slot] = plgpu.load(words_gmem.at[slot], layout=layout)

        def turn(number: jax.Array, total: jax.Array) -> jax.Array:
            slot = slots.at[warpgroup, lax.rem(number, jnp.int32(SLOTS))]
            read: jax.Array = plgpu.load(slot, layout=layout)
            return total ^ read

        first = plgpu.layout_cast(jnp.zeros((SLOT_WORDS,), jnp.uint32), layout)
        out_gmem[block, warpgroup] = lax.fori_loop(0, READ_TURNS, turn, first)

    kernel: Callable[[jax.Array], jax.Array] = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((cores, WARPGROUPS, SLOT_WORDS), jnp.uint32),
        grid=(cores,),
        grid_names=("blocks",),
        num_threads=WARPGROUPS,
        thread_name="warpgroups",
        scratch_types=(plgpu.SMEM((WARPGROUPS, SLOTS, SLOT_WORDS), jnp.uint32),),
        kernel_name="read_shared",
        interpret=interpret,
    )
    return kernel


def wait(words: jax.Array, interpret: Any = False) -> jax.Array:
    """One warpgroup of the whole GPU, waiting for its own last result: clocks are up, and next to nothing is done.

    words: uint32 (THREADS,), as is what comes back.
    """
    layout = plgpu.Layout.WG_STRIDED((THREADS,), vec_size=1)

    def body(words_gmem: Any, out_gmem: Any) -> None:
        first = plgpu.load(words_gmem, layout=layout)
        # A linear congruential generator: each turn needs the last, and no compiler has a short way to the end.
        out_gmem[...] = lax.fori_loop(0, WAIT_TURNS, lambda _, x: x * jnp.uint32(1664525) + jnp.uint32(1), first)

    out_type = jax.ShapeDtypeStruct((THREADS,), jnp.uint32)
    waited: jax.Array = plgpu.kernel(body, out_type=out_type, kernel_name="wait", interpret=interpret)(words)
    return waited
