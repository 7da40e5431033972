from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowgemm
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import fold, reference
from narrowgemm.formats.fold import FOLDINGS, FoldedWeights, fold_weights, tile_values, unfold_weights
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import E8M0, ELEMENTS, format_named

FORMATS = tuple(FOLDINGS)


def weights(codes: np.ndarray, scales: np.ndarray, fmt: str = "mxfp4") -> QuantizedArray:
    """Codes (n, k), one a byte, and E8M0 codes (n, k/32)."""
    packed = reference.pack(codes.astype(np.uint8), format_named(fmt).element.bits)
    return QuantizedArray(jnp.asarray(packed), jnp.asarray(scales.astype(np.uint8).view(E8M0)), None, fmt, codes.shape)


def foldable(n: int, blocks: int, seed: int, fmt: str = "mxfp4") -> QuantizedArray:
    """Random codes, some blocks of zeros with scales of their own, and the others' spread over all that a row may."""
    random, folding = np.random.default_rng(seed), FOLDINGS[fmt]
    sign = 1 << format_named(fmt).element.bits - 1
    codes, is_zero = random.integers(0, 2 * sign, (n, blocks, 32)), random.random((n, blocks, 1)) < 0.2
    codes = np.where(is_zero, codes & sign, codes)
    # A row's factor is a normal FP32 from this e_n on.
    least = folding.least_exponent + 127
    lowest = random.integers(least, 0xFF - folding.most, (n, 1))
    scales = lowest + random.integers(0, folding.most + 1, (n, blocks))
    scales = np.where(is_zero[..., 0], random.integers(0, 0xFF, (n, blocks)), scales)
    return weights(codes.reshape(n, -1), np.maximum(scales, least), fmt)


#: Compiled as a whole: each operation on its own would be a program for each shape.
seen_of_tiles = jax.jit(tile_values, static_argnums=1)


# Each shape is compiled once, for all its weights. In N less than a tile of 64, one, and several, the last whole or
# not; in K any number of the four blocks of a tile of 128, in the first, the second or the third.
@pytest.mark.parametrize(
    ("fmt", "n", "blocks"),
    [
        *(("mxfp4", 1, 1), ("mxfp4", 64, 4), ("mxfp4", 127, 6), ("mxfp4", 150, 9)),
        *(("mxfp6_e2m3", 37, 2), ("mxfp6_e2m3", 65, 8), ("mxfp6_e2m3", 128, 3), ("mxfp6_e2m3", 130, 5)),
        *(("mxfp6_e3m2", 63, 3), ("mxfp6_e3m2", 1, 7), ("mxfp6_e3m2", 128, 4), ("mxfp6_e3m2", 70, 9)),
    ],
)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_folded_weights_are_the_weights_and_are_undone(fmt: str, n: int, blocks: int, seed: int) -> None:
    q = foldable(n, blocks, seed, fmt)
    folded = fold_weights(q)
    back = unfold_weights(folded)
    np.testing.assert_array_equal(back.codes, q.codes)
    exact = reference.dequantize(q)
    np.testing.assert_array_equal(reference.dequantize(back), exact)
    seen = np.asarray(seen_of_tiles(folded.tiles, fmt)).astype(np.float64)
    np.testing.assert_array_equal(
        seen[:n, : 32 * blocks] * np.asarray(folded.factors).astype(np.float64)[:, None], exact
    )
    assert not seen[n:].any()
    assert not seen[:, 32 * blocks :].any()


def test_every_magnitude_is_a_normal_for_every_distance() -> None:
    table, folding = np.array(fold.TABLE, "<u4").view(np.uint8), FOLDINGS["mxfp4"]
    for halvings, (number, code) in product(range(folding.most + 1), enumerate(table)):
        value = np.uint8(code - folding.step * halvings if number else 0).view(ml_dtypes.float8_e5m2)
        magnitude = reference.decode(np.uint8(number), ELEMENTS["e2m1"])
        assert float(value) == float(magnitude) * 2.0 ** (folding.exponent - halvings)
        assert number == 0 or float(value) >= float(ml_dtypes.finfo(ml_dtypes.float8_e5m2).smallest_normal)


@pytest.mark.parametrize("fmt", ["mxfp6_e2m3", "mxfp6_e3m2"])
def test_fp8_holds_every_fp6_code_at_every_distance_and_not_one_further(fmt: str) -> None:
    folding, values = FOLDINGS[fmt], reference.decode(np.arange(64, dtype=np.uint8), format_named(fmt).element)

    def held(halvings: int) -> bool:
        exact = values.astype(np.float64) * 2.0 ** (folding.exponent - halvings)
        return bool((exact.astype(folding.element).astype(np.float64) == exact).all())

    assert all(held(halvings) for halvings in range(folding.most + 1))
    assert not held(folding.most + 1)


@pytest.mark.parametrize("fmt", ["mxfp6_e2m3", "mxfp6_e3m2"])
def test_a_block_of_fp6_has_the_high_byte_of_its_power_of_two_in_fp16(fmt: str) -> None:
    folding = FOLDINGS[fmt]
    for halvings in range(folding.most + 1):
        high = np.uint16(folding.first + folding.step * halvings) << np.uint16(8)
        assert float(high.view(np.float16)) == 2.0 ** (folding.most - halvings)


@pytest.mark.parametrize("fmt", FORMATS)
def test_whole_tiles_take_no_more_bytes_than_the_format_and_a_factor_a_row(fmt: str) -> None:
    q = foldable(128, 8, 0, fmt)
    folded = fold_weights(q)
    assert folded.tiles.nbytes == q.spec.storage_bytes(128, 256)
    assert folded.factors.nbytes == 4 * 128


@pytest.mark.parametrize("fmt", FORMATS)
def test_is_a_pytree_that_passes_through_jit(fmt: str) -> None:
    folded = fold_weights(foldable(64, 4, 0, fmt))
    same = jax.jit(lambda x: x)(folded)
    assert (same.format, same.shape) == (fmt, (64, 128))
    np.testing.assert_array_equal(same.tiles, folded.tiles)
    np.testing.assert_array_equal(same.factors, folded.factors)


def spread(highest: int, lowest: int, fmt: str = "mxfp4") -> QuantizedArray:
    """Three rows of which the second has blocks of two such scale codes, and a third block of zeros."""
    codes, scales = np.full((3, 96), 2), np.full((3, 3), 127)
    codes[1, 64:] = 1 << format_named(fmt).element.bits - 1
    scales[1] = highest, lowest, 0
    return weights(codes, scales, fmt)


@pytest.mark.parametrize(
    ("q", "between", "rule"),
    [
        (spread(140, 113), ("2^13", "2^-14"), r"scales are more than 2\^26 apart"),
        (spread(200, 0xFF), ("2^128", "2^73"), "a scale that is NaN"),
        (spread(13, 13), ("2^-114", "2^-114"), r"has scales below 2\^-113"),
        (spread(140, 128, "mxfp6_e2m3"), ("2^13", "2^1"), r"scales are more than 2\^11 apart"),
        (spread(140, 124, "mxfp6_e3m2"), ("2^13", "2^-3"), r"scales are more than 2\^15 apart"),
        (spread(200, 0xFF, "mxfp6_e2m3"), ("2^128", "2^73"), "a scale that is NaN"),
        (spread(5, 5, "mxfp6_e2m3"), ("2^-122", "2^-122"), r"has scales below 2\^-121"),
        (spread(3, 3, "mxfp6_e3m2"), ("2^-124", "2^-124"), r"has scales below 2\^-123"),
    ],
)
def test_a_row_that_cannot_be_folded_is_refused_and_named(
    q: QuantizedArray, between: tuple[str, str], rule: str
) -> None:
    with pytest.raises(
        UnsupportedError, match=rf"{rule}.*such rows: 1.*shuffle_weights.*hopper_wgmma_w{q.spec.element.bits}a8"
    ) as refusal:
        fold_weights(q)
    assert refusal.value.values == {"row": 1, "highest": between[0], "lowest": between[1]}
    # Traced values cannot be looked at: the row becomes NaN.
    factors = np.asarray(jax.jit(fold_weights)(q).factors)
    np.testing.assert_array_equal(np.isnan(factors), [False, True, False])


def test_the_widest_spread_and_the_lowest_scale_are_folded() -> None:
    for q in (
        *(spread(140, 114), spread(14, 14), spread(0xFE, 0xFE)),
        *(spread(140, 129, "mxfp6_e2m3"), spread(6, 6, "mxfp6_e2m3"), spread(0xFE, 0xFE, "mxfp6_e2m3")),
        *(spread(140, 125, "mxfp6_e3m2"), spread(4, 4, "mxfp6_e3m2"), spread(0xFE, 0xFE, "mxfp6_e3m2")),
    ):
        np.testing.assert_array_equal(reference.dequantize(unfold_weights(fold_weights(q))), reference.dequantize(q))


@pytest.mark.parametrize(
    ("fmt", "why"), [("nvfp4", "no powers of two"), ("mxfp8_e4m3", "is not one of mxfp4, mxfp6_e2m3, mxfp6_e3m2")]
)
def test_other_formats_are_refused_with_the_reason(fmt: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why) as refusal:
        fold_weights(narrowgemm.quantize(np.ones((64, 128), np.float32), fmt))
    assert refusal.value.values == {"format": fmt}


def test_leaves_that_do_not_fit_are_refused() -> None:
    tiles, factors = jnp.zeros((1, 1, 17, 64), jnp.uint32), jnp.ones(64, jnp.float32)
    FoldedWeights(tiles, factors, (64, 128))
    with pytest.raises(ValueError, match=r"tiles are \(1, 1, 16, 64\) of uint32, not \(1, 1, 17, 64\)"):
        FoldedWeights(tiles[:, :, 1:], factors, (64, 128))
    with pytest.raises(ValueError, match=r"factors are \(64,\) of float32, not \(63,\)"):
        FoldedWeights(tiles, factors, (63, 128))
    with pytest.raises(ValueError, match=r"tiles are \(1, 1, 17, 64\) of uint32, not \(1, 1, 25, 64\)"):
        FoldedWeights(tiles, factors, (64, 128), "mxfp6_e2m3")
    with pytest.raises(ValueError, match="unknown format 'mxfp8_e4m3'"):
        FoldedWeights(tiles, factors, (64, 128), "mxfp8_e4m3")
    with pytest.raises(ValueError, match=r"tiles are 1, not \(1, 1, 17, 64\)"):
        FoldedWeights(1, factors, (64, 128))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k=100 is not a multiple of the block of 32"):
        FoldedWeights(tiles, factors, (64, 100))


def test_a_stack_goes_through_vmap_alone() -> None:
    q = foldable(64, 4, 0)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), q)
    folded = jax.vmap(fold_weights)(stack)
    np.testing.assert_array_equal(folded.tiles[1], fold_weights(q).tiles)
    np.testing.assert_array_equal(jax.vmap(unfold_weights)(folded).codes, stack.codes)
    for call in (lambda: fold_weights(stack), lambda: jax.jit(fold_weights)(stack), lambda: unfold_weights(folded)):
        with pytest.raises(ValueError, match=r"a stack goes through jax\.vmap"):
            call()


def test_what_is_traced_in_part_is_folded_unseen_and_what_is_known_under_a_trace_is_looked_at() -> None:
    q, bad = foldable(64, 4, 0), spread(140, 113)
    partly = jax.jit(lambda codes: fold_weights(QuantizedArray(codes, q.scales, None, q.format, q.shape)))(q.codes)
    for folded in (partly, jax.jit(lambda: fold_weights(q))()):
        np.testing.assert_array_equal(folded.tiles, fold_weights(q).tiles)
    with pytest.raises(UnsupportedError, match="are more than"):
        jax.jit(lambda: fold_weights(bad))()


def test_a_row_that_became_nan_never_becomes_numbers_again() -> None:
    values = reference.dequantize(unfold_weights(jax.jit(fold_weights)(spread(140, 113))))
    np.testing.assert_array_equal(np.isnan(values).all(axis=1), [False, True, False])
    assert not np.isnan(values[[0, 2]]).any()
