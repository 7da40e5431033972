"""Folded FP6 weights to the registers of a wgmma, by products in FP16. The same text runs in a kernel and under NumPy.

`narrowgemm.formats.fold_words` says where the bits come from. FP16 has five bits of exponent, and subnormals: with an
FP6 code's bits at the right place in it, zeros and subnormals included, it reads the code times one power of two. Two
such numbers are multiplied at once by the block's power of two, exactly, and their bits are an FP8 number's:

  E3M2  an FP16 number's high byte is E5M2, and its low byte is zero here.
  E2M3  an FP16 number below 2 has E4M3's bits in its bits 13 to 7, subnormals included: they read as 2^8 times as much.
        Its sign is put in afterwards.

  code        bits      FP16 number              reads as        times 2^3        bits of FP8   read as
  E3M2 28     0 111 11  0 00111 11 00000000      28 · 2^-12      0.0546875        0 01010 11    28 · 2^-9
  E3M2 1/16   0 000 01  0 00000 01 00000000      2^-4 · 2^-12    2^-13            0 00010 00    2^-4 · 2^-9
  E2M3 7.5    0 11 111  0 00011 111 0000000      7.5 · 2^-14     0.003662109375   0 0110 111    7.5 · 2^-3
  E2M3 1/8    0 00 001  0 00000 001 0000000      2^-3 · 2^-14    2^-14            0 0001 000    2^-3 · 2^-3

Instructions for four weights: E3M2 6, E2M3 8; and 5 more for 16, whose last four are gathered from three words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from narrowgemm.formats.fold_words import FREE, ROTATION
from narrowgemm.gemm._words import WordOperations


@dataclass(frozen=True)
class Halves:
    """Operations on 32-bit words that widening by FP16 takes.

    multiply_f16: (word, factors, half): the two FP16 numbers of a word, each times that half of factors (1: the upper),
                  rounded to nearest, subnormals kept.
    down_and:     (word, count, addend): the word shifted down by a constant, plus addend.
    select:       (mask, word, other): bits of the word where the mask has ones, and elsewhere of the other.
    """

    multiply_f16: Callable[[Any, Any, int], Any]
    down_and: Callable[[Any, int, Any], Any]
    select: Callable[[Any, Any, Any], Any]


def factor_of(scales: Any, block: int, do: WordOperations) -> tuple[Any, int]:
    """A row's power of two for its block number `block` of four: a word, of their high bytes' word, and which half."""
    high_bytes = scales if block % 2 else do.up(scales, 8)
    return do.both(high_bytes, do.constant(0xFF00FF00)), block // 2


def groups_of(words: list[Any], rotation: int, do: WordOperations, halves: Halves) -> list[Any]:
    """The four groups of three words, each a word of four codes; other bits of it are the other groups'."""
    free = FREE >> rotation
    last = halves.select(do.constant(free >> 2), do.down(words[1], 2), _rotated(words[0], 30, do))
    return [*words, halves.select(do.constant(free >> 4), do.down(words[2], 4), last)]


def widen(group: Any, factor: tuple[Any, int], fmt: str, do: WordOperations, halves: Halves) -> Any:
    """The register of four FP8 bytes that a group's four codes become, of blocks with that factor."""
    return (_widen_e3m2 if fmt == "mxfp6_e3m2" else _widen_e2m3)(group, factor, do, halves)


def _widen_e3m2(group: Any, factor: tuple[Any, int], do: WordOperations, halves: Halves) -> Any:
    mask = do.constant(0x9F009F00)
    odd = halves.multiply_f16(do.both(group, mask), *factor)
    even = halves.multiply_f16(do.both(do.up(group, 8), mask), *factor)
    return halves.down_and(even, 8, odd)


def _widen_e2m3(group: Any, factor: tuple[Any, int], do: WordOperations, halves: Halves) -> Any:
    mask = do.constant(0x0F800F80)
    odd = halves.multiply_f16(do.both(group, mask), *factor)
    even = halves.multiply_f16(do.both(_rotated(group, 24, do), mask), *factor)
    signed = do.either(odd, do.both(group, do.constant(0x40404040)))
    return halves.down_and(even, 7, do.up(signed, 1))


def fragments(codes: list[Any], scales: list[Any], fmt: str, do: WordOperations, halves: Halves) -> list[Any]:
    """The 16 registers of an array 64×128 of FP8, in the order of wgmma's fragments, from a thread's words.

    codes:  words 3b + j of block b.
    scales: a word of each of the thread's two rows.
    """
    return [
        register for block in range(len(codes) // 3) for register in fragments_of(codes, scales, block, fmt, do, halves)
    ]


def fragments_of(
    codes: list[Any], scales: list[Any], block: int, fmt: str, do: WordOperations, halves: Halves
) -> list[Any]:
    """The four of block number `block`, from all of a thread's words."""
    groups = groups_of(codes[3 * block : 3 * block + 3], ROTATION[fmt], do, halves)
    factors = [factor_of(scales[row], block, do) for row in range(2)]
    return [widen(groups[2 * row + f], factors[row], fmt, do, halves) for f in range(2) for row in range(2)]


def _rotated(word: Any, count: int, do: WordOperations) -> Any:
    """The word rotated to the right."""
    return do.either(do.down(word, count), do.up(word, 32 - count))
