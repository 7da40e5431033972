"""Folded FP6 weights to the registers of a wgmma, by products in FP16. The same text runs in a kernel and under NumPy.

`narrowgemm.formats.fold_words` says where the bits come from. FP16 has five bits of exponent, and subnormals: with an
FP6 code's bits at the right place in it, zeros and subnormals included, it reads the code times one power of two. Two
such numbers are multiplied at once by the block's power of two, and the products' bits are FP8 numbers':

  E3M2  an FP16 number's high byte is E5M2, and its low byte is dropped.
  E2M3  an FP16 number below 2 has E4M3's bits in its bits 13 to 7, subnormals included: they read as 2^8 times as much.
        Its sign is put in afterwards.

  code        bits      FP16 number              reads as        times 2^3        bits of FP8   read as
  E3M2 28     0 111 11  0 00111 11 00000000      28 · 2^-12      0.0546875        0 01010 11    28 · 2^-9
  E3M2 1/16   0 000 01  0 00000 01 00000000      2^-4 · 2^-12    2^-13            0 00010 00    2^-4 · 2^-9
  E2M3 7.5    0 11 111  0 00011 111 0000000      7.5 · 2^-14     0.003662109375   0 0110 111    7.5 · 2^-3
  E2M3 1/8    0 00 001  0 00000 001 0000000      2^-3 · 2^-14    2^-14            0 0001 000    2^-3 · 2^-3

E2M3's powers of two are exact, and so are its products. E3M2's have another block's byte, at most 0x78, in the bits
below: they are too large by less than an eighth, and so are the products, which then still have the high byte of the
exact ones, for E5M2's next number is larger by a seventh or more.

Instructions for four weights: E3M2 6, E2M3 8; for 16, which has four in bits that three words leave, 4 more; for 64 of
two rows, 2 for E3M2's powers of two and 6 for E2M3's. Of all these, 64 for E3M2 and 80 for E2M3 are of the pipe of
logic, right shifts and permutations, which starts one of a warp every second cycle; left shifts are multiplications.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from narrowgemm.gemm._words import WordOperations


@dataclass(frozen=True)
class Halves:
    """Operations on 32-bit words that widening by FP16 takes.

    permute:       (low, high, selectors): four bytes of the eight of low and high, chosen by four nibbles below 8.
    multiply_f16:  (pair, word, half): FP16 products of both of a pair with the low (0) or high (1) half of a word,
                   rounded to nearest, subnormals kept.
    twice_and:     (word, addend): 2 · word + addend, its lowest 32 bits.
    exclusive:     (left, right): exclusive or.
    """

    permute: Callable[[Any, Any, Any], Any]
    multiply_f16: Callable[[Any, Any, int], Any]
    twice_and: Callable[[Any, Any], Any]
    exclusive: Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Group:
    """Words that have four codes' bits in place, and other groups' elsewhere.

    odd, even: where FP16 has them, codes of bytes 1 and 3, and of 0 and 2. E3M2's with their signs.
    signs:     E2M3's, a bit below FP8's places.
    """

    odd: Any
    even: Any
    signs: Any


@dataclass(frozen=True)
class Factor:
    """A block's power of two: a half, 0 or 1, of a word."""

    word: Any
    half: int


def factors_of(scales: Any, fmt: str, do: WordOperations) -> list[Factor]:
    """The powers of two of a row's four blocks, from the word of their high bytes."""
    words = [do.up(scales, 8), scales]
    if fmt == "mxfp6_e2m3":
        words = [do.both(word, do.constant(0xFF00FF00)) for word in words]
    return [Factor(words[block % 2], block // 2) for block in range(4)]


def groups_of(words: list[Any], fmt: str, do: WordOperations, halves: Halves) -> list[Group]:
    """The four groups of three words."""
    return (_groups_e3m2 if fmt == "mxfp6_e3m2" else _groups_e2m3)(words, do, halves)


def _groups_e3m2(words: list[Any], do: WordOperations, halves: Halves) -> list[Group]:
    last = halves.exclusive(_rotated(words[0], 30, do), do.down(words[1], 2))
    last = halves.exclusive(last, do.down(words[2], 4))
    return [Group(word, do.up(word, 8), None) for word in (*words, last)]


def _groups_e2m3(words: list[Any], do: WordOperations, halves: Halves) -> list[Group]:
    last = Group(
        odd=halves.exclusive(do.down(words[0], 5), do.down(words[1], 4)),
        even=halves.exclusive(do.up(words[1], 4), _rotated(words[2], 5, do)),
        signs=do.up(words[0], 1),
    )
    return [*(Group(word, do.up(word, count), word) for word, count in zip(words, (7, 7, 6), strict=True)), last]


def widen(group: Group, factor: Factor, fmt: str, do: WordOperations, halves: Halves) -> Any:
    """The register of four FP8 bytes that a group's four codes become, of blocks with that factor."""
    return (_widen_e3m2 if fmt == "mxfp6_e3m2" else _widen_e2m3)(group, factor, do, halves)


def _widen_e3m2(group: Group, factor: Factor, do: WordOperations, halves: Halves) -> Any:
    odd, even = _products(group, factor, 0x9F009F00, do, halves)
    return halves.permute(even, odd, do.constant(0x7351))


def _widen_e2m3(group: Group, factor: Factor, do: WordOperations, halves: Halves) -> Any:
    odd, even = _products(group, factor, 0x0F800F80, do, halves)
    signed = do.either(odd, do.both(group.signs, do.constant(0x40404040)))
    return halves.twice_and(signed, do.down(even, 7))


def _products(group: Group, factor: Factor, mask: int, do: WordOperations, halves: Halves) -> tuple[Any, Any]:
    odd, even = (do.both(word, do.constant(mask)) for word in (group.odd, group.even))
    return (
        halves.multiply_f16(odd, factor.word, factor.half),
        halves.multiply_f16(even, factor.word, factor.half),
    )


def fragments(codes: list[Any], scales: list[Any], fmt: str, do: WordOperations, halves: Halves) -> Iterator[list[Any]]:
    """An array 64×128 of FP8 in the order of wgmma's fragments, from a thread's words: four registers a block of K.

    codes:  words 3b + j of block b.
    scales: a word of each of the thread's two rows.
    """
    factors = [factors_of(scales[row], fmt, do) for row in range(2)]
    for block in range(len(codes) // 3):
        groups = groups_of(codes[3 * block : 3 * block + 3], fmt, do, halves)
        yield [widen(groups[2 * row + f], factors[row][block], fmt, do, halves) for f in range(2) for row in range(2)]


def _rotated(word: Any, count: int, do: WordOperations) -> Any:
    """The word rotated to the right."""
    return do.either(do.down(word, count), do.up(word, 32 - count))
