"""The end of a tile on Blackwell: tensor memory -> registers -> what C is stored as -> shared memory -> TMA store."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.spec import E8M0, Format
from narrowgemm.gemm import _blackwell_movement as movement
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._blackwell_plan import SCALE_TILE_BLOCKS, STAGING_TILES, Plan


def drain(
    plan: Plan,
    turn: Any,
    acc_tmem: Any,
    finished: Any,
    drained: Any,
    read: Callable[[Any], Any],
    write: Callable[[Any, Any, Any], None],
) -> None:
    """Take tile number `turn` of this block out of its accumulator, piece by piece, and say when it may be used again.

    read:  tensor memory of a piece, 128×store_n -> its values, in registers.
    write: (values, staging, first): store a piece through staging tile number `staging` to the tile's columns from
           `first` on, as one group of copies.
    """
    slot = lax.rem(turn, jnp.int32(plan.config.accumulators))
    plgpu.barrier_wait(finished.at[slot])
    pieces = movement.pieces(plan)
    for piece in range(pieces):
        first = _taken_at(plan, slot, piece)
        values = read(acc_tmem.at[:, pl.ds(slot * plan.stride + first, plan.store_n)])
        if piece + 1 == plan.drain_pieces:
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(drained.at[lax.rem(turn, jnp.int32(plan.lag))])
        plgpu.wait_smem_to_gmem(STAGING_TILES - 1, wait_read_only=True)
        write(values, lax.rem(turn * pieces + piece, jnp.int32(STAGING_TILES)), first)


def _taken_at(plan: Plan, slot: jax.Array, piece: int) -> jax.Array:
    """`movement.piece_taken` of an accumulator that only the running kernel knows."""
    return lax.select(slot == 0, *(jnp.int32(movement.piece_taken(plan, known, piece)) for known in (0, 1)))


def read_blocks(source: Any, block: int) -> list[jax.Array]:
    """A piece of 128 rows as blocks 128×block, of which each thread holds whole rows."""
    layout = plgpu.Layout.TCGEN05_TMEM_NATIVE(2)
    starts = range(0, source.shape[1], block)
    return [plgpu.async_load_tmem(source.at[:, pl.ds(start, block)], layout=layout) for start in starts]


def quantise_block(values: jax.Array, spec: Format, interpret: bool) -> tuple[jax.Array, jax.Array]:
    """Codes (rows×block) and scale codes (rows, INT32) of a block a row, by the rule "floor" of `formats.quantize`.

    MX formats equal `quantize` bit for bit. NVFP4 takes the same steps, but in FP32: amax/6 and the quotients are
    rounded to FP32 before they are rounded to their codes. Values are taken to be finite. Raises ValueError for a
    format without block scales.
    """
    if spec.scale_dtype is None:
        raise ValueError(f"quantise_block: {spec.name} has no block scales")
    amax = jnp.max(jnp.abs(values), axis=1)
    if spec.scale_dtype == E8M0:
        exponent = lax.shift_right_logical(lax.bitcast_convert_type(amax, jnp.int32), jnp.int32(23))
        code = jnp.clip(exponent - spec.element.max_exponent, 0, 254)
        code = jnp.where(amax == 0, 127, code)
        inverse = lax.bitcast_convert_type(lax.shift_left(254 - code, jnp.int32(23)), jnp.float32)
        quotient = values * lax.broadcast_in_dim(inverse, values.shape, (0,))
    else:
        raw = (amax * jnp.float32(1 / spec.element.max_finite)).astype(spec.scale_dtype)
        code = jnp.maximum(lax.bitcast_convert_type(raw, jnp.int8).astype(jnp.int32), 1)
        code = jnp.where(amax == 0, 0x38, code)
        scale = lax.bitcast_convert_type(code.astype(jnp.int8), spec.scale_dtype).astype(jnp.float32)
        quotient = values / lax.broadcast_in_dim(scale, values.shape, (0,))
    return _mosaic_gpu.saturating_cast(quotient, spec.element.dtype, interpret), code


def scale_words(codes: list[jax.Array]) -> list[jax.Array]:
    """Scale codes of a row's blocks, four to a little-endian word: one word a row and tile of scales."""
    words = []
    for start in range(0, len(codes), SCALE_TILE_BLOCKS):
        word = codes[start]
        for place, code in enumerate(codes[start + 1 : start + SCALE_TILE_BLOCKS], start=1):
            word = jnp.bitwise_or(word, lax.shift_left(code, jnp.int32(8 * place)))
        words.append(word)
    return words
