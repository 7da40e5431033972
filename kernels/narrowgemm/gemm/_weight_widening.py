"""FP4 and FP6 weights to the registers of a wgmma, and their block scales to FP32 and BF16, by operations on words.

The same text runs in a kernel and under NumPy. `narrowgemm.formats.weight_bits` says where the bits come from.

Where the scales go, so that nothing is rounded:
  BF16 activations  into the weights. A weight has at most 4 significant bits and a scale 4 (E4M3) or 1 (E8M0), BF16 has
                    8, and the exponents of FP32: a product is exact wherever FP32 holds it, and infinite elsewhere.
  FP8 activations   nowhere: E4M3 cannot hold weight × scale, whose exponents may spread over 2^254. The sum of each
                    block is multiplied in FP32, outside the tensor core.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowgemm.formats.spec import E8M0, Format
from narrowgemm.formats.weight_bits import Placement, Term
from narrowgemm.gemm._words import FloatOperations, WordOperations

_ALL_ONES = 0xFFFFFFFF


def widen(words: list[Any], placement: Placement, do: WordOperations) -> list[Any]:
    """The registers of a group of 16 weights from its words: E4M3 bytes or BF16 halves, short of 2^exponent."""
    return [_register(words, terms, do) for terms in placement.registers]


def _register(words: list[Any], terms: tuple[Term, ...], do: WordOperations) -> Any:
    register = None
    for term in terms:
        part = do.both(_turned(words[term.word], term, do), do.constant(term.mask))
        register = part if register is None else do.either(register, part)
    return register


def _turned(word: Any, term: Term, do: WordOperations) -> Any:
    """The word rotated; a plain shift where the mask drops what a rotation would bring round."""
    up, down = term.rotation, (32 - term.rotation) % 32
    if up == 0:
        return word
    if term.mask & (_ALL_ONES >> down) == 0:
        return do.up(word, up)
    if term.mask & ~(_ALL_ONES >> down) == 0:
        return do.down(word, down)
    return do.either(do.up(word, up), do.down(word, down))


@dataclass(frozen=True)
class Fragments:
    """What a thread holds of a tile 64×128.

    arrays:     registers of each array, in the order of wgmma's fragments.
    row_scales: for each block of K, FP32 words: the scales of the thread's two rows. Empty where the arrays have them.
    """

    arrays: list[list[Any]]
    row_scales: list[list[Any]]


def fragments_fp8(
    code_words: list[Any], scale_words: list[Any], ops: tuple[Any, Any], spec: Format, placement: Placement
) -> Fragments:
    """An array 64×32 of E4M3 for each block of scales, and its scales.

    Blocks of 16 share a fragment of 32: each has it once, with zeros in place of the other's weights.
    """
    do, floats = ops
    scales = [[scale_f32(code, spec, do, floats) for code in row] for row in _scale_codes(scale_words, do)]
    arrays = []
    for group in _groups(code_words, placement):
        registers = widen(group, placement, do)
        if spec.block == 32:
            arrays.append(registers)
        else:
            zeros = [do.constant(0)] * 2
            arrays += [registers[:2] + zeros, zeros + registers[2:]]
    return Fragments(arrays, [list(rows) for rows in zip(*scales, strict=True)])


def fragments_bf16(
    code_words: list[Any], scale_words: list[Any], ops: tuple[Any, Any], spec: Format, placement: Placement
) -> Fragments:
    """Two arrays 64×64 of BF16, scaled.

    Two products, for one factor would be out of range: first by 2^exponent, so that the weight is what it says, then by
    the block's scale.
    """
    do, floats = ops
    unit = do.constant(_both_halves(placement.exponent))
    scales = [[_as_bf16_pair(scale_f32(code, spec, do, floats), do) for code in row]
              for row in _scale_codes(scale_words, do)]  # fmt: skip
    registers = []
    for number, group in enumerate(_groups(code_words, placement)):
        for index, register in enumerate(widen(group, placement, do)):
            block = number if spec.block == 32 else 2 * number + index // 4
            value = floats.multiply_bf16(register, unit)
            registers.append(floats.multiply_bf16(value, scales[index % 2][block]))
    half = len(registers) // 2
    return Fragments([registers[:half], registers[half:]], [])


def scale_f32(code: Any, spec: Format, do: WordOperations, floats: FloatOperations) -> Any:
    """A block scale, its code in the low byte of a word, as FP32: exact, NaN and FP32 subnormals included."""
    if spec.scale_dtype == E8M0:
        # The lowest code, 2^-127, has its bit in the mantissa; the highest is NaN, not infinity.
        outermost = do.either(do.equal(code, 0), do.equal(code, 0xFF))
        return do.either(do.up(code, 23), do.both(outermost, do.constant(0x00400000)))
    magnitude = do.both(code, do.constant(0x7F))
    nan = do.both(do.equal(magnitude, 0x7F), do.constant(0x7FC00000))
    sign = do.up(do.both(code, do.constant(0x80)), 24)
    # E4M3's exponent field in the place of FP32's: the biases differ by 120.
    return floats.scale_f32(do.either(do.either(do.up(magnitude, 20), nan), sign), 2.0**120)


def _groups(words: list[Any], placement: Placement) -> list[list[Any]]:
    return [words[first : first + placement.words] for first in range(0, len(words), placement.words)]


def _scale_codes(words: list[Any], do: WordOperations) -> list[list[Any]]:
    """Codes of the scales along K, of a thread's two rows."""
    half = len(words) // 2
    return [[_byte(word, i, do) for word in row for i in range(4)] for row in (words[:half], words[half:])]


def _byte(word: Any, number: int, do: WordOperations) -> Any:
    shifted = do.down(word, 8 * number) if number else word
    return shifted if number == 3 else do.both(shifted, do.constant(0xFF))


def _as_bf16_pair(f32: Any, do: WordOperations) -> Any:
    """An FP32 word that BF16 holds exactly, as two equal halves."""
    return do.either(do.both(f32, do.constant(0xFFFF0000)), do.down(f32, 16))


def _both_halves(exponent: int) -> int:
    """2^exponent as two BF16."""
    return int(np.float32(2.0**exponent).view(np.uint32)) >> 16 | int(np.float32(2.0**exponent).view(np.uint32))
