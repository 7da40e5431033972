"""Register code of the Hopper kernels with folded weights, in Mosaic GPU's own terms: what Pallas has no word for."""

import functools
from typing import Any

from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.formats.fold import FOLDINGS
from narrowgemm.formats.fold_words import TILE_K, planes_of
from narrowgemm.gemm import _folded_fp6_widening, _folded_widening
from narrowgemm.gemm._folded_fp6_widening import Halves
from narrowgemm.gemm._folded_widening import LookUps
from narrowgemm.gemm._mosaic_gpu import WORDS
from narrowgemm.gemm._weight_widening import Fragments
from narrowgemm.gemm._wgmma_weights import load_weights


def _permute(low: Any, high: Any, selectors: Any) -> Any:
    word = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(word, [low, high, selectors], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", has_side_effects=False)


def _multiply_add(word: Any, factor: int, addend: int) -> Any:
    product = arith.muli(word, mgpu_utils.c(factor, ir.IntegerType.get_signless(32)))
    return arith.addi(product, WORDS.constant(addend))


def _multiply_f16(left: Any, right: Any) -> Any:
    """In PTX, for MLIR would be free to go through FP32, or to flush subnormals."""
    word = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(word, [left, right], "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", has_side_effects=False)


def _twice_and(word: Any, addend: Any) -> Any:
    return arith.addi(WORDS.up(word, 1), addend)


#: How a kernel looks up bytes, and how it multiplies in FP16.
LOOK_UPS = LookUps(_permute, _multiply_add)
HALVES = Halves(_permute, _multiply_f16, _twice_and)


def load_folded(tile: Any, fmt: str) -> Any:
    """A tile of folded weights from shared memory, widened: wgmma's left operand (64, 128)."""
    (array,), _ = load_weights(
        tile,
        planes=planes_of(fmt),
        scale_words=2,
        columns=TILE_K,
        element=FOLDINGS[fmt].element,
        count=1,
        scales=0,
        convert=functools.partial(_convert, fmt=fmt),
    )
    return array


def _convert(codes: list[Any], scales: list[Any], ops: Any, fmt: str) -> Fragments:
    del ops
    if fmt == "mxfp4":
        return Fragments([_folded_widening.fragments(codes, scales, WORDS, LOOK_UPS)], [])
    return Fragments([_folded_fp6_widening.fragments(codes, scales, fmt, WORDS, HALVES)], [])
