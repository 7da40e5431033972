"""Packed weights in the order in which Hopper's wgmma takes them from registers: done once, off-line, and undone.

The weights (N×K, K contiguous) become the left operand of wgmma, 64 of N by 128 of K a tile. In a tile thread t of the
128 of a warpgroup finds its own codes, 16 for each of 4 blocks of 32 along K, in words of its own, their bits placed as
`narrowgemm.formats.weight_bits` says. Behind the codes come the tile's block scales:

  codes   word 512p + 4t + j is word 4p + j of thread t: p counts 2 planes for FP4 and 3 for FP6, j goes to 4, and a
          block of 32 takes 2 or 3 of a thread's words
  scales  of 32 pairs of rows, 16·warp + lane div 4 and that + 8: for each row 4 (MX) or 8 (NVFP4) bytes along K

N is padded to 64 and K to 128, codes with zeros and scales with one, so that padding adds nothing to a product.

Source of the fragments: PTX ISA, register fragments of `wgmma.mma_async.m64nNk32` (8 bits) and `m64nNk16` (16 bits).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from narrowgemm.formats.packing import pack, unpack
from narrowgemm.formats.quantize import QuantizedArray, check_extents, check_prepared, fitting
from narrowgemm.formats.spec import E8M0, Format, format_named
from narrowgemm.formats.weight_bits import GROUP, PLACEMENTS, TARGETS, Placement
from narrowgemm.tiling import ceil_div

#: Formats of weights that are shuffled.
SHUFFLED_FORMATS = ("mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp6_e3m2")
TILE_ROWS, TILE_K = 64, 128
#: Blocks of K in a tile, warps, rows of 8 that a thread has two of, and threads that share a row.
_BLOCKS, _WARPS, _HALVES, _ROWS, _QUADS = 4, 4, 2, 8, 4
_THREADS = _WARPS * _ROWS * _QUADS
_PLANE_WORDS = 4
#: A tile's words lie in rows of this many, for a TMA box has at most 256 elements along an axis.
ROW_WORDS = 64
#: The code of scale one.
_E8M0_ONE, _E4M3_ONE = 0x7F, 0x38


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class ShuffledWeights:
    """Weights rows×k of a format of `SHUFFLED_FORMATS`, as `shuffle_weights` made them.

    tiles:           uint32 (ceil(rows/64), ceil(k/128), words of a tile / 64, 64), codes and block scales.
    tensor_scale:    FP32 scalar of NVFP4, or None for 1.
    format:          the format's name.
    activation_bits: 8 for FP8 activations, 16 for BF16.
    shape:           (rows, k).

    Making one raises ValueError, with the values, for a shape that has no array of the format, and for leaves that do
    not fit.
    """

    tiles: jax.Array
    tensor_scale: jax.Array | None
    format: str
    activation_bits: int
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _check_choice(self.format, self.activation_bits)
        rows, k = self.shape
        check_extents(self.spec, rows, k)
        owner = f"ShuffledWeights {self.format} {self.shape}"
        check_prepared(owner, "tiles", self.tiles, tiles_shape(self.format, self.shape), np.uint32)
        if self.tensor_scale is not None:
            check_prepared(owner, "tensor_scale", self.tensor_scale, (), np.float32)

    @property
    def spec(self) -> Format:
        """The row of the format table."""
        return format_named(self.format)

    def tree_flatten(self) -> tuple[tuple[Any, Any], tuple[str, int, tuple[int, int]]]:
        """Leaves, and what is static."""
        return (self.tiles, self.tensor_scale), (self.format, self.activation_bits, self.shape)

    @classmethod
    def tree_unflatten(cls, static: tuple[str, int, tuple[int, int]], leaves: tuple[Any, Any]) -> "ShuffledWeights":
        """The weights again, unchecked."""
        weights = object.__new__(cls)
        names = ("tiles", "tensor_scale", "format", "activation_bits", "shape")
        for name, value in zip(names, (*leaves, *static), strict=True):
            object.__setattr__(weights, name, value)
        return weights


def tiles_shape(format: str, shape: tuple[int, int]) -> tuple[int, int, int, int]:  # noqa: A002 - the field's word
    """Shape of the tiles of weights (rows, k) in a format of `SHUFFLED_FORMATS`."""
    spec = format_named(format)
    words = TILE_ROWS * TILE_K * spec.element.bits // 32 + TILE_ROWS * _tile_scales(spec) // 4
    return ceil_div(shape[0], TILE_ROWS), ceil_div(shape[1], TILE_K), words // ROW_WORDS, ROW_WORDS


def shuffle_weights(q: QuantizedArray, activation_bits: int) -> ShuffledWeights:
    """The weights `q` (N, K) in the order that the kernels `hopper_wgmma_w*` take, for activations of 8 or 16 bits.

    To be done once, off-line. Raises ValueError for what is no `QuantizedArray`, for a stack, for a format without such
    a kernel and for other activations.
    """
    if not isinstance(q, QuantizedArray):
        raise ValueError(f"shuffle_weights: q is a {type(q).__name__}, not a QuantizedArray; quantize it first")
    _check_choice(q.format, activation_bits)
    shuffled: ShuffledWeights = _shuffle(fitting(q, "shuffle_weights: q"), activation_bits)
    return shuffled


def unshuffle_weights(weights: ShuffledWeights) -> QuantizedArray:
    """The array that `shuffle_weights` made `weights` of, bit for bit. Raises ValueError for anything else."""
    if not isinstance(weights, ShuffledWeights):
        raise ValueError(
            f"unshuffle_weights: weights is a {type(weights).__name__}, not what shuffle_weights returned; pass that"
        )
    q: QuantizedArray = _unshuffle(fitting(weights, "unshuffle_weights: weights"))
    return q


def _check_choice(format: str, activation_bits: int) -> None:  # noqa: A002 - the field's word
    if format not in SHUFFLED_FORMATS:
        raise ValueError(f"shuffle_weights: format {format!r} is not one of {', '.join(SHUFFLED_FORMATS)}")
    if activation_bits not in TARGETS:
        raise ValueError(f"shuffle_weights: activation_bits={activation_bits} is not 8 (FP8) or 16 (BF16)")


def placement_of(spec: Format, activation_bits: int) -> Placement:
    """How the weights' bits lie in the words of a thread."""
    return PLACEMENTS[spec.element.name, TARGETS[activation_bits]]


def _tile_scales(spec: Format) -> int:
    """Block scales of a row of a tile."""
    assert spec.block is not None
    return TILE_K // spec.block


@partial(jax.jit, static_argnums=1)
def _shuffle(q: QuantizedArray, activation_bits: int) -> ShuffledWeights:
    rows, k = q.shape
    spec, placement = q.spec, placement_of(q.spec, activation_bits)
    codes = jnp.pad(unpack(q.codes, spec.element.bits, k), ((0, -rows % TILE_ROWS), (0, -k % TILE_K)))
    groups = _to_groups(codes, placement)
    words: list[Any] = [jnp.zeros(groups.shape[:-1], jnp.uint32)] * placement.words
    for code in range(GROUP):
        for bit in range(spec.element.bits):
            word, position = placement.source(code, bit)
            words[word] |= (groups[..., code].astype(jnp.uint32) >> bit & 1) << position
    tiles_n, tiles_k = groups.shape[:2]
    of_threads = (
        jnp.stack(words, axis=-1).transpose(0, 1, 3, 2, 4).reshape(tiles_n, tiles_k, _THREADS, -1, _PLANE_WORDS)
    )
    planes = of_threads.transpose(0, 1, 3, 2, 4).reshape(tiles_n, tiles_k, -1)
    tiles = jnp.concatenate([planes, _scale_words(q, tiles_n, tiles_k)], axis=-1)
    return ShuffledWeights(
        tiles.reshape(tiles_n, tiles_k, -1, ROW_WORDS), q.tensor_scale, q.format, activation_bits, q.shape
    )


@jax.jit
def _unshuffle(weights: ShuffledWeights) -> QuantizedArray:
    spec, (rows, k) = weights.spec, weights.shape
    placement = placement_of(spec, weights.activation_bits)
    tiles_n, tiles_k = weights.tiles.shape[:2]
    flat = weights.tiles.reshape(tiles_n, tiles_k, -1)
    code_words = TILE_ROWS * TILE_K * spec.element.bits // 32
    planes = flat[..., :code_words].reshape(tiles_n, tiles_k, -1, _THREADS, _PLANE_WORDS)
    words = planes.transpose(0, 1, 3, 2, 4).reshape(tiles_n, tiles_k, _THREADS, _BLOCKS, placement.words)
    words = words.transpose(0, 1, 3, 2, 4)
    codes = []
    for code in range(GROUP):
        sources = [placement.source(code, bit) for bit in range(spec.element.bits)]
        bits = [(words[..., word] >> position & 1) << bit for bit, (word, position) in enumerate(sources)]
        codes.append(sum(bits[1:], start=bits[0]))
    natural = _from_groups(jnp.stack(codes, axis=-1).astype(jnp.uint8), placement)
    scales = _scales_of_words(flat[..., code_words:], spec)
    assert spec.block is not None
    return QuantizedArray(
        pack(natural[:rows, :k], spec.element.bits),
        scales[:rows, : k // spec.block],
        weights.tensor_scale,
        weights.format,
        weights.shape,
    )


def _k_split(placement: Placement) -> tuple[int, int, int, int]:
    """How a block's 32 of K, from the most significant, split: fragments, halves, threads of a row, lanes."""
    lanes = 32 // placement.lane_bits
    return 32 // (2 * _QUADS * lanes), 2, _QUADS, lanes


def _to_groups(codes: jax.Array, placement: Placement) -> jax.Array:
    """Codes (n, k) as (n tiles, k tiles, blocks, threads, 16 codes of a thread in the order of its registers)."""
    fragments, halves_k, quads, lanes = _k_split(placement)
    n, k = codes.shape
    split = codes.reshape(
        n // TILE_ROWS, _WARPS, _HALVES, _ROWS, k // TILE_K, _BLOCKS, fragments, halves_k, quads, lanes
    )
    ordered = split.transpose(0, 4, 5, 1, 3, 8, 6, 7, 2, 9)
    return ordered.reshape(n // TILE_ROWS, k // TILE_K, _BLOCKS, _THREADS, GROUP)


def _from_groups(groups: jax.Array, placement: Placement) -> jax.Array:
    """The inverse of `_to_groups`."""
    fragments, halves_k, quads, lanes = _k_split(placement)
    tiles_n, tiles_k = groups.shape[:2]
    split = groups.reshape(tiles_n, tiles_k, _BLOCKS, _WARPS, _ROWS, quads, fragments, halves_k, _HALVES, lanes)
    natural = split.transpose(0, 3, 8, 4, 1, 2, 6, 7, 5, 9)
    return natural.reshape(tiles_n * TILE_ROWS, tiles_k * TILE_K)


def _scale_words(q: QuantizedArray, tiles_n: int, tiles_k: int) -> jax.Array:
    """Scales (n, blocks) as words (n tiles, k tiles, words)."""
    spec = q.spec
    assert q.scales is not None
    per_tile = _tile_scales(spec)
    codes = lax.bitcast_convert_type(q.scales, jnp.uint8)
    missing = (0, tiles_n * TILE_ROWS - codes.shape[0]), (0, tiles_k * per_tile - codes.shape[1])
    padded = jnp.pad(codes, missing, constant_values=_E8M0_ONE if spec.scale_dtype == E8M0 else _E4M3_ONE)
    split = padded.reshape(tiles_n, _WARPS, _HALVES, _ROWS, tiles_k, per_tile).transpose(0, 4, 1, 3, 2, 5)
    return lax.bitcast_convert_type(split.reshape(tiles_n, tiles_k, -1, 4), jnp.uint32)


def _scales_of_words(words: jax.Array, spec: Format) -> jax.Array:
    """The inverse of `_scale_words`, padding included."""
    tiles_n, tiles_k = words.shape[:2]
    per_tile = _tile_scales(spec)
    codes = lax.bitcast_convert_type(words, jnp.uint8)
    split = codes.reshape(tiles_n, tiles_k, _WARPS, _ROWS, _HALVES, per_tile).transpose(0, 2, 4, 3, 1, 5)
    assert spec.scale_dtype is not None
    return lax.bitcast_convert_type(split.reshape(tiles_n * TILE_ROWS, tiles_k * per_tile), spec.scale_dtype)
