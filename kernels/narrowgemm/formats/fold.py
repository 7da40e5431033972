"""MX weights with their block scales folded into FP8: every row is FP8 numbers times one power of two, exactly.

A weight is code · 2^e, e that of its block. With e_n the largest of row n's blocks and d = e_n − e,

  code · 2^e = (code · 2^x · 2^-d) · 2^(e_n − x)

and FP8 holds the bracket of every code wherever d is at most `most`. So a tensor core can add over all of K, and a
row's factor 2^(e_n − x) is applied once, to the sum. A block of zeros has any d.

  format      FP8    x   most  why no more
  mxfp4       E5M2   13  26    6·2^13 = 49152 is E5M2's largest multiple of 6 by a power of two, and 0.5·2^13·2^-26 =
                               2^-14 its smallest normal. E4M3 would end at d = 11
  mxfp6_e2m3  E4M3   5   11    7.5·2^5 = 240, for 480 is more than E4M3 has, and 2^-3·2^5·2^-11 = 2^-9, its smallest
                               subnormal: the other codes are multiples of it, of no more bits
  mxfp6_e3m2  E5M2   3   15    2^-4·2^3·2^-15 = 2^-16, its smallest subnormal. E5M2 would allow x = 11 and d = 23, but
                               widening multiplies once in FP16, by at most 2^15

What is stored is still 4 or 6 bits a weight and a byte a block:

  mxfp4       4·d, which widening subtracts from the codes of the FP4 magnitudes at d = 0, and looks up the codes there:
              FP4 magnitude       0    0.5   1     1.5   2     3     4     6
              E5M2 code at d = 0  0x00 0x6C  0x70  0x72  0x74  0x76  0x78  0x7A     less 4·d, but for zero, which stays
  mxfp6_*     the high byte of the FP16 number 2^(most − d), by which widening multiplies the weights, whose codes read
              as FP16 numbers

in the order of `narrowgemm.formats.fold_words`. N is padded to 64 and K to 128 with zeros.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from narrowgemm.errors import UnsupportedError, unknown_name
from narrowgemm.formats.fold_words import BLOCK, TILE_K, TILE_ROWS, natural, tile_words, tiles_shape
from narrowgemm.formats.packing import pack, unpack
from narrowgemm.formats.quantize import QuantizedArray, check_extents, check_prepared, fitting
from narrowgemm.formats.spec import E8M0, format_named

#: Codes of FP4's magnitudes in E5M2, as bytes of two words from the lowest on.
TABLE = (0x72706C00, 0x7A787674)


@dataclass(frozen=True)
class Folding:
    """How weights of a format are folded.

    element:     what they are widened to.
    exponent:    the power of two by which the numbers of a row's largest block are larger than the format's.
    most:        the most halvings after which FP8 holds every weight of the format.
    first, step: a block whose numbers are halved d times has the byte first + step·d.
    unfolded:    the kernel that takes the format with its block scales apart.
    """

    element: np.dtype[Any]
    exponent: int
    most: int
    first: int
    step: int
    unfolded: str

    @property
    def least_exponent(self) -> int:
        """The lowest e_n: a row's factor is an FP32 normal."""
        return self.exponent - 126


_E4M3, _E5M2 = np.dtype(jnp.float8_e4m3fn), np.dtype(jnp.float8_e5m2)
#: What is folded. NVFP4's block scales have four significant bits: no power of two holds them.
FOLDINGS = {
    "mxfp4": Folding(_E5M2, exponent=13, most=26, first=0, step=4, unfolded="hopper_wgmma_w4a8"),
    "mxfp6_e2m3": Folding(_E4M3, exponent=5, most=11, first=4 * (15 + 11), step=-4, unfolded="hopper_wgmma_w6a8"),
    "mxfp6_e3m2": Folding(_E5M2, exponent=3, most=15, first=4 * (15 + 15), step=-4, unfolded="hopper_wgmma_w6a8"),
}
_BIAS, _NAN = 127, 0xFF
#: Bits of a code -> the bits of packed bytes that are no signs.
_MAGNITUDES = {4: (0x77,), 6: (0xDF, 0xF7, 0x7D)}


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class FoldedWeights:
    """Weights rows×k as `fold_weights` made them.

    tiles:   uint32 (ceil(rows/64), ceil(k/128), words of a tile / 64, 64), codes and what their blocks are halved by.
    factors: FP32 (rows,), powers of two.
    shape:   (rows, k).
    format:  what the weights were folded from.

    Making one raises ValueError, with the values, for a format that is not folded, for a shape that has no array of it,
    and for leaves that do not fit.
    """

    tiles: jax.Array
    factors: jax.Array
    shape: tuple[int, int]
    format: str = "mxfp4"

    def __post_init__(self) -> None:
        if self.format not in FOLDINGS:
            raise ValueError(f"FoldedWeights: {unknown_name('format', self.format, FOLDINGS)}")
        rows, k = self.shape
        check_extents(format_named(self.format), rows, k)
        owner = f"FoldedWeights {self.shape}"
        check_prepared(owner, "tiles", self.tiles, tiles_shape(self.shape, self.format), np.uint32)
        check_prepared(owner, "factors", self.factors, self.shape[:1], np.float32)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[tuple[int, int], str]]:
        """Leaves, and what is static."""
        return (self.tiles, self.factors), (self.shape, self.format)

    @classmethod
    def tree_unflatten(cls, static: tuple[tuple[int, int], str], leaves: tuple[Any, Any]) -> "FoldedWeights":
        """The weights again, unchecked."""
        weights = object.__new__(cls)
        for name, value in zip(("tiles", "factors", "shape", "format"), (*leaves, *static), strict=True):
            object.__setattr__(weights, name, value)
        return weights


def fold_weights(q: QuantizedArray) -> FoldedWeights:
    """The weights `q` (N, K), MXFP4 or MXFP6, as `hopper_wgmma_w4a8_folded`, `_w6a8_folded` take them: once, exactly.

    Raises ValueError for what is no `QuantizedArray`, and for a stack. Raises UnsupportedError for another format, and
    for a row whose scales spread over more than 2^26 (MXFP4), 2^15 (MXFP6 E3M2) or 2^11 (E2M3) where weights are not
    zero, have a NaN, or lie where the row's factor is no FP32 normal. Under jit, where no value can be looked at, such
    a row gets the factor NaN, and so become its results.
    """
    if not isinstance(q, QuantizedArray):
        raise ValueError(f"fold_weights: q is a {type(q).__name__}, not a QuantizedArray; quantize it first")
    if q.format not in FOLDINGS:
        known = ", ".join(FOLDINGS)
        why = "has scales that are no powers of two" if q.format == "nvfp4" else f"is not one of {known}"
        raise UnsupportedError("fold_weights", {"format": q.format}, f"{why}: FP8 does not hold its scaled weights", (
            f"quantize to one of {known}" if q.spec.is_packed else "use a kernel of its own"
        ))  # fmt: skip
    q = fitting(q, "fold_weights: q")
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(q)):
        _check_rows(q)
    folded: FoldedWeights = _fold(q)
    return folded


def unfold_weights(weights: FoldedWeights) -> QuantizedArray:
    """An array of the folded values in their format, its codes bit for bit; blocks of zeros have the row's largest.

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
    folding = FOLDINGS[q.format]
    most, least = folding.most, folding.least_exponent
    # Under a trace, jit would stage even what is known out of it.
    with jax.ensure_compile_time_eval():
        highest, lowest, has_nan = (np.asarray(part) for part in _exponents(q))
    for is_bad, rule in (
        (has_nan, "has a scale that is NaN"),
        (highest - lowest > most, f"has weights whose scales are more than 2^{most} apart"),
        (highest < least, f"has scales below 2^{least}, whose factor FP32 holds as a subnormal"),
    ):
        if is_bad.any():
            row = int(np.argmax(is_bad))
            shown: dict[str, object] = {"row": row, "highest": f"2^{highest[row]}", "lowest": f"2^{lowest[row]}"}
            remedy = f"use narrowgemm.shuffle_weights(q, 8) and {folding.unfolded}"
            raise UnsupportedError("fold_weights", shown, f"{rule} (such rows: {is_bad.sum()})", remedy)


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
    """Which blocks have a weight that is not zero. Byte by byte: no code crosses the end of a block."""
    block_bytes = BLOCK * q.spec.element.bits // 8
    mask = jnp.asarray(np.resize(_MAGNITUDES[q.spec.element.bits], block_bytes), jnp.uint8)
    return jnp.any(q.codes.reshape(q.shape[0], -1, block_bytes) & mask != 0, axis=2)


@jax.jit
def _fold(q: QuantizedArray) -> FoldedWeights:
    (rows, k), folding = q.shape, FOLDINGS[q.format]
    highest, lowest, has_nan = _exponents(q)
    halvings = jnp.where(_is_counted(q), highest[:, None] - _exponents_of_blocks(q), 0)
    is_folded = ~has_nan & (highest - lowest <= folding.most) & (highest >= folding.least_exponent)
    bits = (jnp.maximum(highest - folding.exponent, -126) + _BIAS).astype(jnp.uint32) << 23
    factors = jnp.where(is_folded, lax.bitcast_convert_type(bits, jnp.float32), jnp.nan)
    padding = (0, -rows % TILE_ROWS), (0, -k % TILE_K)
    codes = jnp.pad(unpack(q.codes, q.spec.element.bits, k), padding)
    scales = (folding.first + folding.step * halvings).astype(jnp.uint8)
    scales = jnp.pad(scales, (padding[0], (0, padding[1][1] // BLOCK)))
    words = tile_words(codes, scales, q.format)
    return FoldedWeights(words.reshape(tiles_shape(q.shape, q.format)), factors, q.shape, q.format)


@jax.jit
def _unfold(weights: FoldedWeights) -> QuantizedArray:
    (rows, k), folding = weights.shape, FOLDINGS[weights.format]
    codes, block_bytes = natural(weights.tiles, weights.format)
    halvings = (block_bytes[:rows, : k // BLOCK].astype(jnp.int32) - folding.first) // folding.step
    exponents = (lax.bitcast_convert_type(weights.factors, jnp.uint32) >> 23).astype(jnp.int32)
    scales = exponents[:, None] + folding.exponent - halvings
    scales = jnp.where(jnp.isnan(weights.factors)[:, None], _NAN, scales)
    return QuantizedArray(
        pack(codes[:rows, :k], format_named(weights.format).element.bits),
        lax.bitcast_convert_type(scales.astype(jnp.uint8), E8M0),
        None,
        weights.format,
        weights.shape,
    )


def tile_values(tiles: jax.Array, fmt: str) -> jax.Array:
    """What the tensor core sees of tiles (…, …, words/64, 64): FP32 (64 · tiles, 128 · tiles), without the factors."""
    codes, scales = natural(tiles, fmt)
    repeated = jnp.repeat(scales, BLOCK, axis=1)
    return _fp4_values(codes, repeated) if fmt == "mxfp4" else _fp6_values(codes, repeated, fmt)


def _fp4_values(codes: jax.Array, subtracted: jax.Array) -> jax.Array:
    table = jnp.stack([jnp.uint32(word) >> 8 * byte & 0xFF for word in TABLE for byte in range(4)])
    magnitude = table[codes & 7]
    number = jnp.where(magnitude == 0, 0, magnitude - subtracted)
    number |= (codes & 8).astype(jnp.uint32) << 4
    return lax.bitcast_convert_type(number.astype(jnp.uint8), FOLDINGS["mxfp4"].element).astype(jnp.float32)


def _fp6_values(codes: jax.Array, high_bytes: jax.Array, fmt: str) -> jax.Array:
    """By FP16 numbers that are code · 2^-14 (E2M3) or code · 2^-12 (E3M2)."""
    spec, folding = format_named(fmt), FOLDINGS[fmt]
    magnitudes = (codes & 0x1F).astype(jnp.uint16) << 10 - spec.element.mantissa_bits
    numbers, powers = (
        lax.bitcast_convert_type(bits, jnp.float16).astype(jnp.float32)
        for bits in (magnitudes, high_bytes.astype(jnp.uint16) << 8)
    )
    lacking = 2.0 ** (folding.exponent - folding.most + (12 if folding.element == _E5M2 else 14))
    values = numbers * powers * lacking * jnp.where(codes & 0x20 != 0, -1.0, 1.0)
    return values.astype(folding.element).astype(jnp.float32)
