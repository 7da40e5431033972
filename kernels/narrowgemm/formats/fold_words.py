"""Words of a tile of folded weights, 64 rows by 128 of K: the order in which a thread of a wgmma wants them.

Thread t of the 128 of a warpgroup holds rows 16·(t div 32) + (t mod 32) div 4 + 8h, h = 0 and 1, and of a block b of
32 along K the weights k = 32b + 16f + 4·(t mod 4) + i, f = 0 and 1, i = 0 … 3: those of one h, b and f are a register
of its left operand. Word 512p + 4t + j of a tile is word 4p + j of thread t, so that 16 bytes are loaded at once; the
words of block scales follow, of 32 pairs of rows, 16·warp + lane div 4 and that + 8, for each row 4 bytes along K.

FP4, 8 words a thread: word 2b + h has the 8 weights of block b and row h. Nibble 4f + i is weight (f, i): its low three
bits are the magnitude's number, and its highest is a sign, of f = 0 for odd nibbles and of f = 1 for even ones: weight
(f, i) has its sign in bit 8i + 7 − 4f, so that one mask finds those of four weights in the places where the register of
f = 0 wants them, and those of f = 1 after a shift by 4.

FP6, 12 words a thread: words 3b + j have the 16 weights of block b, in groups 2h + f of four, of which i = 0 and 1 lie
in a word's lower half, 2 and 3 in its upper one; 0 and 2 are called even. Groups 0 to 2 are words j = 0 to 2. Group 3
lies in the bits that they leave free, four of every half: it is an exclusive or of shifted words, and as all that comes
along is known when words are made, a free bit is what makes it right. So no word has to be masked before.

  bits of a half     15    14 13    12 … 8    7     6 5     4 … 0
  E3M2               sign  free     odd       sign  free    even       magnitudes eeemm, signs of odd and even
  group 3            word 0 rotated left by 2 ^ word 1 >> 2 ^ word 2 >> 4, which bring free bits to bits 7 of a byte
                     and 0 of the next, to 4 and 3, and to 2 and 1

  bits of a half     15    14    13 12    11 … 7    6     5     4 … 1    0
  E2M3, words 0, 1   free  sign  free     odd       sign  free  even     even
  E2M3, word 2       free  sign  free     odd       sign  even  even     free
  group 3, odd       word 0 >> 5 ^ word 1 >> 4                   free bits 15, 12 of word 0 and 15, 13, 12 of word 1
  even, << 7         word 1 << 4 ^ word 2 rotated right by 5     free bits 5 of word 1 and 15, 13, 12, 0 of word 2
  signs              word 0 << 1                                 free bits 13, 5 of word 0

FP16 has a code in bits 15 and 12 to 8 (E3M2), a magnitude in 11 to 7 (E2M3): even ones after a shift by 8, by 7, or of
word 2 by 6. Example: the highest bit of group 3's weight i = 1 in E2M3 is bit 11 of word 0 >> 5 ^ word 1 >> 4, of bit
16 of word 0, the lowest of group 0's i = 2, and bit 15 of word 1: the free one is the wanted bit ^ the other.

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
#: E3M2: the bits that a word's own group leaves free.
_FREE = 0x60606060
#: E2M3: where magnitudes of odd bytes are, those of even ones after a shift, and signs.
_MAGNITUDES, _SIGNS = 0x0F800F80, 0x40404040


def planes_of(fmt: str) -> int:
    """Planes of a tile: 16 bytes of codes a thread each."""
    return format_named(fmt).element.bits // 2


def tiles_shape(shape: tuple[int, int], fmt: str) -> tuple[int, int, int, int]:
    """Shape of the tiles of weights (rows, k)."""
    words = _code_word_count(fmt) + TILE_ROWS * TILE_K // BLOCK // 4
    return ceil_div(shape[0], TILE_ROWS), ceil_div(shape[1], TILE_K), words // ROW_WORDS, ROW_WORDS


def tile_words(codes: jax.Array, scales: jax.Array, fmt: str) -> jax.Array:
    """Codes (n, k) and bytes of their blocks (n, k/32), of whole tiles, as words (n tiles, k tiles, words)."""
    code_words = _fp4_words(codes) if fmt == "mxfp4" else _fp6_words(codes, fmt)
    return jnp.concatenate([code_words, _scale_words(scales)], axis=-1)


def natural(tiles: jax.Array, fmt: str) -> tuple[jax.Array, jax.Array]:
    """Codes (n, k) and bytes of their blocks (n, k/32) of tiles, padding included."""
    tiles_n, tiles_k = tiles.shape[:2]
    flat, count = tiles.reshape(tiles_n, tiles_k, -1), _code_word_count(fmt)
    words = flat[..., :count]
    codes = _fp4_codes(words) if fmt == "mxfp4" else _fp6_codes(words, fmt)
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


def _fp6_words(codes: jax.Array, fmt: str) -> jax.Array:
    n, k = codes.shape
    # Rows: tile, warp, half, row; K: tile, block, half f, thread of the row, i.
    split = codes.reshape(n // TILE_ROWS, 4, 2, 8, k // TILE_K, 4, 2, 4, 4)
    groups = split.transpose(0, 4, 1, 3, 7, 5, 2, 6, 8).reshape(n // TILE_ROWS, k // TILE_K, 128, 4, 4, 4)
    groups = groups.astype(jnp.uint32)
    lanes = (groups & 0x1F | (groups >> 5) << 7) << 8 * jnp.arange(4, dtype=jnp.uint32)
    lanes = jnp.sum(lanes, axis=-1, dtype=jnp.uint32)
    words = jnp.stack((_joined_e2m3 if fmt == "mxfp6_e2m3" else _joined_e3m2)(lanes), axis=-1)
    # A thread's 12 words in planes of 4.
    planes = words.reshape(n // TILE_ROWS, k // TILE_K, 128, 3, 4).transpose(0, 1, 3, 2, 4)
    return planes.reshape(n // TILE_ROWS, k // TILE_K, -1)


def _fp6_codes(words: jax.Array, fmt: str) -> jax.Array:
    tiles_n, tiles_k = words.shape[:2]
    threads = words.reshape(tiles_n, tiles_k, 3, 128, 4).transpose(0, 1, 3, 2, 4)
    words = threads.reshape(tiles_n, tiles_k, 128, 4, 3)
    groups = jnp.stack((_parted_e2m3 if fmt == "mxfp6_e2m3" else _parted_e3m2)(words), axis=-1)
    lanes = groups[..., None] >> 8 * jnp.arange(4, dtype=jnp.uint32)
    codes = (lanes & 0x1F | (lanes >> 7 & 1) << 5).astype(jnp.uint8)
    split = codes.reshape(tiles_n, tiles_k, 4, 8, 4, 4, 2, 2, 4)
    return split.transpose(0, 2, 6, 3, 1, 5, 7, 4, 8).reshape(tiles_n * TILE_ROWS, tiles_k * TILE_K)


def _joined_e3m2(groups: jax.Array) -> list[jax.Array]:
    """The three words of four groups of bytes s..eeemm (…, 4)."""
    first, second, third, last = (groups[..., group] for group in range(4))
    lacking = last ^ _rotated(first, 30) ^ second >> 2 ^ third >> 4
    free = [_rotated(lacking, 2), lacking << 2, lacking << 4]
    return [word | bits & _FREE for word, bits in zip((first, second, third), free, strict=True)]


def _parted_e3m2(words: jax.Array) -> list[jax.Array]:
    """The four groups, and in other bits of them anything."""
    first, second, third = (words[..., word] for word in range(3))
    return [first, second, third, _rotated(first, 30) ^ second >> 2 ^ third >> 4]


def _joined_e2m3(groups: jax.Array) -> list[jax.Array]:
    """The three words of four groups of bytes s..eemmm (…, 4)."""
    odd, even, signs = groups >> 1 & _MAGNITUDES, groups << 7 & _MAGNITUDES, groups >> 1 & _SIGNS
    own = odd | signs
    first, second = (own[..., group] | even[..., group] >> 7 for group in range(2))
    third = own[..., 2] | even[..., 2] >> 6
    first |= signs[..., 3] >> 1
    # Where free bits of two words meet, the first's are bits of signs, which it has by now.
    lacking = odd[..., 3] ^ first >> 5 ^ second >> 4
    first |= (lacking & 0x04800480) << 5
    second |= (lacking & 0x0B000B00) << 4
    lacking = even[..., 3] ^ second << 4 ^ _rotated(third, 5)
    second |= (lacking & 0x02000200) >> 4
    third |= _rotated(lacking & 0x0D800D80, 27)
    return [first, second, third]


def _parted_e2m3(words: jax.Array) -> list[jax.Array]:
    """The four groups of bytes s..eemmm."""
    first, second, third = (words[..., word] for word in range(3))
    odd = [first, second, third, first >> 5 ^ second >> 4]
    even = [first << 7, second << 7, third << 6, second << 4 ^ _rotated(third, 5)]
    signs = [first, second, third, first << 1]
    return [
        (o & _MAGNITUDES) << 1 | (e & _MAGNITUDES) >> 7 | (s & _SIGNS) << 1
        for o, e, s in zip(odd, even, signs, strict=True)
    ]


def _rotated(word: jax.Array, count: int) -> jax.Array:
    """The word rotated to the right."""
    return word >> count | word << 32 - count


def _scale_words(scales: jax.Array) -> jax.Array:
    n, blocks = scales.shape
    split = scales.reshape(n // TILE_ROWS, 4, 2, 8, blocks // 4, 4).transpose(0, 4, 1, 3, 2, 5)
    return lax.bitcast_convert_type(split.reshape(n // TILE_ROWS, blocks // 4, -1, 4), jnp.uint32)
