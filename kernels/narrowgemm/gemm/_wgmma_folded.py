"""Register code of the Hopper kernel with folded weights, in Mosaic GPU's own terms: what Pallas has no word for."""

import functools
from typing import Any

from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.formats.fold import ELEMENT, TILE_K
from narrowgemm.gemm._folded_widening import LookUps, fragments
from narrowgemm.gemm._mosaic_gpu import WORDS
from narrowgemm.gemm._weight_widening import Fragments
from narrowgemm.gemm._wgmma_weights import load_weights


def _permute(low: Any, high: Any, selectors: Any) -> Any:
    word = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(word, [low, high, selectors], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", has_side_effects=False)


def _multiply_add(word: Any, factor: int, addend: int) -> Any:
    product = arith.muli(word, mgpu_utils.c(factor, ir.IntegerType.get_signless(32)))
    return arith.addi(product, WORDS.constant(addend))


#: How a kernel looks up bytes.
LOOK_UPS = LookUps(_permute, _multiply_add)


def load_folded(tile: Any) -> Any:
    """A tile of folded weights from shared memory, widened: wgmma's left operand (64, 128)."""
    (array,), _ = _load(tile)
    return array


def _convert(codes: list[Any], scales: list[Any], ops: Any) -> Fragments:
    del ops
    return Fragments([fragments(codes, scales, WORDS, LOOK_UPS)], [])


_load = functools.partial(
    load_weights, planes=2, scale_words=2, columns=TILE_K, element=ELEMENT, count=1, scales=0, convert=_convert
)
