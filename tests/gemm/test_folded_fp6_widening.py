"""Folded FP6 weights, widened under NumPy: every code at every distance, fragments, the table, operations."""

import itertools
from typing import Any

import numpy as np
import pytest
from tests.gemm.test_hopper_folded import _permute
from tests.gemm.test_weight_widening import QUAD, ROW, THREAD, WORDS

import narrowgemm
from narrowgemm.formats import reference
from narrowgemm.formats.fold import FOLDINGS, fold_weights
from narrowgemm.formats.fold_words import natural, tile_words
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm._folded_fp6_widening import Factor, Group, Halves, factors_of, fragments, groups_of, widen
from narrowgemm.gemm._words import WordOperations

FORMATS = ("mxfp6_e2m3", "mxfp6_e3m2")


def _multiply_f16(pair: Any, word: Any, half: int) -> Any:
    """FP32 holds the product of two FP16, which NumPy rounds to nearest, subnormals kept."""
    left, right = (
        np.asarray(words, np.uint32)[..., None].view(np.float16).astype(np.float32) for words in (pair, word)
    )
    return (left * right[..., half : half + 1]).astype(np.float16).view(np.uint32)[..., 0]


def _twice_and(word: Any, addend: Any) -> Any:
    return ((2 * np.asarray(word, np.uint64) + np.asarray(addend, np.uint64)) & np.uint64(0xFFFFFFFF)).astype("u4")


HALVES = Halves(_permute, _multiply_f16, _twice_and, np.bitwise_xor)


def _high_byte(fmt: str, halvings: int) -> int:
    return FOLDINGS[fmt].first + FOLDINGS[fmt].step * halvings


def _group(codes: Any, i: int, fmt: str) -> Group:
    """Codes as byte i of a group, the others zero; all other bits of its words are ones, as another group's may be."""
    magnitudes, signs = (codes & 31) << 16 * (i // 2), codes >> 5 << 16 * (i // 2)
    if fmt == "mxfp6_e3m2":
        word, other = magnitudes << 8 | signs << 15, np.uint32(0x60FF60FF)
        words = (word | other, other) if i % 2 else (other, word | other)
        return Group(*words, None)
    word, other = magnitudes << 7, np.uint32(0xF07FF07F)
    words = (word | other, other) if i % 2 else (other, word | other)
    return Group(*words, signs << (14 if i % 2 else 6) | np.uint32(0xBFBFBFBF))


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_code_in_every_lane_and_at_every_distance_is_widened(fmt: str) -> None:
    """Beside blocks of zeros' and of every other distance's powers of two."""
    folding, codes = FOLDINGS[fmt], np.arange(64, dtype=np.uint32)[:, None]
    values = reference.decode(codes[:, 0].astype(np.uint8), format_named(fmt).element).astype(np.float64)
    beside = np.array([0, *(_high_byte(fmt, halvings) for halvings in range(folding.most + 1))], np.uint32)
    for halvings in range(folding.most + 1):
        for block in range(4):
            high = np.uint32(_high_byte(fmt, halvings)) << np.uint32(8 * block)
            others = beside * np.uint32(0x01010101 & ~(0xFF << 8 * block))
            factor = factors_of(high | others, fmt, WORDS)[block]
            for i in range(4):
                found = np.asarray(widen(_group(codes, i, fmt), factor, fmt, WORDS, HALVES), "<u4")
                lanes = found.view(folding.element).reshape(64, -1, 4).astype(np.float64)
                exact = np.broadcast_to(values[:, None] * 2.0 ** (folding.exponent - halvings), lanes.shape[:2])
                np.testing.assert_array_equal(lanes[..., i], exact)
                np.testing.assert_array_equal(np.signbit(lanes[..., i]), np.broadcast_to(codes >= 32, lanes.shape[:2]))
                assert not np.delete(lanes, i, axis=2).any()


@pytest.mark.parametrize(
    ("fmt", "code", "byte"),
    [("mxfp6_e3m2", 0b011111, 0b0_01010_11), ("mxfp6_e3m2", 0b000001, 0b0_00010_00),
     ("mxfp6_e2m3", 0b011111, 0b0_0110_111), ("mxfp6_e2m3", 0b000001, 0b0_0001_000)],
)  # fmt: skip
def test_the_table_of_the_docstring(fmt: str, code: int, byte: int) -> None:
    """A block's 2^3 in FP16 is 0x4800."""
    odd = np.uint32(code << 8) >> np.uint32(fmt == "mxfp6_e2m3")
    group, zero = Group(odd, np.uint32(0), np.uint32(0)), np.uint32(0)
    assert int(widen(group, Factor(np.uint32(0x48004800), 1), fmt, WORDS, HALVES)) == byte << 8
    assert not int(widen(group, Factor(zero, 0), fmt, WORDS, HALVES))


@pytest.mark.parametrize("fmt", FORMATS)
def test_fragments_times_their_factors_are_the_weights(fmt: str) -> None:
    """The array that the tensor core sees, by PTX's figures of the fragments."""
    random = np.random.default_rng(0)
    spread = random.integers(0, FOLDINGS[fmt].most - 2, (64, 8))
    values = random.normal(size=(64, 256)) * 2.0 ** np.repeat(spread, 32, axis=1)
    q = narrowgemm.quantize(values.astype(np.float32), fmt)
    weights, exact = fold_weights(q), reference.dequantize(q)
    for tile in range(2):
        flat = np.asarray(weights.tiles)[0, tile].reshape(-1)
        codes = [flat[512 * plane + 4 * THREAD + j] for plane in range(3) for j in range(4)]
        scales = [flat[1536 + 2 * (THREAD // 4) + row] for row in range(2)]
        registers = itertools.chain(*fragments(codes, scales, fmt, WORDS, HALVES))
        seen = np.full((64, 128), np.nan)
        for index, register in enumerate(registers):
            block, half_k, half_row = index // 4, index // 2 % 2, index % 2
            lanes = register.astype("<u4").view(FOLDINGS[fmt].element).reshape(128, 4).astype(np.float64)
            for i in range(4):
                seen[ROW + 8 * half_row, 32 * block + 16 * half_k + 4 * QUAD + i] = lanes[:, i]
        factors = np.asarray(weights.factors).astype(np.float64)
        np.testing.assert_array_equal(seen * factors[:, None], exact[:, 128 * tile : 128 * tile + 128])


@pytest.mark.parametrize(("fmt", "operations"), [("mxfp6_e2m3", 80), ("mxfp6_e3m2", 64)])
def test_widening_takes_few_operations_of_the_pipe_of_logic_and_right_shifts(fmt: str, operations: int) -> None:
    """A mask and the OR or exclusive or beside it are one, and so are two exclusive ors; a rotation is a shift."""
    count = 0

    def counted(*_: Any) -> int:
        nonlocal count
        count += 1
        return 0

    def free(*_: Any) -> int:
        return 0

    do = WordOperations(counted, free, free, counted, free, counted)
    assert len(list(fragments([0] * 12, [0] * 2, fmt, do, Halves(counted, free, free, free)))) == 4
    # Four groups of E3M2 are gathered by two exclusive ors and no mask.
    assert count + (4 if fmt == "mxfp6_e3m2" else 0) == operations


@pytest.mark.parametrize("fmt", FORMATS)
def test_each_bit_of_a_words_of_a_tile_is_one_of_a_code(fmt: str) -> None:
    """Any words whatever are those of some codes, so that no bit is idle, and come back from them."""
    words = np.random.default_rng(0).integers(0, 2**32, (1, 1, 25, 64), dtype=np.uint32)
    codes, scales = natural(words, fmt)
    np.testing.assert_array_equal(np.asarray(tile_words(codes, scales, fmt)).reshape(words.shape), words)


def test_a_group_of_zeros_beside_ones_leaves_all_its_places_zero() -> None:
    """What a word's free bits make of other groups' codes."""
    codes = np.full((64, 128), 63, np.uint8)
    codes[8:16].reshape(8, 4, 2, 16)[:, :, 1] = 0
    for fmt, mask in (("mxfp6_e3m2", 0x9F009F00), ("mxfp6_e2m3", 0x0F800F80)):
        flat = np.asarray(tile_words(codes, np.zeros((64, 4), np.uint8), fmt)).reshape(-1)
        last = groups_of([flat[word] for word in range(3)], fmt, WORDS, HALVES)[3]
        assert not int(last.odd) & mask
        assert not int(last.even) & mask
        assert last.signs is None or not int(last.signs) & 0x40404040
