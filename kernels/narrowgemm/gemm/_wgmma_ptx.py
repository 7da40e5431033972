"""wgmma in PTX of our own: accumulators, descriptors and formats, in Mosaic GPU's terms, where Pallas has no word."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.gemm._mosaic_gpu import WORDS

#: Rows of one wgmma, and K of one FP8 instruction.
ROWS, INSTRUCTION_K = 64, 32
#: Bytes of a row of an operand in shared memory: one swizzle atom, and so eight rows lie in a kilobyte.
ROW_BYTES = 128
#: What a row adds to a descriptor, and K of one instruction: it counts 16 bytes.
ROW_STEP, K_STEP = ROW_BYTES // 16, INSTRUCTION_K // 16

_Tiling = mgpu.fragmented_array.Tiling
#: wgmma's accumulator, an element a register. As pairs, which is what Pallas calls WGMMA, LLVM would hold it in 64-bit
#: registers, and ptxas would wait for each wgmma to take them apart.
SUM = plgpu.Layout.TILED(
    _Tiling(((64, 8), (16, 8), (8, 8), (2,), (1,))), warp_dims=(-8,), lane_dims=(-4, -3), vector_dim=-1
)
#: A number of 32 bits, the same in all threads.
SCALAR = plgpu.Layout.WG_SPLAT(())
#: An operand in a `tile_buffer`.
TILE = plgpu.RefType((plgpu.TilingTransform((8, ROW_BYTES)), plgpu.SwizzleTransform(ROW_BYTES)))  # type: ignore[abstract]


def zeros(shape: tuple[int, int], interpret: bool) -> jax.Array:
    """An accumulator of zeros."""
    empty = jnp.zeros(shape, jnp.float32)
    return empty if interpret else plgpu.layout_cast(empty, SUM)


def low_descriptor(tile: Any) -> Any:
    """The low half of the descriptor of an operand in a `tile_buffer`, for K from its first byte on.

    Bits 0–13: address / 16; rows can be added to it. 16–29: unused where rows are one atom.
    """
    address = llvm.ptrtoint(ir.IntegerType.get_signless(32), mgpu_utils.memref_ptr(tile))
    place = arith.andi(arith.shrui(address, WORDS.constant(4)), WORDS.constant(0x3FFF))
    return arith.ori(place, WORDS.constant(1 << 16))


def descriptor(low: Any) -> Any:
    """How wgmma is told of an operand: rows of 128 swizzled bytes, eight to a kilobyte (PTX ISA, «Matrix-descriptor»).

    Its low half is `low_descriptor`. Bits 32–45: 1024 / 16. 62–63: swizzle of 128 bytes.
    """
    long = ir.IntegerType.get_signless(64)
    fixed = (1 << 62) | ((8 * ROW_BYTES // 16) << 32)
    return arith.ori(arith.extui(long, low), mgpu_utils.c(fixed, long))


def instruction(columns: int, a_format: str, b_format: str) -> str:
    """PTX of a multiplication of 64 rows by so many columns, without its operands."""
    return f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{INSTRUCTION_K}.f32.{a_format}.{b_format}"


def format_of(tile: Any) -> str:
    """What PTX calls the FP8 format of a reference into shared memory."""
    return "e5m2" if isinstance(ir.MemRefType(tile.type).element_type, ir.Float8E5M2Type) else "e4m3"


def array_of(registers: list[Any], layout: Any, shape: tuple[int, ...]) -> Any:
    """A thread's FP32 numbers as an array in the layout, in its order."""
    tiled, one = layout.to_mgpu(), ir.VectorType.get((1,), ir.F32Type.get())
    numbers = np.array([llvm.bitcast(one, register) for register in registers], dtype=object)
    return mgpu.FragmentedArray(
        _registers=numbers.reshape(tiled.registers_shape(shape)), _layout=tiled, _is_signed=None
    )
