"""From FP6 codes, four in three bytes, to E4M3 bytes: exact but for one power of two.

E2M3 is s ee mmm and E3M2 is s eee mm; E4M3 is s eeee mmm. Put each code's sign on bit 7 and its other five bits on the
low exponent bits and the mantissa, and the byte reads, zeros and subnormals included:

  code      bits     value     E4M3 byte   reads as          is the value ×
  E2M3 2.75 0 10 011 2^1·1.375 0 0010 011  2^(2−7)·1.375     2^−6
  E2M3 0.25 0 00 010 2/8       0 0000 010  2^−6·2/8          2^−6
  E3M2 28   0 111 11 2^4·1.75  0 0111 110  2^(7−7)·1.75      2^−4
  E3M2 1/16 0 000 01 2^−2·1/4  0 0000 010  2^−6·2/8          2^−4

Every value of both formats has an E4M3 byte this way, so nothing is rounded; who multiplies undoes the power of two.
"""

from typing import Any

from narrowgemm.gemm._words import WordOperations

#: Element -> how far its five low bits move up, and the power of two that its bytes then lack.
PLACEMENT = {"e2m3": (0, 6), "e3m2": (1, 4)}


def widen(words: tuple[Any, Any, Any], element: str, do: WordOperations) -> list[Any]:
    """The 16 codes of three little-endian words as four words of E4M3 bytes; `element` is "e2m3" or "e3m2"."""
    first, second, third = words
    quads = (
        first,
        do.either(do.down(first, 24), do.up(second, 8)),
        do.either(do.down(second, 16), do.up(third, 16)),
        do.down(third, 8),
    )
    return [_spread(quad, PLACEMENT[element][0], do) for quad in quads]


def _spread(quad: Any, lift: int, do: WordOperations) -> Any:
    """The four codes in the low 24 bits of `quad`, each in its byte as E4M3."""

    def pick(word: Any, mask: int) -> Any:
        return do.both(word, do.constant(mask))

    halves = do.either(pick(quad, 0x00000FFF), pick(do.up(quad, 4), 0x0FFF0000))
    codes = do.either(pick(halves, 0x003F003F), pick(do.up(halves, 2), 0x3F003F00))
    low = pick(codes, 0x1F1F1F1F)
    return do.either(do.up(low, lift) if lift else low, pick(do.up(codes, 2), 0x80808080))
