"""Where the bits of FP4 and FP6 weights lie in 32-bit words, so that a few operations widen many of them. No JAX.

A thread of a wgmma holds 16 weights of a block of 32 along K: 4 registers of 4 E4M3 bytes, or 8 registers of 2 BF16.
Their codes, 2 words of FP4 or 3 of FP6, are not a plain string of bits: each bit waits where the register wants it,
or where one rotation brings it there. A register is the OR of its terms, and a term is a word, rotated left, masked:

  target  element  bits of a lane        what the lane then reads, subnormals and zeros included
  E4M3    E2M1     s..e em..             value × 2^-6
  E4M3    E2M3     s..e emmm             value × 2^-6
  E4M3    E3M2     s.ee emm.             value × 2^-4
  BF16    E2M1     s......e em......     value × 2^-126
  BF16    E2M3     s......e emmm....     value × 2^-126
  BF16    E3M2     s.....ee emm.....     value × 2^-124

Example, E2M1 to E4M3: a byte of the word is s₀ e₁' s' e₁ e₀ m e₀' m' (one code with a prime, one without). The first
register is the word masked with s..ee m.. = 0x9C; the second is (word << 2) & 0x8C, which is s' , e₀', m', and
(word >> 2) & 0x10, which is e₁'. Five operations for eight weights.
"""

from dataclasses import dataclass
from typing import Literal

#: What the weights are widened to, for activations of as many bits.
Target = Literal["e4m3", "bf16"]
TARGETS: dict[int, Target] = {8: "e4m3", 16: "bf16"}

#: Weights of a thread in a block of 32 along K.
GROUP = 16


@dataclass(frozen=True)
class Term:
    """Word number `word` of a group, rotated left by `rotation`, of which the bits of `mask` are taken."""

    word: int
    rotation: int
    mask: int


@dataclass(frozen=True)
class Placement:
    """How a group of 16 codes lies in its words.

    lane_bits:  width of a widened weight.
    code_bits:  for each bit of a code, from the lowest, the bit of the lane that it becomes.
    registers:  for each register that holds the widened group, its terms.
    exponent:   a lane reads value × 2^-exponent.
    """

    lane_bits: int
    code_bits: tuple[int, ...]
    registers: tuple[tuple[Term, ...], ...]
    exponent: int

    @property
    def words(self) -> int:
        """Words of a group."""
        return len(self.code_bits) * GROUP // 32

    def source(self, code: int, bit: int) -> tuple[int, int]:
        """Word, and bit of it, where bit `bit` of code number `code` of the group lies."""
        lanes = 32 // self.lane_bits
        position = code % lanes * self.lane_bits + self.code_bits[bit]
        (term,) = (term for term in self.registers[code // lanes] if term.mask >> position & 1)
        return term.word, (position - term.rotation) % 32


def _registers(lane_bits: int, *registers: tuple[tuple[int, int, int], ...]) -> tuple[tuple[Term, ...], ...]:
    """Terms of (word, rotation left, or right if negative, mask of a lane)."""
    every_lane = sum(1 << shift for shift in range(0, 32, lane_bits))
    return tuple(tuple(Term(word, turn % 32, mask * every_lane) for word, turn, mask in terms) for terms in registers)


PLACEMENTS: dict[tuple[str, Target], Placement] = {
    ("e2m1", "e4m3"): Placement(
        8,
        (2, 3, 4, 7),
        _registers(8, *(t for w in (0, 1) for t in (((w, 0, 0x9C),), ((w, 2, 0x8C), (w, -2, 0x10))))),
        6,
    ),
    ("e2m3", "e4m3"): Placement(
        8,
        (0, 1, 2, 3, 4, 7),
        _registers(8, *(((w, 0, 0x9F),) for w in range(3)), ((0, -2, 0x18), (1, -4, 0x06), (2, 2, 0x81))),
        6,
    ),
    ("e3m2", "e4m3"): Placement(
        8,
        (1, 2, 3, 4, 5, 7),
        _registers(8, *(((w, 0, 0xBE),) for w in range(3)), ((0, 1, 0x82), (1, 5, 0x28), (2, 4, 0x14))),
        4,
    ),
    ("e2m1", "bf16"): Placement(
        16,
        (6, 7, 8, 15),
        _registers(
            16,
            *(
                terms
                for w in (0, 1)
                for terms in (
                    ((w, 0, 0x81C0),),
                    ((w, 3, 0x81C0),),
                    ((w, 6, 0x81C0),),
                    ((w, 4, 0x8000), (w, -6, 0x0180), (w, -4, 0x0040)),
                )
            ),
        ),
        126,
    ),
    ("e2m3", "bf16"): Placement(
        16,
        (4, 5, 6, 7, 8, 15),
        _registers(
            16,
            *(terms for w in range(3) for terms in (((w, 0, 0x81F0),), ((w, 15, 0x8000), (w, -6, 0x01F0)))),
            ((0, 6, 0x8180), (1, 3, 0x0070)),
            ((2, 6, 0x8180), (0, 3, 0x0040), (2, 2, 0x0020), (1, -5, 0x0010)),
        ),
        126,
    ),
    ("e3m2", "bf16"): Placement(
        16,
        (5, 6, 7, 8, 9, 15),
        _registers(
            16,
            *(terms for w in range(3) for terms in (((w, 0, 0x83E0),), ((w, 5, 0x83E0),))),
            ((0, -5, 0x03C0), (1, 1, 0x8000), (1, -6, 0x0020)),
            ((2, -5, 0x03C0), (1, 2, 0x8000), (1, -7, 0x0020)),
        ),
        124,
    ),
}
