"""Folded FP4 weights to the registers of a wgmma, by looking up bytes. The same text runs in a kernel and under NumPy.

`narrowgemm.formats.fold_words` says where the bits come from. For a row and a block of K, two words hold the eight E5M2
codes of the magnitudes; a byte permutation then looks up four weights at once, whose selectors are the magnitudes'
numbers as they lie in a word. Instructions for the 8 weights of a word: one mask, one shift, two permutations, two that
put signs in (a mask and an OR of three inputs are one), and one that fetches the upper selectors; and three for the two
words of a table. Masks, permutations and shifts to the right share a pipe, which is the one that is full. So the upper
selectors come by a product of FP16; a shift to the left is a product of integers as it is.

Example, a block that subtracts 4·2 = 8, and a word 0x00002B45, so four weights: nibbles 5, 4, B, 2. The table is
0x6A686400 and 0x72706E6C. Masked by 0x7777 the selectors are 5, 4, 3, 2: bytes 6E, 6C, 6A, 68, so 0x686A6C6E. The one
sign, bit 11, is that of the second weight of f = 1, whose word is looked up next.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from narrowgemm.formats.fold import TABLE
from narrowgemm.gemm._words import WordOperations

_ALL_ONES = 0xFFFFFFFF
_MAGNITUDES, _SIGNS = 0x77777777, 0x80808080


@dataclass(frozen=True)
class LookUps:
    """Operations on 32-bit words that looking up takes.

    permute:      (low, high, selectors): four bytes of the eight of low and high, chosen by the lowest four nibbles of
                  the selectors, which are below 8.
    multiply_add: (word, factor, addend): word · factor + addend, its lowest 32 bits; the last two are numbers.
    upper:        (word): its upper half, which is a finite number of FP16, in both halves.
    """

    permute: Callable[[Any, Any, Any], Any]
    multiply_add: Callable[[Any, int, int], Any]
    upper: Callable[[Any], Any]


def table_of(scales: Any, block: int, do: WordOperations, look_ups: LookUps) -> tuple[Any, Any]:
    """The table of a row's block number `block` of four, from the word of what they subtract.

    The byte is taken from all four bytes of a word of the table at once; none borrows, and zero's byte is spared.
    """
    # The byte, and three zeros: selectors from 4 on are bytes of the second word.
    subtracted = look_ups.permute(scales, do.constant(0), do.constant(0x4440 | block))
    low, high = TABLE
    return (
        look_ups.multiply_add(subtracted, -0x01010100 & _ALL_ONES, low),
        look_ups.multiply_add(subtracted, -0x01010101 & _ALL_ONES, high),
    )


def widen(word: Any, table: tuple[Any, Any], do: WordOperations, look_ups: LookUps) -> tuple[Any, Any]:
    """The two registers of four E5M2 bytes that a word of eight weights of one row and block becomes: f = 0 and 1.

    Selectors are at most 0x7777 a half, whose exponent as an FP16 number is 29: finite, as `upper` needs it.
    """
    selectors = do.both(word, do.constant(_MAGNITUDES))
    first = look_ups.permute(*table, selectors)
    second = look_ups.permute(*table, look_ups.upper(selectors))
    signs = do.constant(_SIGNS)
    return do.either(first, do.both(word, signs)), do.either(second, do.both(do.up(word, 4), signs))


def fragments(codes: list[Any], scales: list[Any], do: WordOperations, look_ups: LookUps) -> Iterator[list[Any]]:
    """An array 64×128 of E5M2 in the order of wgmma's fragments, from a thread's words: four registers a block of K.

    codes:  words 2b + h of block b and of the first (h = 0) or second of the thread's rows.
    scales: a word of each of the two rows.
    """
    for block in range(len(codes) // 2):
        halves = [
            widen(codes[2 * block + row], table_of(scales[row], block, do, look_ups), do, look_ups) for row in range(2)
        ]
        yield [halves[row][f] for f in range(2) for row in range(2)]
