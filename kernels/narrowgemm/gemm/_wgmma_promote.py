"""Short sums of FP8 products on wgmma, and how they are promoted: in Mosaic GPU's terms, what Pallas has no word for.

The tensor core adds FP8 products with few bits. So its sums are taken out of it every 128 of K, multiplied by the
scales of those 128, and added in FP32. wgmma can overwrite its accumulator instead of adding to it, which Pallas never
asks of it: without that each short sum would begin with an instruction an element that zeroes the accumulator.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, math, nvvm

from narrowgemm.gemm._mosaic_gpu import WORDS
from narrowgemm.gemm._wgmma_ptx import (
    INSTRUCTION_K,
    K_STEP,
    ROW_BYTES,
    ROWS,
    SCALAR,
    SUM,
    TILE,
    array_of,
    descriptor,
    format_of,
    instruction,
    low_descriptor,
)

#: Blocks of K whose scales are fetched at once: as many as threads share a row of an accumulator.
WINDOW = 4
_Tiling = mgpu.fragmented_array.Tiling
#: A window of scales (64, 4): of the four threads that share a row each holds one.
QUAD = plgpu.Layout.TILED(_Tiling(((64, 4), (16, 4), (8, 4), (1,))), warp_dims=(-7,), lane_dims=(-3, -2), vector_dim=-1)
#: A number a row.
ROW = plgpu.Layout.WGMMA.reduce(1)


def descriptor_of(tile: Any, interpret: bool) -> jax.Array:
    """The `low_descriptor` of a reference into a `tile_buffer`, computed here and not where it is used."""
    if interpret:
        return jnp.zeros((), jnp.int32)

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(TILE,), return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=SCALAR)
    )
    def emit(_: Any, tile: Any) -> Any:
        word = ir.IntegerType.get_signless(32)
        # LLVM cannot look into assembly, and would otherwise move the computation to where a multiplication begins.
        pinned = llvm.inline_asm(word, [low_descriptor(tile)], "", "=r,0", asm_dialect=0, has_side_effects=True)
        return mgpu.FragmentedArray.splat(pinned, (), is_signed=True)

    low: jax.Array = emit(tile)
    return low


def multiply(a: Any, b: Any, a_descriptor: Any, b_descriptor: Any, interpret: bool) -> jax.Array:
    """a (64, 128) · b (columns, 128)ᵀ of references into a `tile_buffer`, in flight until a `wgmma_wait`.

    a_descriptor, b_descriptor: their `descriptor_of`, which may have been computed before. The interpreter takes the
    references, a chip their formats alone.
    """
    shape = (ROWS, b.shape[0])
    if interpret:
        return _multiply_interpreted(a, b)

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(TILE, TILE, SCALAR, SCALAR), return_type=plgpu.ShapeDtypeStruct(shape, jnp.float32, layout=SUM)
    )
    def emit(_: Any, a: Any, b: Any, a_descriptor: Any, b_descriptor: Any) -> Any:
        f32, count = ir.F32Type.get(), shape[1] // 2
        found = llvm.inline_asm(
            llvm.StructType.get_literal([f32] * count),
            [descriptor(a_descriptor.registers.item()), descriptor(b_descriptor.registers.item())],
            _instructions(shape[1], format_of(a), format_of(b)),
            ",".join(["=f"] * count + ["l", "l"]),
            asm_dialect=0,
            has_side_effects=True,
        )
        return array_of([llvm.extractvalue(f32, found, [i]) for i in range(count)], SUM, shape)

    product: jax.Array = emit(a, b, a_descriptor, b_descriptor)
    return product


def _multiply_interpreted(a: Any, b: Any) -> jax.Array:
    def accumulate(acc: Any) -> jax.Array:
        plgpu.wgmma(acc, a, b.T)
        sums: jax.Array = acc[...]
        return sums

    product: jax.Array = pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((ROWS, b.shape[0]), jnp.float32))
    return product


def _instructions(columns: int, a_type: str, b_type: str) -> str:
    """PTX of one commit group; operand number columns/2 is A's descriptor and the next one B's.

    The first instruction overwrites the accumulator. A descriptor counts 16 bytes, an instruction's K has 32.
    """
    accumulator = ", ".join(f"${i}" for i in range(columns // 2))
    lines = ["{ .reg .pred more; .reg .b64 a, b;", f"mov.b64 a, ${columns // 2}; mov.b64 b, ${columns // 2 + 1};"]
    lines.append("wgmma.fence.sync.aligned;")
    for k in range(0, ROW_BYTES, INSTRUCTION_K):
        if k:
            lines.append(f"add.s64 a, a, {K_STEP}; add.s64 b, b, {K_STEP};")
        lines.append(f"setp.ne.b32 more, {int(k > 0)}, 0;")
        lines.append(f"{instruction(columns, a_type, b_type)} {{{accumulator}}}, a, b, more, 1, 1;")
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned; }"])


def column_of(window: Any, column: Any, interpret: bool) -> jax.Array:
    """Column number `column` of a window (64, 4), a number a row: from one of the four threads to all."""
    if interpret:
        found: jax.Array = lax.dynamic_index_in_dim(window, column, 1, keepdims=False)
        return found

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(QUAD, SCALAR), return_type=plgpu.ShapeDtypeStruct((ROWS,), jnp.float32, layout=ROW)
    )
    def emit(_: Any, window: Any, column: Any) -> Any:
        word = ir.IntegerType.get_signless(32)
        first = arith.andi(mgpu_utils.thread_idx(), WORDS.constant(32 - WINDOW))
        thread = arith.ori(first, column.registers.item())

        def fetched(register: Any) -> Any:
            bits = mgpu_utils.bitcast(register, word)
            return nvvm.shfl_sync(WORDS.constant(0xFFFFFFFF), bits, thread, WORDS.constant(31), nvvm.ShflKind.idx)

        return array_of([fetched(register) for register in window.registers.flat], ROW, (ROWS,))

    picked: jax.Array = emit(window, column)
    return picked


def promote(total: Any, part: Any, factors: list[Any], first_columns: Any, step: int, interpret: bool) -> jax.Array:
    """total + factor · part, fused in FP32, of accumulators (64, columns) and factors a row.

    factors: of the first columns, and, if there are two, of the others.
    first_columns: how many are the first, a multiple of `step`; counts where there are two factors.

    The barrier keeps LLVM from moving a use of `part` above the wait for it.
    """
    if interpret:
        is_first = jnp.arange(part.shape[1]) < first_columns
        added: jax.Array = total + jnp.where(is_first, factors[0][:, None], factors[-1][:, None]) * part
        return added
    result = plgpu.ShapeDtypeStruct(total.shape, jnp.float32, layout=SUM)

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(SUM, SUM, [ROW] * len(factors), SCALAR), return_type=result
    )
    def emit(_: Any, total: Any, part: Any, factors: list[Any], first_columns: Any) -> Any:
        part = mgpu.optimization_barrier(part)
        halves = [list(factor.registers.flat) for factor in factors]
        boundary = first_columns.registers.item()

        def factors_of(start: int) -> list[Any]:
            if len(halves) == 1:
                return halves[0]
            is_first = arith.cmpi(arith.CmpIPredicate.slt, WORDS.constant(start), boundary)
            return [arith.select(is_first, *pair) for pair in zip(*halves, strict=True)]

        chosen = [factors_of(start) for start in range(0, part.shape[1], step)]
        # Of each eight columns a thread holds two numbers in each of two rows.
        sums = [
            math.fma(chosen[number // 4 * 8 // step][number // 2 % 2], addend, so_far)
            for number, (addend, so_far) in enumerate(zip(part.registers.flat, total.registers.flat, strict=True))
        ]
        return array_of(sums, SUM, part.shape)

    promoted: jax.Array = emit(total, part, factors, first_columns)
    return promoted


def joined(blocks: list[list[Any]], interpret: bool) -> jax.Array:
    """Accumulators, rows of blocks, as one array in the layout that stores know. Costs nothing."""
    if interpret:
        return jnp.block(blocks)
    shape = (ROWS * len(blocks), sum(block.shape[1] for block in blocks[0]))

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=([[SUM] * len(row) for row in blocks],),
        return_type=plgpu.ShapeDtypeStruct(shape, jnp.float32, layout=plgpu.Layout.WGMMA),
    )
    def emit(_: Any, blocks: list[list[Any]]) -> Any:
        registers = np.concatenate(
            [np.concatenate([block.registers for block in row], axis=1) for row in blocks], axis=0
        )
        whole = mgpu.FragmentedArray(_registers=registers, _layout=SUM.to_mgpu(), _is_signed=None)
        return whole.to_layout(plgpu.Layout.WGMMA.to_mgpu())

    whole: jax.Array = emit(blocks)
    return whole
