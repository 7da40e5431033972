"""Bits that change between the codes which one multiplier sees in turn, and orders that change fewer. No JAX.

Where data that toggle fewer bits cost fewer joules, an order of the operands may save some. Two orders are free: one of
K, the same for A and B, leaves every element of C as it is up to rounding, and is made of B alone, off-line; one of the
rows of A and of B permutes rows and columns of C, which costs nothing where the next layer is permuted too.

How the multipliers of a tensor core are wired is not published. Two counts stand for what an order can change:

- along K: an instruction takes 32 bytes of K, so that lane k mod L sees k, then k + L;
- along rows: the same k of two rows that follow each other.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from narrowgemm.formats.reference import unpack
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem

#: k: columns of A and B permuted alike; rows: rows of A and of B permuted, each by itself; sorted: every row of A and
#: of B by value. The last is no permutation of a product, and nobody's gain: it shows what an order of the same values
#: can change at the most, so that an order that saves nothing is told from joules that do not depend on order.
Order = Literal["k", "rows", "sorted"]

#: Bytes of K in one multiply of a tensor core, in every format: wgmma's and tcgen05's.
_INSTRUCTION_K_BYTES = 32


@dataclass(frozen=True)
class Ordered:
    """A distribution whose values are those of `base`, in another order."""

    base: str
    order: Order


#: Name of a distribution -> what it is an order of.
ORDERED = {
    "normal_k_ordered": Ordered("normal", "k"),
    "normal_rows_ordered": Ordered("normal", "rows"),
    "normal_sorted": Ordered("normal", "sorted"),
    "normal_outliers_k_ordered": Ordered("normal_outliers", "k"),
    "normal_outliers_rows_ordered": Ordered("normal_outliers", "rows"),
    "text_k_ordered": Ordered("text", "k"),
    "text_rows_ordered": Ordered("text", "rows"),
}


def lanes(problem: GemmProblem) -> int:
    """Elements of K that one multiply takes: as wide as the wider operand, and FP6 as wide as 8 bits."""
    bits = max(format_named(name).element.bits for name in (problem.a_format, problem.b_format))
    widened = 1 << (bits - 1).bit_length()
    return 8 * _INSTRUCTION_K_BYTES // widened


@dataclass(frozen=True)
class BitToggles:
    """Mean number of bits that change from one code of an operand to the next, along K in one lane, and along rows.

    None where there is no next one.
    """

    along_k: float | None
    along_rows: float | None


def toggles_of(codes: NDArray[np.generic], format_name: str, k: int, lanes: int) -> BitToggles:
    """Toggles of an operand (rows, k) of such a format, its codes as `QuantizedArray` has them; scales do not count."""
    spec = format_named(format_name)
    if spec.is_packed:
        whole = unpack(codes.astype(np.uint8), spec.element.bits, k)
    else:
        whole = codes.view(np.dtype(f"u{codes.dtype.itemsize}"))
    return BitToggles(_changes(whole[:, :-lanes], whole[:, lanes:]), _changes(whole[:-1], whole[1:]))


def _changes(before: NDArray[np.generic], after: NDArray[np.generic]) -> float | None:
    return float(np.mean(np.bitwise_count(np.bitwise_xor(before, after)))) if before.size else None
