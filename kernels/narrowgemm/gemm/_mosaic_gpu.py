"""The one place that touches what JAX does not promise to keep of its Mosaic GPU back end."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import scale_layout
from narrowgemm.formats.packing import pack, unpack
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.gemm._words import WordOperations

#: Shared memory one thread block can have on compute capability 9.0 and 10.x.
#: Source: CUDA C++ Programming Guide, technical specifications per compute capability (227 KB).
SHARED_MEMORY_BYTES = 227 * 1024

#: Widths of the swizzle patterns that TMA and the tensor cores share (PTX ISA, swizzling modes).
SWIZZLE_BYTES = (32, 64, 128)

#: Names of the axes of a persistent kernel: clusters, blocks of one, and warpgroups of a block.
TILE_AXIS, CTA_AXIS, WARPGROUP_AXIS = "tile", "cta", "warpgroup"

#: Thread blocks that the interpreter runs side by side: more cost time and find no more races.
_INTERPRETED_CORES = 2


def interpret_params(interpret: bool, pair: bool = False) -> Any:
    """What a kernel's `interpret` argument becomes: GPU interpret mode with race detection, or none.

    Every interpreted warp occupies one thread of JAX's CPU client, of which there are as many as cores, or as the
    environment variable NPROC says: with fewer than warps that wait for each other, interpretation never ends.
    Raises UnsupportedError for a `pair` of blocks that share an MMA, which JAX does not interpret.
    """
    if interpret and pair:
        raise UnsupportedError(
            "GPU interpreter", {"ctas": 2}, "are an MMA of two blocks, which JAX does not interpret", "use ctas=1"
        )
    return plgpu.InterpretGPUParams(detect_races=True, inline_mgpu="ignore") if interpret else False


def races_found() -> bool:
    """Whether the kernel interpreted last had a data race. Raises RuntimeError if none was interpreted."""
    races = gpu_callbacks.get_races()
    return bool(races.races_found)


def core_count(interpret: bool) -> int:
    """Streaming multiprocessors of the device that is compiled for, absent or not."""
    if interpret:
        return _INTERPRETED_CORES
    return int(jax.extend.backend.get_default_device().core_count)


def tile_loop(tiles: int, dynamic: bool) -> Any:
    """Decorator that calls body(info, carry=tiles before this one) -> carry + 1 for the tiles of this cluster.

    The decorated name becomes how many there were. `info` has `index` (of one axis) and `local_index`. Dynamic: the
    hardware hands out the tiles of a grid that has one cluster a tile. The interpreter never takes over another's.
    """
    carry = jnp.int32(0)
    if not dynamic:
        return plgpu.nd_loop((tiles,), collective_axes=TILE_AXIS, init_carry=carry)
    return plgpu.dynamic_scheduling_loop(
        (TILE_AXIS,), thread_axis=WARPGROUP_AXIS, cluster_axes=(CTA_AXIS,), init_carry=carry
    )


def tensor_core_barrier(count: int, *, arrivals: int = 1, pair: bool = False) -> Any:
    """`count` barriers that order what tensor cores do; of a `pair`, both blocks have them and both arrive at both."""
    if pair:
        return plgpu.ClusterBarrier(
            collective_axes=(CTA_AXIS,), num_arrivals=arrivals, num_barriers=count, orders_tensor_core=True
        )
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=count, orders_tensor_core=True)


def tile_buffer(count: int, rows: int, element: Any, interpret: bool, *, columns: int) -> Any:
    """Scratch for `count` tiles rows×columns in shared memory, K contiguous, to be taken apart by `views`.

    A tensor core reads 8-row blocks one swizzle atom wide. Pallas would cut global memory into the same blocks, and so
    refuse extents that are no multiple of them. Where a row is exactly one atom, a plain row-major tile is the same
    bytes and lets TMA take any extent; elements narrower than a byte travel as bytes. The interpreter has no aliasing
    and no such rule.

    Raises ValueError for a row that is no swizzle atom.
    """
    bits = jnp.finfo(element).bits
    swizzle_bytes = columns * bits // 8
    if swizzle_bytes not in SWIZZLE_BYTES:
        raise ValueError(
            f"tile_buffer: a row of {columns} {jnp.dtype(element)} is {swizzle_bytes} bytes, not one of {SWIZZLE_BYTES}"
        )
    swizzle = plgpu.SwizzleTransform(swizzle_bytes)  # type: ignore[abstract]
    tiling = plgpu.TilingTransform((8, columns))  # type: ignore[abstract]
    blocks = plgpu.SMEM((count, rows, columns), element, transforms=(tiling, swizzle))
    if interpret:
        return blocks
    row, dtype = travelling_row(columns, element, interpret)
    return plgpu.RefUnion(plgpu.SMEM((count, rows, row), dtype, transforms=(swizzle,)), blocks)


def travelling_row(columns: int, element: Any, interpret: bool) -> tuple[int, Any]:
    """Length and dtype of a row as TMA sees it: packed elements as bytes, but not in the interpreter."""
    bits = jnp.finfo(element).bits
    return (columns, element) if bits >= 8 or interpret else (columns * bits // 8, jnp.uint8)


def views(buffer: Any, interpret: bool) -> tuple[Any, Any]:
    """What TMA copies into or out of, and what the tensor core or the registers use, of a `tile_buffer`."""
    return (buffer, buffer) if interpret else tuple(buffer)


def travelling(operand: QuantizedArray, interpret: bool) -> jax.Array:
    """The codes as `tile_buffer` takes them: packed ones as bytes, but as elements in the interpreter."""
    if not (interpret and operand.spec.is_packed):
        return operand.codes
    codes = unpack(operand.codes, operand.spec.element.bits, operand.shape[1])
    return lax.bitcast_convert_type(codes.astype(jnp.uint4), operand.spec.element.dtype)


def packed(codes: jax.Array, interpret: bool) -> jax.Array:
    """The inverse of `travelling`, for codes that a kernel stored."""
    bits = jnp.finfo(codes.dtype).bits if interpret else 8
    return codes if bits == 8 else pack(lax.bitcast_convert_type(codes, jnp.uint4).astype(jnp.uint8), bits)


def saturating_cast(x: Any, dtype: Any, interpret: bool) -> Any:
    """x in `dtype`, FP8 saturated and NaN kept: the GPU's conversion does so itself, the interpreter's is told to."""
    if interpret and jnp.dtype(dtype).itemsize == 1:
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)


def scaled_mma(
    acc: Any,
    operands: list[Any],
    scales: list[tuple[Any, Any]],
    done: Any,
    stand_ins: list[Any],
    *,
    accumulate: Any,
    pair: bool,
) -> None:
    """Block-scaled acc (+)= a·bᵀ by the tensor core, which arrives at `done`; returns at once.

    operands:   a in shared or tensor memory, b in shared memory, both (rows, K).
    scales:     of a and of b, tiles in shared memory and the tensor memory to copy them to.
    stand_ins:  none; in the interpreter, which knows no such MMA, BF16 tiles of the operands' shapes: they
                receive the scaled values, exact in BF16, for a plain MMA.
    accumulate: whether to add to `acc` or to overwrite it.
    """
    axis = CTA_AXIS if pair else None
    if stand_ins:
        for stand_in, codes, (tiles, _) in zip(stand_ins, operands, scales, strict=True):
            stand_in[...] = _scaled_values(codes[...], tiles[...]).astype(jnp.bfloat16)
        plgpu.commit_smem()
        a, b = stand_ins
        plgpu.tcgen05_mma(acc, a, b.T, done, accumulate=accumulate, collective_axis=axis)
        return
    for tiles, tmem in scales:
        plgpu.async_copy_scales_to_tmem(tiles, tmem, collective_axis=axis)
    a, b = operands
    (_, a_scale), (_, b_scale) = scales
    plgpu.tcgen05_mma(
        acc,
        a,
        b.T,
        done,
        a_scale=a_scale,
        b_scale=b_scale,
        accumulate=accumulate,
        collective_axis=axis,
    )


def _scaled_values(codes: jax.Array, tiles: jax.Array) -> jax.Array:
    """Elements times block scales, in FP32, of an operand whose scales are tiles for at least its rows."""
    rows, k = codes.shape
    blocks = tiles.shape[1] * scale_layout.TILE_BLOCKS
    scales = scale_layout.untile_scales(tiles, tiles.shape[0] * scale_layout.TILE_ROWS, blocks)
    return codes.astype(jnp.float32) * jnp.repeat(scales[:rows].astype(jnp.float32), k // blocks, axis=1)


def convert_rows(
    source: Any, columns: int, element: Any, convert: Callable[[list[Any], WordOperations], list[Any]], interpret: bool
) -> Any:
    """Rows of shared memory through registers, as an array 128×columns laid out as tensor memory wants packed bytes.

    source:  128 rows of bytes in shared memory, contiguous in each, a multiple of 16; thread r takes row r.
    element: one-byte dtype of the result.
    convert: the row's little-endian 32-bit words -> the words of the result's row.
    """
    if interpret:
        words = lax.bitcast_convert_type(source[...].reshape(128, -1, 4), jnp.uint32)
        converted = jnp.stack(convert(list(words.T), _ARRAY_WORDS), axis=-1)
        return lax.bitcast_convert_type(converted, element).reshape(128, columns)
    layout = plgpu.Layout.TCGEN05_TMEM_NATIVE(4)
    result = plgpu.ShapeDtypeStruct((128, columns), element, layout=layout)

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=result)  # type: ignore[untyped-decorator]
    def emit(_: Any, smem: Any) -> Any:
        word, byte = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(8)
        shape = ir.MemRefType(smem.type)
        (row_bytes, _), _ = shape.get_strides_and_offset()
        row = arith.remui(mgpu_utils.thread_idx(), _word(mgpu_utils.WARPGROUP_SIZE))
        base = mgpu_utils.getelementptr(mgpu_utils.memref_ptr(smem), [arith.muli(row, _word(row_bytes))], byte)
        loaded = []
        for offset in range(0, shape.shape[1], 16):
            pointer = mgpu_utils.getelementptr(base, [offset], byte)
            quad = llvm.load(ir.VectorType.get((4,), word), pointer, alignment=16)
            loaded += [llvm.extractelement(quad, _word(i)) for i in range(4)]
        vector = ir.VectorType.get((4,), mgpu_utils.dtype_to_ir_type(element))
        registers = np.array([mgpu_utils.bitcast(w, vector) for w in convert(loaded, WORDS)], dtype=object)
        tiled = layout.to_mgpu()
        registers = registers.reshape(tiled.registers_shape((128, columns)))
        return mgpu.FragmentedArray(_registers=registers, _layout=tiled, _is_signed=None)

    return emit(source)


#: The interpreter's: words of all rows at once.
_ARRAY_WORDS = WordOperations(
    operator.and_,
    operator.or_,
    operator.lshift,
    operator.rshift,
    jnp.uint32,
    lambda word, value: jnp.where(word == value, jnp.uint32(0xFFFFFFFF), jnp.uint32(0)),
)


def store_transposed(values: Any, target: Any, interpret: bool) -> None:
    """Array 128×columns, of which thread r of the warpgroup holds row r, into row-major shared memory columns×128.

    Each store of a warp fills consecutive bytes. Pallas could store through a transposed view, but would then choose a
    tiling that global memory has to be a multiple of.
    """
    if interpret:
        target[...] = values.T
        return
    layout = plgpu.Layout.TCGEN05_TMEM_NATIVE(1)

    @plgpu.inline_mgpu(arg_types=(layout, plgpu.RefType()))  # type: ignore[untyped-decorator]
    def emit(_: Any, array: Any, smem: Any) -> None:
        bits = ir.IntegerType.get_signless(mgpu_utils.bitwidth(array.mlir_dtype))
        row = arith.remui(mgpu_utils.thread_idx(), _word(mgpu_utils.WARPGROUP_SIZE))
        base = mgpu_utils.getelementptr(mgpu_utils.memref_ptr(smem), [row], bits)
        for column, register in enumerate(array.registers.flat):
            pointer = mgpu_utils.getelementptr(base, [column * mgpu_utils.WARPGROUP_SIZE], bits)
            llvm.store(mgpu_utils.bitcast(register, bits), pointer)

    emit(values, target)


def store_rows(blocks: list[Any], target: Any, interpret: bool) -> None:
    """Arrays 128×block, side by side, into a swizzled row-major tile of shared memory; thread r has and stores row r.

    blocks: of elements of at most a byte, in the layout TCGEN05_TMEM_NATIVE(2).
    target: TMA's view of a tile of a `tile_buffer`, whose row is a swizzle atom: 16 bytes number c of a row lie at
            number c xor the index of the row's 128 bytes, modulo the atom (PTX ISA, swizzling modes).
    """
    if interpret:
        target[...] = jnp.concatenate(blocks, axis=1)
        return
    row_bytes = target.shape[1] * jnp.dtype(target.dtype).itemsize
    swizzle = plgpu.SwizzleTransform(row_bytes)  # type: ignore[abstract]
    layouts = [plgpu.Layout.TCGEN05_TMEM_NATIVE(2) for _ in blocks]

    @plgpu.inline_mgpu(arg_types=(layouts, plgpu.RefType((swizzle,))))  # type: ignore[untyped-decorator]
    def emit(_: Any, arrays: list[Any], smem: Any) -> None:
        byte, word = ir.IntegerType.get_signless(8), ir.IntegerType.get_signless(32)
        words = [w for array in arrays for w in _words_of(array.registers.flat)]
        row = arith.remui(mgpu_utils.thread_idx(), _word(mgpu_utils.WARPGROUP_SIZE))
        offset = arith.muli(row, _word(row_bytes))
        turn = arith.remui(arith.divui(offset, _word(128)), _word(row_bytes // 16))
        base = mgpu_utils.getelementptr(mgpu_utils.memref_ptr(smem), [offset], byte)
        for number in range(row_bytes // 16):
            quad = llvm.mlir_undef(ir.VectorType.get((4,), word))
            for place, value in enumerate(words[4 * number : 4 * number + 4]):
                quad = llvm.insertelement(quad, value, _word(place))
            place = arith.muli(arith.xori(_word(number), turn), _word(16))
            llvm.store(quad, mgpu_utils.getelementptr(base, [place], byte), alignment=16)

    emit(blocks, target)


def _words_of(registers: Any) -> list[Any]:
    """Consecutive elements, a few to a register, as 32-bit words."""
    word, words, filled = ir.IntegerType.get_signless(32), [], 0
    for register in registers:
        bits = mgpu_utils.bitwidth(register.type)
        part = arith.extui(word, mgpu_utils.bitcast(register, ir.IntegerType.get_signless(bits)))
        if filled % 32 == 0:
            words.append(part)
        else:
            words[-1] = arith.ori(words[-1], arith.shli(part, _word(filled % 32)))
        filled += bits
    return words


def store_scale_words(words: Any, target: Any, interpret: bool) -> None:
    """A word a row of 128 into shared memory 32×4, as a tile of scales has them: row r at (r mod 32, r div 32)."""
    if interpret:
        target[...] = words.reshape(4, 32).T
        return
    layout = plgpu.Layout.TCGEN05_TMEM_NATIVE(2).reduce(1)

    @plgpu.inline_mgpu(arg_types=(layout, plgpu.RefType()))  # type: ignore[untyped-decorator]
    def emit(_: Any, array: Any, smem: Any) -> None:
        row = arith.remui(mgpu_utils.thread_idx(), _word(mgpu_utils.WARPGROUP_SIZE))
        place = arith.addi(arith.muli(arith.remui(row, _word(32)), _word(4)), arith.divui(row, _word(32)))
        word = ir.IntegerType.get_signless(32)
        (register,) = array.registers.flat
        pointer = mgpu_utils.getelementptr(mgpu_utils.memref_ptr(smem), [place], word)
        llvm.store(mgpu_utils.bitcast(register, word), pointer)

    emit(words, target)


def _word(value: int) -> Any:
    return mgpu_utils.c(value, ir.IntegerType.get_signless(32))


def _shift(operation: Callable[[Any, Any], Any]) -> Callable[[Any, int], Any]:
    return lambda word, count: operation(word, _word(count))


def _equal(word: Any, value: int) -> Any:
    same = arith.cmpi(arith.CmpIPredicate.eq, word, _word(value))
    return arith.extsi(ir.IntegerType.get_signless(32), same)


#: How a kernel does what bit tricks are written with.
WORDS = WordOperations(arith.andi, arith.ori, _shift(arith.shli), _shift(arith.shrui), _word, _equal)
