"""How an accumulator of wgmma is stored transposed, in Mosaic GPU's own terms: what Pallas has no word for."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.gemm._mosaic_gpu import WORDS


def store_transposed(values: Any, target: Any, interpret: bool) -> None:
    """An accumulator of wgmma (64, columns) into swizzled row-major shared memory (parts, columns, 64 / parts).

    A row is a swizzle atom. The columns that a warp stores at once are rows here; unswizzled, all would meet in the
    same banks.
    """
    parts, columns, length = target.shape
    if interpret:
        for part in range(parts):
            target[part] = lax.slice_in_dim(values, part * length, (part + 1) * length).T
        return
    itemsize = jnp.dtype(target.dtype).itemsize
    row_bytes = length * itemsize
    swizzle = plgpu.SwizzleTransform(row_bytes)  # type: ignore[abstract]

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA, plgpu.RefType((swizzle,))))  # type: ignore[untyped-decorator]
    def emit(_: Any, array: Any, smem: Any) -> None:
        byte, word = ir.IntegerType.get_signless(8), ir.IntegerType.get_signless(32)
        element, pair = (ir.IntegerType.get_signless(8 * itemsize * count) for count in (1, 2))
        base = mgpu_utils.memref_ptr(smem)

        def place_of(row: Any, column: Any) -> Any:
            part, within = arith.divui(row, WORDS.constant(length)), arith.remui(row, WORDS.constant(length))
            line = arith.addi(arith.muli(part, WORDS.constant(columns)), column)
            offset = arith.muli(line, WORDS.constant(row_bytes))
            return swizzled(arith.addi(offset, arith.muli(within, WORDS.constant(itemsize))), row_bytes)

        indices = array.layout.thread_idxs(array.shape)
        for register, index in zip(array.registers.flat, indices, strict=True):
            row, column = (arith.index_cast(word, i) for i in index)
            bits = mgpu_utils.bitcast(register, pair)
            for number in range(2):
                shift = mgpu_utils.c(8 * itemsize * number, pair)
                value = arith.trunci(element, arith.shrui(bits, shift))
                place = place_of(row, arith.addi(column, WORDS.constant(number)))
                llvm.store(value, mgpu_utils.getelementptr(base, [place], byte))

    emit(values, target)


def swizzled(offset: Any, atom_bytes: int) -> Any:
    """Where TMA wants the byte that lies at `offset` unswizzled; the tile begins at a multiple of eight atoms.

    The number of the 16 bytes in the atom is xored with the number of the 128 bytes (PTX ISA, swizzling modes).
    """
    number = WORDS.both(WORDS.down(offset, 7), WORDS.constant(atom_bytes // 16 - 1))
    return arith.xori(offset, WORDS.up(number, 4))
