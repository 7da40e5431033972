"""Register code of the Hopper kernels with folded weights, in Mosaic GPU's own terms: what Pallas has no word for."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.formats.fold import FOLDINGS
from narrowgemm.formats.fold_words import BLOCK, TILE_K, planes_of
from narrowgemm.gemm import _folded_fp6_widening, _folded_widening
from narrowgemm.gemm._folded_fp6_widening import Halves
from narrowgemm.gemm._folded_widening import LookUps
from narrowgemm.gemm._mosaic_gpu import WORDS
from narrowgemm.gemm._wgmma_ptx import K_STEP, SUM, TILE, array_of, descriptor, format_of, instruction, low_descriptor
from narrowgemm.gemm._wgmma_weights import thread_words

#: Blocks of a tile along K: of one instruction each.
BLOCKS = TILE_K // BLOCK


def _permute(low: Any, high: Any, selectors: Any) -> Any:
    word = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(word, [low, high, selectors], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", has_side_effects=False)


def _multiply_add(word: Any, factor: int, addend: int) -> Any:
    product = arith.muli(word, mgpu_utils.c(factor, ir.IntegerType.get_signless(32)))
    return arith.addi(product, WORDS.constant(addend))


def _multiply_f16(word: Any, factors: Any, half: int) -> Any:
    """In PTX, for MLIR would be free to go through FP32, or to flush subnormals.

    The machine's instruction may take either half of a register for both.
    """
    both = ("{l, l}", "{h, h}")[half]
    lines = f"{{ .reg .b16 l, h; .reg .b32 f; mov.b32 {{l, h}}, $2; mov.b32 f, {both}; mul.rn.f16x2 $0, $1, f; }}"
    return llvm.inline_asm(ir.IntegerType.get_signless(32), [word, factors], lines, "=r,r,r", has_side_effects=False)


def _upper(word: Any) -> Any:
    return _multiply_f16(WORDS.constant(0x3C003C00), word, 1)


def _twice_and(word: Any, addend: Any) -> Any:
    return arith.addi(WORDS.up(word, 1), addend)


#: How a kernel looks up bytes, and how it multiplies in FP16.
LOOK_UPS = LookUps(_permute, _multiply_add, _upper)
HALVES = Halves(_permute, _multiply_f16, _twice_and, arith.xori)


def multiply(sums: jax.Array, tile: Any, activations: Any, fmt: str, groups: int) -> jax.Array:
    """sums + tile · activationsᵀ, (64, columns), in flight until a `wgmma_wait`: so many commit groups.

    sums:        FP32, as `_wgmma_ptx.zeros` or this function gave them.
    tile:        words of a tile (64, 128) of folded weights in shared memory.
    activations: a reference (columns, 128) into a `tile_buffer`.
    groups:      1, or 4, of a block of K each: the tensor core then multiplies one while the next is widened.
    """
    result = plgpu.ShapeDtypeStruct(sums.shape, jnp.float32, layout=SUM)

    @plgpu.inline_mgpu(arg_types=(SUM, plgpu.RefType(), TILE), return_type=result)  # type: ignore[untyped-decorator]
    def emit(_: Any, sums: Any, tile: Any, activations: Any) -> Any:
        codes, scales = thread_words(tile, planes_of(fmt), 2)
        numbers = [llvm.extractelement(register, WORDS.constant(0)) for register in sums.registers.flat]
        widened = "e5m2" if FOLDINGS[fmt].element == jnp.float8_e5m2 else "e4m3"
        text = instruction(sums.shape[1], widened, format_of(activations))
        first = descriptor(low_descriptor(activations))
        blocks = _fragments(codes, scales, fmt)
        for number in range(groups):
            weights = list(itertools.islice(blocks, BLOCKS // groups))
            starts = [_ahead(first, number * len(weights) + block) for block in range(len(weights))]
            numbers = _committed(numbers, weights, starts, text)
        return array_of(numbers, SUM, sums.shape)

    added: jax.Array = emit(sums, tile, activations)
    return added


def _fragments(codes: list[Any], scales: list[Any], fmt: str) -> Iterator[list[Any]]:
    """Of each block of K the four registers of wgmma's left operand: widened when they are asked for."""
    if fmt == "mxfp4":
        return _folded_widening.fragments(codes, scales, WORDS, LOOK_UPS)
    return _folded_fp6_widening.fragments(codes, scales, fmt, WORDS, HALVES)


def _ahead(first: Any, block: int) -> Any:
    """The descriptor of the activations' block number `block`."""
    return arith.addi(first, mgpu_utils.c(K_STEP * block, ir.IntegerType.get_signless(64)))


def _committed(numbers: list[Any], weights: list[list[Any]], activations: list[Any], text: str) -> list[Any]:
    """The accumulator's registers after a commit group of products, with blocks of weights.

    activations: a descriptor for each block. text: PTX of a product, without its operands.
    """
    f32, count = ir.F32Type.get(), len(numbers)
    places = (f"${i}" for i in itertools.count())
    accumulator = ", ".join(itertools.islice(places, count))
    for _ in range(count):
        next(places)  # an accumulator's register as an input: the same one
    blocks = [", ".join(itertools.islice(places, len(block))) for block in weights]
    lines = ["{ .reg .pred more; setp.ne.b32 more, 1, 0; wgmma.fence.sync.aligned;"]
    lines += [f"{text} {{{accumulator}}}, {{{block}}}, {next(places)}, more, 1, 1;" for block in blocks]
    found = llvm.inline_asm(
        llvm.StructType.get_literal([f32] * count),
        [*numbers, *itertools.chain(*weights), *activations],
        "\n".join([*lines, "wgmma.commit_group.sync.aligned; }"]),
        ",".join(
            ["=f"] * count + [str(i) for i in range(count)] + ["r"] * sum(map(len, weights)) + ["l"] * len(activations)
        ),
        asm_dialect=0,
        has_side_effects=True,
    )
    return [llvm.extractvalue(f32, found, [i]) for i in range(count)]


def finished(sums: jax.Array) -> jax.Array:
    """Sums that have been waited for, as stores know them; LLVM moves no use of them above the wait."""
    result = plgpu.ShapeDtypeStruct(sums.shape, jnp.float32, layout=plgpu.Layout.WGMMA)

    @plgpu.inline_mgpu(arg_types=(SUM,), return_type=result)  # type: ignore[untyped-decorator]
    def emit(_: Any, sums: Any) -> Any:
        return mgpu.optimization_barrier(sums).to_layout(plgpu.Layout.WGMMA.to_mgpu())

    total: jax.Array = emit(sums)
    return total
