"""Register code of the Hopper kernels with packed weights, in Mosaic GPU's own terms: what Pallas has no word for."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, math

from narrowgemm.gemm._mosaic_gpu import WORDS
from narrowgemm.gemm._words import FloatOperations


def _scale_f32(word: Any, factor: float) -> Any:
    number = mgpu_utils.bitcast(word, ir.F32Type.get())
    product = arith.mulf(number, mgpu_utils.c(factor, ir.F32Type.get()))
    return mgpu_utils.bitcast(product, ir.IntegerType.get_signless(32))


def _multiply_bf16(left: Any, right: Any) -> Any:
    """In PTX, for MLIR would be free to go through FP32, or to flush subnormals."""
    word = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(word, [left, right], "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", has_side_effects=False)


#: How a kernel multiplies floats that lie in words.
FLOATS = FloatOperations(_scale_f32, _multiply_bf16)


def load_weights(
    tile: Any, planes: int, scale_words: int, columns: int, element: Any, count: int, scales: int, convert: Any
) -> tuple[list[Any], list[Any]]:
    """A tile of shuffled weights from shared memory, widened: left operands of wgmma, and FP32 scales of their rows.

    tile:        words of a tile in shared memory, as `narrowgemm.formats.shuffle` lays them out.
    planes:      of four words a thread; scale_words: of two rows.
    columns, element, count: of the arrays (64, columns); scales: number of arrays (64,) of FP32.
    convert:     the thread's words and scale words -> `Fragments` of words.
    """
    layout = plgpu.Layout.WGMMA if jnp.dtype(element).itemsize == 2 else plgpu.Layout.WGMMA_8BIT
    array = plgpu.ShapeDtypeStruct((64, columns), element, layout=layout)
    rows = plgpu.ShapeDtypeStruct((64,), jnp.float32, layout=plgpu.Layout.WGMMA.reduce(1))

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(plgpu.RefType(),), return_type=(array,) * count + (rows,) * scales
    )
    def emit(_: Any, smem: Any) -> Any:
        codes, scale_words_ = thread_words(smem, planes, scale_words)
        found = convert(codes, scale_words_, (WORDS, FLOATS))
        lanes = ir.VectorType.get((4 // jnp.dtype(element).itemsize,), mgpu_utils.dtype_to_ir_type(element))
        number = ir.VectorType.get((1,), ir.F32Type.get())
        return (
            *(_registers(registers, lanes, layout, (64, columns)) for registers in found.arrays),
            *(_registers(row, number, rows.layout, (64,)) for row in found.row_scales),
        )

    loaded = emit(tile)
    return loaded[:count], loaded[count:]


def thread_words(smem: Any, planes: int, scale_words: int) -> tuple[list[Any], list[Any]]:
    """A thread's words of codes, and of scales of its two rows, from a tile in shared memory."""
    word = ir.IntegerType.get_signless(32)
    thread = arith.remui(mgpu_utils.thread_idx(), WORDS.constant(mgpu_utils.WARPGROUP_SIZE))
    base = mgpu_utils.memref_ptr(smem)

    def load(first: Any, words: int) -> list[Any]:
        pointer = mgpu_utils.getelementptr(base, [first], word)
        vector = llvm.load(ir.VectorType.get((words,), word), pointer, alignment=4 * words)
        return [llvm.extractelement(vector, WORDS.constant(i)) for i in range(words)]

    own = arith.muli(thread, WORDS.constant(4))
    codes = [w for plane in range(planes) for w in load(arith.addi(own, WORDS.constant(512 * plane)), 4)]
    # The four threads of a row are neighbours: 32 pairs of rows.
    pair = arith.muli(arith.shrui(thread, WORDS.constant(2)), WORDS.constant(scale_words))
    return codes, load(arith.addi(pair, WORDS.constant(512 * planes)), scale_words)


def _registers(words: list[Any], lanes: Any, layout: Any, shape: tuple[int, ...]) -> Any:
    """Words of a thread as an array in the layout, registers in its order."""
    tiled = layout.to_mgpu()
    registers = np.array([mgpu_utils.bitcast(word, lanes) for word in words], dtype=object)
    registers = registers.reshape(tiled.registers_shape(shape))
    return mgpu.FragmentedArray(_registers=registers, _layout=tiled, _is_signed=None)


def store_transposed(values: Any, target: Any, interpret: bool) -> None:
    """An accumulator of wgmma (64, columns) into row-major shared memory (columns, 64)."""
    if interpret:
        target[...] = values.T
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA, plgpu.RefType()))  # type: ignore[untyped-decorator]
    def emit(_: Any, array: Any, smem: Any) -> None:
        bits = ir.IntegerType.get_signless(mgpu_utils.bitwidth(array.mlir_dtype))
        word = ir.IntegerType.get_signless(32)
        base = mgpu_utils.memref_ptr(smem)

        def store(value: Any, index: tuple[Any, ...]) -> None:
            row, column = (arith.index_cast(word, i) for i in index)
            offset = arith.addi(arith.muli(column, WORDS.constant(64)), row)
            llvm.store(mgpu_utils.bitcast(value, bits), mgpu_utils.getelementptr(base, [offset], bits))

        array.foreach(store)

    emit(values, target)


def hand_over(values: Any, target: Any, interpret: bool) -> None:
    """An accumulator of wgmma (64, columns) into FP32 shared memory of its size, for another warpgroup's `take_over`.

    A register of all threads is one run of bytes: no two threads of a warp share a bank.
    """
    if interpret:
        target[...] = values
        return

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA, plgpu.RefType()))  # type: ignore[untyped-decorator]
    def emit(_: Any, array: Any, smem: Any) -> None:
        for place, register in zip(_places(smem, array.registers.size), array.registers.flat, strict=True):
            llvm.store(register, place)

    emit(values, target)


def take_over(source: Any, columns: int, interpret: bool) -> Any:
    """What `hand_over` left, in the same registers of this warpgroup's threads."""
    if interpret:
        return source[...]
    layout = plgpu.Layout.WGMMA
    result = plgpu.ShapeDtypeStruct((64, columns), jnp.float32, layout=layout)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=result)  # type: ignore[untyped-decorator]
    def emit(_: Any, smem: Any) -> Any:
        shape = layout.to_mgpu().registers_shape((64, columns))
        pair = ir.VectorType.get((2,), ir.F32Type.get())
        loaded = [llvm.load(pair, place) for place in _places(smem, int(np.prod(shape)))]
        registers = np.array(loaded, dtype=object).reshape(shape)
        return mgpu.FragmentedArray(_registers=registers, _layout=layout.to_mgpu(), _is_signed=None)

    return emit(source)


def _places(smem: Any, registers: int) -> list[Any]:
    """Pointers to where this thread's registers of two FP32 go."""
    thread = arith.remui(mgpu_utils.thread_idx(), WORDS.constant(mgpu_utils.WARPGROUP_SIZE))
    base, pair = mgpu_utils.memref_ptr(smem), ir.IntegerType.get_signless(64)
    ahead = (arith.addi(thread, WORDS.constant(i * mgpu_utils.WARPGROUP_SIZE)) for i in range(registers))
    return [mgpu_utils.getelementptr(base, [place], pair) for place in ahead]


def add_scaled(total: Any, parts: list[Any], scales: list[Any]) -> Any:
    """total + Σ scale[:, None] · part, fused in FP32, of accumulators (64, columns) and scales (64,).

    The barrier keeps LLVM from moving a use of a part above the wait for it.
    """
    wgmma, rows = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1)
    result = plgpu.ShapeDtypeStruct(total.shape, jnp.float32, layout=wgmma)

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(wgmma, [wgmma] * len(parts), [rows] * len(scales)), return_type=result
    )
    def emit(_: Any, total: Any, parts: list[Any], scales: list[Any]) -> Any:
        registers = total.registers.copy()
        for part, scale in zip(parts, scales, strict=True):
            part = mgpu.optimization_barrier(part)
            factor = scale.broadcast_in_dim(part.shape, (0,), wgmma.to_mgpu())
            for index in np.ndindex(registers.shape):
                operands = factor.registers[index], part.registers[index], registers[index]
                registers[index] = math.fma(*operands)
        return mgpu.FragmentedArray(_registers=registers, _layout=total.layout, _is_signed=None)

    return emit(total, parts, scales)
