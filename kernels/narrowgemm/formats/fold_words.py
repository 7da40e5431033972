"""Words of a tile of folded weights, 64 rows by 128 of K: the order in which a thread of a wgmma wants them.

Thread t of the 128 of a warpgroup holds rows 16·(t div 32) + (t mod 32) div 4 + 8h, h = 0 and 1, and of a block b of
32 along K the weights k = 32b + 16f + 4·(t mod 4) + i, f = 0 and 1, i = 0 … 3: those of one h, b and f are a register
of its left operand. Word 512p + 4t + j of a tile is word 4p + j of thread t, so that 16 bytes are loaded at once; the
words of block scales follow, of 32 pairs of rows, 16·warp + lane div 4 and that + 8, for each row 4 bytes along K.

FP4, 8 words a thread: word 2b + h has the 8 weights of block b and row h. Nibble 4f + i is weight (f, i): its low three
bits are the magnitude's number, and its highest is a sign, of f = 0 for odd nibbles and of f = 1 for even ones: weight
(f, i) has its sign in bit 8i + 7 − 4f, so that one mask finds those of four weights in the places where the register of
f = 0 wants them, and those of f = 1 after a shift by 4.

FP6, 12 words a thread: words 3b + j have the 16 weights of block b, in groups 2h + f of four. A group is a word of four
bytes s..eeemm or s..eemmm, of which E2M3's is rotated by one bit to the right: FP16 then has the magnitudes of bytes 1
and 3 in the right places as they are, and those of bytes 0 and 2 eight bits higher. Groups 0 to 2 are words 3b + j,
and group 3 lies in the bits that they leave free, two of every byte:

  word 3b      bits of 0x60606060 (E2M3's are rotated with the rest): group 3 rotated 2 bits to the right
  word 3b + 1  the same, of group 3 shifted 2 bits to the left
  word 3b + 2  the same, of group 3 shifted 4 bits to the left

Source of the fragments: PTX ISA, register fragments of `wgmma.mma_async.m64nNk32`.
"""

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.formats.spec import format_named
from narrowgemm.tiling import ceil_div

TILE_ROWS, TILE_K, BLOCK = 64, 128, 32
#: A tile's words lie in rows of this many, for a TMA box has at most 256 elements along an axis.
ROW_WORDS = 64
#: Format -> how far the groups of four FP6 weights are rotated to the right; and the bits of a byte that they leave.
ROTATION = {"mxfp6_e3m2": 0, "mxfp6_e2m3": 1}
FREE = 0x60606060


def planes_of(fmt: str) -> int:
    """Planes of a tile: 16 bytes of codes a thread each."""
    return format_named(fmt).element.bits // 2


def tiles_shape(shape: tuple[int, int], fmt: str) -> tuple[int, int, int, int]:
    """Shape of the tiles of weights (rows, k)."""
    words = _code_word_count(fmt) + TILE_ROWS * TILE_K // BLOCK // 4
    return ceil_div(shape[0], TILE_ROWS), ceil_div(shape[1], TILE_K), words // ROW_WORDS, ROW_WORDS


def tile_words(codes: jax.Array, scales: jax.Array, fmt: str) -> jax.Array:
    """Codes (n, k) and bytes of their blocks (n, k/32), of whole tiles, as words (n tiles, k tiles, words)."""
    code_words = _fp4_words(codes) if fmt == "mxfp4" else _fp6_words(codes, ROTATION[fmt])
    return jnp.concatenate([code_words, _scale_words(scales)], axis=-1)


def natural(tiles: jax.Array, fmt: str) -> tuple[jax.Array, jax.Array]:
    """Codes (n, k) and bytes of their blocks (n, k/32) of tiles, padding included."""
    tiles_n, tiles_k = tiles.shape[:2]
    flat, count = tiles.reshape(tiles_n, tiles_k, -1), _code_word_count(fmt)
    words = flat[..., :count]
    codes = _fp4_codes(words) if fmt == "mxfp4" else _fp6_codes(words, ROTATION[fmt])
    scales = lax.bitcast_convert_type(flat[..., count:], jnp.uint8)
    scales = scales.reshape(tiles_n, tiles_k, 4, 8, 2, 4).transpose(0, 2, 4, 3, 1, 5)
    return codes, scales.reshape(tiles_n * TILE_ROWS, -1)


def _code_word_count(fmt: str) -> int:
    return planes_of(fmt) * 512


def _places() -> tuple[jax.Array, jax.Array]:
    """Where the eight magnitudes and the eight signs of a word begin. Made anew: a kernel takes no constant arrays."""
    nibble = jnp.arange(8, dtype=jnp.uint32)
    return 4 * nibble, 8 * (nibble % 4) + 7 - 4 * (nibble // 4)


def _fp4_words(codes: jax.Array) -> jax.Array:
    n, k = codes.shape
    # Rows: tile, warp, half, row; K: tile, plane, block of the plane, half f, thread of the row, i.
    split = codes.reshape(n // TILE_ROWS, 4, 2, 8, k // TILE_K, 2, 2, 2, 4, 4)
    groups = split.transpose(0, 4, 5, 1, 3, 8, 6, 2, 7, 9).reshape(n // TILE_ROWS, k // TILE_K, -1, 8)
    groups = groups.astype(jnp.uint32)
    magnitudes, signs = _places()
    return jnp.sum((groups & 7) << magnitudes | (groups >> 3) << signs, axis=-1, dtype=jnp.uint32)


def _fp4_codes(words: jax.Array) -> jax.Array:
    tiles_n, tiles_k = words.shape[:2]
    magnitudes, signs = _places()
    words = words[..., None]
    groups = ((words >> magnitudes & 7) | (words >> signs & 1) << 3).astype(jnp.uint8)
    split = groups.reshape(tiles_n, tiles_k, 2, 4, 8, 4, 2, 2, 2, 4)
    return split.transpose(0, 3, 7, 4, 1, 2, 6, 8, 5, 9).reshape(tiles_n * TILE_ROWS, tiles_k * TILE_K)


def _fp6_words(codes: jax.Array, rotation: int) -> jax.Array:
    n, k = codes.shape
    # Rows: tile, warp, half, row; K: tile, block, half f, thread of the row, i.
    split = codes.reshape(n // TILE_ROWS, 4, 2, 8, k // TILE_K, 4, 2, 4, 4)
    groups = split.transpose(0, 4, 1, 3, 7, 5, 2, 6, 8).reshape(n // TILE_ROWS, k // TILE_K, 128, 4, 4, 4)
    groups = groups.astype(jnp.uint32)
    lanes = (groups & 0x1F | (groups >> 5) << 7) << 8 * jnp.arange(4, dtype=jnp.uint32)
    words = _rotated(jnp.sum(lanes, axis=-1, dtype=jnp.uint32), rotation)
    last = words[..., 3]
    parts = jnp.stack([_rotated(last, 2), last << 2, last << 4], axis=-1)
    words = words[..., :3] | parts & _turned(FREE, rotation)
    # A thread's 12 words in planes of 4.
    planes = words.reshape(n // TILE_ROWS, k // TILE_K, 128, 3, 4).transpose(0, 1, 3, 2, 4)
    return planes.reshape(n // TILE_ROWS, k // TILE_K, -1)


def _fp6_codes(words: jax.Array, rotation: int) -> jax.Array:
    tiles_n, tiles_k = words.shape[:2]
    threads = words.reshape(tiles_n, tiles_k, 3, 128, 4).transpose(0, 1, 3, 2, 4)
    words = threads.reshape(tiles_n, tiles_k, 128, 4, 3)
    free = words & _turned(FREE, rotation)
    last = _rotated(free[..., 0], 30) | free[..., 1] >> 2 | free[..., 2] >> 4
    words = _rotated(jnp.concatenate([words, last[..., None]], axis=-1), (32 - rotation) % 32)
    lanes = words[..., None] >> 8 * jnp.arange(4, dtype=jnp.uint32)
    groups = (lanes & 0x1F | (lanes >> 7 & 1) << 5).astype(jnp.uint8)
    split = groups.reshape(tiles_n, tiles_k, 4, 8, 4, 4, 2, 2, 4)
    return split.transpose(0, 2, 6, 3, 1, 5, 7, 4, 8).reshape(tiles_n * TILE_ROWS, tiles_k * TILE_K)


def _rotated(word: jax.Array, count: int) -> jax.Array:
    """The word rotated to the right."""
    return word if count == 0 else word >> count | word << 32 - count


def _turned(mask: int, count: int) -> jax.Array:
    turned: jax.Array = jnp.uint32(mask >> count)  # its lowest bits are zero
    return turned


def _scale_words(scales: jax.Array) -> jax.Array:
    n, blocks = scales.shape
    split = scales.reshape(n // TILE_ROWS, 4, 2, 8, blocks // 4, 4).transpose(0, 4, 1, 3, 2, 5)
    return lax.bitcast_convert_type(split.reshape(n // TILE_ROWS, blocks // 4, -1, 4), jnp.uint32)
