"""Folded FP6 weights, widened under NumPy: every code at every distance, fragments, the table, operations."""

from typing import Any

import numpy as np
import pytest
from tests.gemm.test_weight_widening import QUAD, ROW, THREAD, WORDS

import narrowgemm
from narrowgemm.formats import reference
from narrowgemm.formats.fold import FOLDINGS, fold_weights
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm._folded_fp6_widening import Halves, factor_of, fragments, groups_of, widen
from narrowgemm.gemm._words import WordOperations

FORMATS = ("mxfp6_e2m3", "mxfp6_e3m2")


def _multiply_f16(word: Any, factors: Any, half: int) -> Any:
    """FP32 holds the product of two FP16, which NumPy rounds to nearest, subnormals kept."""
    numbers, powers = (
        np.asarray(given, np.uint32)[..., None].view(np.float16).astype(np.float32) for given in (word, factors)
    )
    return (numbers * powers[..., half : half + 1]).astype(np.float16).view(np.uint32)[..., 0]


def _down_and(word: Any, count: int, addend: Any) -> Any:
    """PTX ISA, `mad.hi`: the upper half of the product with 2^(32 − count), and the addend."""
    product = np.asarray(word, np.uint64) << np.uint64(32 - count)
    return ((product >> np.uint64(32)) + np.asarray(addend, np.uint64)).astype(np.uint32)


def _select(mask: Any, word: Any, other: Any) -> Any:
    """PTX ISA, `lop3` with the table 0xCA, which is f(0xF0, 0xCC, 0xAA) of what is computed here."""
    assert (0xF0 & 0xCC | ~0xF0 & 0xAA) == 0xCA
    return (mask & word | ~mask & other).astype(np.uint32)


HALVES = Halves(_multiply_f16, _down_and, _select)


def _high_byte(fmt: str, halvings: int) -> int:
    return FOLDINGS[fmt].first + FOLDINGS[fmt].step * halvings


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_code_in_every_lane_and_at_every_distance_is_widened(fmt: str) -> None:
    """All other bits of a group's word are ones, as another group's may be."""
    folding, codes = FOLDINGS[fmt], np.arange(64, dtype=np.uint32)
    values = reference.decode(codes.astype(np.uint8), format_named(fmt).element).astype(np.float64)
    rotation = np.uint32(fmt == "mxfp6_e2m3")
    for halvings in range(folding.most + 1):
        for block in range(4):
            factor = factor_of(np.uint32(_high_byte(fmt, halvings) << 8 * block), block, WORDS)
            for i in range(4):
                bytes_of = (codes & 31 | codes >> 5 << 7) << 8 * i
                word = bytes_of | np.uint32(0x60606060)
                word = (word >> rotation | word << np.uint32(31) * rotation).astype(np.uint32)
                found = np.asarray(widen(word, factor, fmt, WORDS, HALVES), "<u4")
                lanes = found.view(folding.element).reshape(64, 4).astype(np.float64)
                np.testing.assert_array_equal(lanes[:, i], values * 2.0 ** (folding.exponent - halvings))
                np.testing.assert_array_equal(np.signbit(lanes[:, i]), codes >= 32)
                assert not np.delete(lanes, i, axis=1).any()


@pytest.mark.parametrize(
    ("fmt", "code", "byte"),
    [("mxfp6_e3m2", 0b011111, 0b0_01010_11), ("mxfp6_e3m2", 0b000001, 0b0_00010_00),
     ("mxfp6_e2m3", 0b011111, 0b0_0110_111), ("mxfp6_e2m3", 0b000001, 0b0_0001_000)],
)  # fmt: skip
def test_the_table_of_the_docstring(fmt: str, code: int, byte: int) -> None:
    """A block's 2^3 in FP16 is 0x4800."""
    word = np.uint32(code << 8) >> np.uint32(fmt == "mxfp6_e2m3")
    assert int(widen(word, (np.uint32(0x4800), 0), fmt, WORDS, HALVES)) == byte << 8


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
        registers = fragments(codes, [flat[1536 + 2 * (THREAD // 4) + row] for row in range(2)], fmt, WORDS, HALVES)
        seen = np.full((64, 128), np.nan)
        for index, register in enumerate(registers):
            block, half_k, half_row = index // 4, index // 2 % 2, index % 2
            lanes = register.astype("<u4").view(FOLDINGS[fmt].element).reshape(128, 4).astype(np.float64)
            for i in range(4):
                seen[ROW + 8 * half_row, 32 * block + 16 * half_k + 4 * QUAD + i] = lanes[:, i]
        factors = np.asarray(weights.factors).astype(np.float64)
        np.testing.assert_array_equal(seen * factors[:, None], exact[:, 128 * tile : 128 * tile + 128])


@pytest.mark.parametrize(("fmt", "per_weight"), [("mxfp6_e2m3", 2.5), ("mxfp6_e3m2", 2.1)])
def test_widening_takes_few_operations_a_weight(fmt: str, per_weight: float) -> None:
    """A mask is one operation with the OR of what it leaves, and a rotation one; a doubling is a shift up by one."""
    count = 0

    def counted(*_: Any) -> int:
        nonlocal count
        count += 1
        return 0

    def up(_: Any, shift: int) -> int:
        return 0 if fmt == "mxfp6_e2m3" and shift != 1 else counted()

    do = WordOperations(counted, lambda *_: 0, up, counted, lambda _: 0, counted)
    fragments([0] * 12, [0] * 2, fmt, do, Halves(counted, counted, counted))
    assert count / 64 <= per_weight, count


def test_four_groups_come_out_of_three_words() -> None:
    """Each word's free bits alone decide a third of the fourth group's."""
    free = np.uint32(0x60606060)
    found = [
        int(groups_of([free * np.uint32(i == own) for i in range(3)], 0, WORDS, HALVES)[3]) & 0x9F9F9F9F
        for own in range(3)
    ]
    assert found == [0x81818181, 0x18181818, 0x06060606]
