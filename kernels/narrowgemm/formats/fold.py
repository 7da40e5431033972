"""MXFP4 weights with their block scales folded into FP8: every row is E5M2 numbers times one power of two, exactly.

A weight is fp4 · 2^e, e that of its block. With e_n the largest of row n's blocks and d = e_n − e,

  fp4 · 2^e = (fp4 · 2^13 · 2^-d) · 2^(e_n − 13)

and the bracket is zero or an E5M2 normal wherever d ≤ 26: 6·2^13 = 49152 is the largest power-of-two multiple of 6 that
E5M2 holds, and 0.5·2^13·2^-26 = 2^-14 its smallest normal. So a tensor core can add over all of K, and a row's factor
2^(e_n − 13) is applied once, to the sum. E4M3 would end at d = 11. A block of zeros has any d.

  fp4 magnitude       0    0.5   1     1.5   2     3     4     6
  E5M2 code at d = 0  0x00 0x6C  0x70  0x72  0x74  0x76  0x78  0x7A     less 4·d, but for zero, which stays

What is stored is still 4 bits a weight and a byte a block, which holds 4·d; widening subtracts it from the table above
and looks up the codes there. In a tile of 64 rows by 128 of K, thread t of the 128 of a warpgroup finds its weights in
8 words of its own, in the order in which wgmma takes its left operand from registers:

  codes   word 512p + 4t + j of the tile is word 4p + j of thread t: word 2b + h has the 8 weights of block b and row
          16·(t div 32) + (t mod 32) div 4 + 8h. Nibble 4f + i is k = 32b + 16f + 4·(t mod 4) + i: its low three bits
          are the magnitude's number, and its highest is a sign, of f = 0 for odd nibbles and of f = 1 for even ones:
          weight (f, i) has its sign in bit 8i + 7 − 4f, so that one mask finds those of four weights in the places
          where the register of f = 0 wants them, and those of f = 1 after a shift by 4.
  scales  of 32 pairs of rows, 16·warp + lane div 4 and that + 8: for each row 4 bytes along K

N is padded to 64 and K to 128 with zeros.

Source of the fragments: PTX ISA, register fragments of `wgmma.mma_async.m64nNk32`.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.packing import pack, unpack
from narrowgemm.formats.quantize import QuantizedArray, check_extents, check_prepared, fitting
from narrowgemm.formats.spec import E8M0, format_named
from narrowgemm.tiling import ceil_div

#: The one format that is folded. NVFP4's block scales have four significant bits: no power of two holds them.
FORMAT = "mxfp4"
TILE_ROWS, TILE_K, BLOCK = 64, 128, 32
#: What weights are widened to, and the codes of its magnitudes, as bytes of two words from the lowest on.
ELEMENT = np.dtype(jnp.float8_e5m2)
TABLE = (0x72706C00, 0x7A787674)
#: What a code loses when its number is halved, the most halvings of 0.5 that leave it normal, and the power of two by
#: which the table's numbers are larger than FP4's.
STEP, MOST, EXPONENT = 4, 26, 13
#: A tile's words lie in rows of this many, for a TMA box has at most 256 elements along an axis.
ROW_WORDS = 64
_CODE_WORDS = TILE_ROWS * TILE_K // 8
_TILE_WORDS = _CODE_WORDS + TILE_ROWS * TILE_K // BLOCK // 4
#: The lowest e_n: a row's factor is an FP32 normal.
_LEAST_EXPONENT = EXPONENT - 126
_BIAS, _NAN = 127, 0xFF
_UNFOLDED = "use narrowgemm.shuffle_weights(q, 8) and hopper_wgmma_w4a8"


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class FoldedWeights:
    """MXFP4 weights rows×k as `fold_weights` made them.

    tiles:   uint32 (ceil(rows/64), ceil(k/128), words of a tile / 64, 64), codes and what their blocks subtract.
    factors: FP32 (rows,), powers of two.
    shape:   (rows, k).

    Making one raises ValueError, with the values, for a shape that has no MXFP4 array, and for leaves that do not fit.
    """

    tiles: jax.Array
    factors: jax.Array
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        rows, k = self.shape
        check_extents(format_named(FORMAT), rows, k)
        owner = f"FoldedWeights {self.shape}"
        check_prepared(owner, "tiles", self.tiles, tiles_shape(self.shape), np.uint32)
        check_prepared(owner, "factors", self.factors, self.shape[:1], np.float32)

    @property
    def format(self) -> str:
        """The format that the weights were folded from."""
        return FORMAT

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[int, int]]:
        """Leaves, and what is static."""
        return (self.tiles, self.factors), self.shape

    @classmethod
    def tree_unflatten(cls, static: tuple[int, int], leaves: tuple[Any, Any]) -> "FoldedWeights":
        """The weights again, unchecked."""
        weights = object.__new__(cls)
        for name, value in zip(("tiles", "factors", "shape"), (*leaves, static), strict=True):
            object.__setattr__(weights, name, value)
        return weights


def tiles_shape(shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Shape of the tiles of weights (rows, k)."""
    return ceil_div(shape[0], TILE_ROWS), ceil_div(shape[1], TILE_K), _TILE_WORDS // ROW_WORDS, ROW_WORDS


def fold_weights(q: QuantizedArray) -> FoldedWeights:
    """The MXFP4 weights `q` (N, K) as `hopper_wgmma_w4a8_folded` takes them: once, off-line, and exact.

    Raises ValueError for what is no `QuantizedArray`, and for a stack. Raises UnsupportedError for another format, and
    for a row whose scales spread over more than 2^26 where weights are not zero, have a NaN, or lie where the row's
    factor is no FP32 normal. Under jit, where no value can be looked at, such a row gets the factor NaN, and so become
    its results.
    """
    if not isinstance(q, QuantizedArray):
        raise ValueError(f"fold_weights: q is a {type(q).__name__}, not a QuantizedArray; quantize it first")
    if q.format != FORMAT:
        why = "has scales that are no powers of two" if q.format == "nvfp4" else f"is not {FORMAT}"
        raise UnsupportedError("fold_weights", {"format": q.format}, f"{why}: FP8 does not hold its scaled weights", (
            f"quantize to {FORMAT}" if q.spec.is_packed else "use a kernel of its own"
        ))  # fmt: skip
    q = fitting(q, "fold_weights: q")
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(q)):
        _check_rows(q)
    folded: FoldedWeights = _fold(q)
    return folded


def unfold_weights(weights: FoldedWeights) -> QuantizedArray:
    """An MXFP4 array of the folded values, its codes bit for bit; blocks of zeros have the row's largest scale.

    A row that could not be folded, whose factor is NaN, has NaN for its scales. Raises ValueError for anything that
    `fold_weights` did not return, and for a stack.
    """
    if not isinstance(weights, FoldedWeights):
        raise ValueError(
            f"unfold_weights: weights is a {type(weights).__name__}, not what fold_weights returned; pass that"
        )
    q: QuantizedArray = _unfold(fitting(weights, "unfold_weights: weights"))
    return q


def _check_rows(q: QuantizedArray) -> None:
    """Raises UnsupportedError, naming the first, for rows that cannot be folded."""
    # Under a trace, jit would stage even what is known out of it.
    with jax.ensure_compile_time_eval():
        highest, lowest, has_nan = (np.asarray(part) for part in _exponents(q))
    for is_bad, rule in (
        (has_nan, "has a scale that is NaN"),
        (highest - lowest > MOST, f"has weights whose scales are more than 2^{MOST} apart"),
        (highest < _LEAST_EXPONENT, f"has scales below 2^{_LEAST_EXPONENT}, whose factor FP32 holds as a subnormal"),
    ):
        if is_bad.any():
            row = int(np.argmax(is_bad))
            shown: dict[str, object] = {"row": row, "highest": f"2^{highest[row]}", "lowest": f"2^{lowest[row]}"}
            raise UnsupportedError("fold_weights", shown, f"{rule} (such rows: {is_bad.sum()})", _UNFOLDED)


@jax.jit
def _exponents(q: QuantizedArray) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of each row the highest and lowest exponent of blocks that are not all zero, and whether any scale is NaN.

    A row of zeros has 0 and 0.
    """
    exponents, counts = _exponents_of_blocks(q), _is_counted(q)
    far = jnp.int32(1000)
    highest = jnp.max(jnp.where(counts, exponents, -far), axis=1)
    lowest = jnp.min(jnp.where(counts, exponents, far), axis=1)
    none = highest == -far
    has_nan = jnp.any(exponents == _NAN - _BIAS, axis=1)
    return jnp.where(none, 0, highest), jnp.where(none, 0, lowest), has_nan


def _exponents_of_blocks(q: QuantizedArray) -> jax.Array:
    assert q.scales is not None
    return lax.bitcast_convert_type(q.scales, jnp.uint8).astype(jnp.int32) - _BIAS


def _is_counted(q: QuantizedArray) -> jax.Array:
    """Which blocks have a weight that is not zero. Byte by byte: both codes of one are of one block."""
    return jnp.any((q.codes & 0x77).reshape(q.shape[0], -1, BLOCK // 2) != 0, axis=2)


@jax.jit
def _fold(q: QuantizedArray) -> FoldedWeights:
    rows, k = q.shape
    highest, lowest, has_nan = _exponents(q)
    halvings = jnp.where(_is_counted(q), highest[:, None] - _exponents_of_blocks(q), 0)
    is_folded = ~has_nan & (highest - lowest <= MOST) & (highest >= _LEAST_EXPONENT)
    bits = (jnp.maximum(highest - EXPONENT, -126) + _BIAS).astype(jnp.uint32) << 23
    factors = jnp.where(is_folded, lax.bitcast_convert_type(bits, jnp.float32), jnp.nan)
    padding = (0, -rows % TILE_ROWS), (0, -k % TILE_K)
    codes = jnp.pad(unpack(q.codes, 4, k), padding)
    subtracted = jnp.pad((halvings * STEP).astype(jnp.uint8), (padding[0], (0, padding[1][1] // BLOCK)))
    words = jnp.concatenate([_code_words(codes), _scale_words(subtracted)], axis=-1)
    return FoldedWeights(words.reshape(tiles_shape(q.shape)), factors, q.shape)


@jax.jit
def _unfold(weights: FoldedWeights) -> QuantizedArray:
    rows, k = weights.shape
    codes, subtracted = _natural(weights.tiles)
    exponents = lax.bitcast_convert_type(weights.factors, jnp.uint32) >> 23
    scales = exponents[:, None] + EXPONENT - subtracted[:rows, : k // BLOCK].astype(jnp.uint32) // STEP
    scales = jnp.where(jnp.isnan(weights.factors)[:, None], _NAN, scales)
    return QuantizedArray(
        pack(codes[:rows, :k], 4),
        lax.bitcast_convert_type(scales.astype(jnp.uint8), E8M0),
        None,
        FORMAT,
        weights.shape,
    )


def tile_values(tiles: jax.Array) -> jax.Array:
    """What the tensor core sees of tiles (…, …, words/64, 64): FP32 (64 · tiles, 128 · tiles), without the factors."""
    codes, subtracted = _natural(tiles)
    table = jnp.stack([jnp.uint32(word) >> 8 * byte & 0xFF for word in TABLE for byte in range(4)])
    magnitude = table[codes & 7]
    number = jnp.where(magnitude == 0, 0, magnitude - jnp.repeat(subtracted, BLOCK, axis=1))
    number |= (codes & 8).astype(jnp.uint32) << 4
    return lax.bitcast_convert_type(number.astype(jnp.uint8), ELEMENT).astype(jnp.float32)


def _places() -> tuple[jax.Array, jax.Array]:
    """Where the eight magnitudes and the eight signs of a word begin. Made anew: a kernel takes no constant arrays."""
    nibble = jnp.arange(8, dtype=jnp.uint32)
    return 4 * nibble, 8 * (nibble % 4) + 7 - 4 * (nibble // 4)


def _code_words(codes: jax.Array) -> jax.Array:
    """Codes (n, k) of whole tiles as words (n tiles, k tiles, words)."""
    n, k = codes.shape
    # Rows: tile, warp, half, row; K: tile, plane, block of the plane, half f, thread of the row, i.
    split = codes.reshape(n // TILE_ROWS, 4, 2, 8, k // TILE_K, 2, 2, 2, 4, 4)
    groups = split.transpose(0, 4, 5, 1, 3, 8, 6, 2, 7, 9).reshape(n // TILE_ROWS, k // TILE_K, _CODE_WORDS, 8)
    groups = groups.astype(jnp.uint32)
    magnitudes, signs = _places()
    return jnp.sum((groups & 7) << magnitudes | (groups >> 3) << signs, axis=-1, dtype=jnp.uint32)


def _natural(tiles: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Codes (n, k) and what their blocks subtract (n, k/32), bytes, padding included."""
    tiles_n, tiles_k = tiles.shape[:2]
    flat = tiles.reshape(tiles_n, tiles_k, -1)
    words = flat[..., :_CODE_WORDS, None]
    magnitudes, signs = _places()
    groups = ((words >> magnitudes & 7) | (words >> signs & 1) << 3).astype(jnp.uint8)
    split = groups.reshape(tiles_n, tiles_k, 2, 4, 8, 4, 2, 2, 2, 4)
    codes = split.transpose(0, 3, 7, 4, 1, 2, 6, 8, 5, 9).reshape(tiles_n * TILE_ROWS, tiles_k * TILE_K)
    scales = lax.bitcast_convert_type(flat[..., _CODE_WORDS:], jnp.uint8)
    scales = scales.reshape(tiles_n, tiles_k, 4, 8, 2, 4).transpose(0, 2, 4, 3, 1, 5)
    return codes, scales.reshape(tiles_n * TILE_ROWS, -1)


def _scale_words(scales: jax.Array) -> jax.Array:
    """Bytes (n, blocks) of whole tiles as words (n tiles, k tiles, words)."""
    n, blocks = scales.shape
    split = scales.reshape(n // TILE_ROWS, 4, 2, 8, blocks // 4, 4).transpose(0, 4, 1, 3, 2, 5)
    return lax.bitcast_convert_type(split.reshape(n // TILE_ROWS, blocks // 4, -1, 4), jnp.uint32)
