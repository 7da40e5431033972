"""Block scales in the order in which the hardware reads them, and back.

Blackwell's block-scaled MMA takes the scales of 128 rows × 4 blocks of K as one tile of 512 bytes: in it, scale (row,
block) lies at byte (row mod 32)·16 + (row div 32)·4 + block. Tiles follow each other along K, then along the rows; what
a last tile lacks is filled with zero bytes. Source: cuBLAS documentation, «1D Block Scaling Factors Layout», and PTX
ISA, «tcgen05.mma scale factor» layouts.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

TILE_ROWS, TILE_BLOCKS = 128, 4
#: The same 128 rows as the hardware groups them.
_GROUPS, _LANES = 4, 32


def tile_scales(scales: jax.Array, step_blocks: int = TILE_BLOCKS) -> jax.Array:
    """Scales (rows, blocks) of one byte each as tiles (ceil(rows/128), ceil(blocks/4), 32, 16), zero-filled.

    `step_blocks`: blocks that a kernel reads at a time, a multiple of 4; there are as many tiles as whole steps have.
    Raises ValueError for another number of axes, an empty one, a dtype that is not one byte, and another `step_blocks`.
    """
    if not _is_bytes(scales) or scales.ndim != 2 or 0 in scales.shape:
        raise ValueError(
            f"tile_scales: scales {_described(scales)} are not (rows, blocks) of one byte each, with no axis empty"
        )
    if step_blocks < TILE_BLOCKS or step_blocks % TILE_BLOCKS:
        raise ValueError(
            f"tile_scales: step_blocks={step_blocks} is not a multiple of {TILE_BLOCKS}, the blocks of a tile"
        )
    rows, blocks = scales.shape
    codes = lax.bitcast_convert_type(scales, jnp.uint8)
    codes = jnp.pad(codes, ((0, -rows % TILE_ROWS), (0, -blocks % step_blocks)))
    split = codes.reshape(-1, _GROUPS, _LANES, codes.shape[1] // TILE_BLOCKS, TILE_BLOCKS)
    tiles = split.transpose(0, 3, 2, 1, 4).reshape(split.shape[0], split.shape[3], _LANES, _GROUPS * TILE_BLOCKS)
    return lax.bitcast_convert_type(tiles, scales.dtype)


def untile_scales(tiles: jax.Array, rows: int, blocks: int) -> jax.Array:
    """The scales (rows, blocks) that `tile_scales` made `tiles` of.

    Raises ValueError for tiles of another shape, with both, and of a dtype that is not one byte.
    """
    expected = (-(-rows // TILE_ROWS), -(-blocks // TILE_BLOCKS), _LANES, _GROUPS * TILE_BLOCKS)
    if not _is_bytes(tiles):
        raise ValueError(f"untile_scales: tiles {_described(tiles)} are not of one byte each")
    if tiles.shape != expected or rows < 1 or blocks < 1:
        raise ValueError(
            f"untile_scales: tiles have shape {tiles.shape}, but ({rows}, {blocks}) scales make {expected}"
        )
    codes = lax.bitcast_convert_type(tiles, jnp.uint8)
    split = codes.reshape(*expected[:3], _GROUPS, TILE_BLOCKS).transpose(0, 3, 2, 1, 4)
    whole = split.reshape(expected[0] * TILE_ROWS, expected[1] * TILE_BLOCKS)
    return lax.bitcast_convert_type(whole[:rows, :blocks], tiles.dtype)


def _is_bytes(array: jax.Array) -> bool:
    """Whether it is an array of one byte an element, of a dtype whose bits can be read."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and dtype.itemsize == 1 and dtype != jnp.bool_


def _described(array: Any) -> str:
    has_both = hasattr(array, "shape") and hasattr(array, "dtype")
    return f"{tuple(array.shape)} of {array.dtype}" if has_both else f"of type {type(array).__name__}"
