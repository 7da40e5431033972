"""The epilogue of Hopper's dense kernels, on the parts of an accumulator that one consumer stores.

Vectors along n are in shared memory when the tile's last K step is: the producer loads them behind it, one set for the
tile that both consumers work on, or one for each consumer where they take turns. Scales along m are two numbers a
thread, and a residual is one of many loads; they come straight from global memory. What lies outside of C is never
stored, so it only has to be readable: TMA fills it with zeros, and the other loads repeat the last row or column.

Barriers of a set of vectors:
  full   an arrival for each vector's copy; the tile's consumers wait for it.
  empty  an arrival from each consumer of the tile; the producer waits for it before it loads the set again.
"""

import math
from dataclasses import dataclass
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
from jaxlib.mlir.dialects import arith, llvm

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._hopper_space import (
    RESERVED_BYTES,
    STORE_ROWS,
    Config,
    consumers_of_a_tile,
    shared_memory_bytes,
    store_columns,
)
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

_F32_BYTES = 4
#: Each thread of a warpgroup announces its part of a copy's bytes: a vector's copy is a multiple of so many elements.
_VECTOR_STEP = 32
_SQRT_2_OVER_PI, _GELU_CUBIC, _LOG2_E = 0.7978845608028654, 0.044715, 1.4426950408889634


def check_room(kernel: str, problem: GemmProblem, config: Config, epilogue: Epilogue) -> None:
    """Raise UnsupportedError where the epilogue's vectors do not fit beside the operands in shared memory."""
    vectors = _sets(config) * _vectors_of(epilogue) * _width(config) * _F32_BYTES
    needed, available = shared_memory_bytes(problem, config) + vectors, _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if needed > available:
        raise UnsupportedError(
            kernel,
            {"tile_m": config.tile_m, "tile_n": config.tile_n, "stages": config.stages, "epilogue": epilogue.name},
            f"needs {needed} bytes of shared memory; a block has {available}",
            "use fewer stages or a smaller tile",
        )


def columns_at_once(config: Config, itemsize: int, epilogue: Epilogue) -> int:
    """Columns of one staged store: fewer beside a residual of wide elements, whose registers would spill."""
    if epilogue.residual is not None:
        itemsize = max(itemsize, jnp.dtype(epilogue.residual.dtype).itemsize)
    return store_columns(config, itemsize)


def _vectors_of(epilogue: Epilogue) -> int:
    return sum(vector is not None for vector in (epilogue.column_scale, epilogue.bias))


def _sets(config: Config) -> int:
    return config.consumers // consumers_of_a_tile(config)


def _width(config: Config) -> int:
    return ceil_div(config.tile_n, _VECTOR_STEP) * _VECTOR_STEP


def scratch(config: Config, epilogue: Epilogue) -> tuple[Any, ...]:
    """What the vectors need of shared memory: their sets, and barriers; nothing without vectors."""
    count, sets = _vectors_of(epilogue), _sets(config)
    if not count:
        return ()
    return (
        plgpu.SMEM((sets, count * _width(config)), jnp.float32),
        plgpu.Barrier(num_arrivals=count, num_barriers=sets),
        plgpu.Barrier(num_arrivals=consumers_of_a_tile(config), num_barriers=sets),
    )


def compiler_params(epilogue: Epilogue) -> Any:
    """Instructions that approximate within 2^-21, and for FP8 results tanh's within 2^-11, where there is a use."""
    return plgpu.CompilerParams(approx_math=True) if epilogue.activation in ("gelu", "silu") else None


@dataclass(frozen=True)
class Finish:
    """The epilogue inside a kernel: `operands` has references to global memory, `vectors` is what `scratch` gave."""

    operands: Epilogue
    vectors: tuple[Any, ...]
    config: Config
    out_dtype: Any
    interpret: bool

    @property
    def _along_n(self) -> list[Any]:
        return [v for v in (self.operands.column_scale, self.operands.bias) if v is not None]

    def _set_of(self, turn: jax.Array) -> Any:
        return turn if _sets(self.config) > 1 else 0

    def load(self, turn: jax.Array, first_step: jax.Array, k_steps: int, column: jax.Array) -> None:
        """The producer's part: a tile's vectors, into the set that a tile before has left, if there was one."""
        if not self.vectors:
            return
        smem, full, empty = self.vectors
        which, width = self._set_of(turn), _width(self.config)
        pl.when(first_step >= _sets(self.config) * k_steps)(lambda: plgpu.barrier_wait(empty.at[which]))
        for number, vector in enumerate(self._along_n):
            target = smem.at[which, pl.ds(number * width, width)]
            plgpu.copy_gmem_to_smem(vector.at[pl.ds(column, width)], target, full.at[which])

    def drain(self, steps: jax.Array, k_steps: int) -> None:
        """The producer's last part, after so many steps: every set has been left."""
        if not self.vectors:
            return
        tiles, sets = lax.div(steps, jnp.int32(k_steps)), _sets(self.config)

        @pl.loop(jnp.maximum(tiles - sets, 0), tiles)
        def _drain(tile: jax.Array) -> None:
            plgpu.barrier_wait(self.vectors[2].at[lax.rem(tile, jnp.int32(sets))])

    def row_factors(self, row: jax.Array, rows: int, scale: jax.Array) -> list[jax.Array]:
        """Tensor scales times scales of rows from `row` on, for each 64 of them: a scalar where rows have none."""
        source = self.operands.row_scale
        starts = range(0, rows, STORE_ROWS)
        if source is None:
            return [scale] * len(starts)
        layout = plgpu.Layout.WGMMA.reduce(1)
        return [load_clamped(source, (row + start,), (STORE_ROWS,), layout, self.interpret) * scale for start in starts]

    def wait(self, turn: jax.Array) -> None:
        """The tile's vectors are there."""
        if self.vectors:
            plgpu.barrier_wait(self.vectors[1].at[self._set_of(turn)])

    def leave(self, turn: jax.Array) -> None:
        """The tile's vectors may be overwritten, by TMA: a fence orders the reads before that."""
        if self.vectors:
            plgpu.commit_smem()
            plgpu.barrier_arrive(self.vectors[2].at[self._set_of(turn)])

    def inverse_out_scale(self) -> jax.Array | None:
        """1 / out_scale, a scalar."""
        out_scale = self.operands.out_scale
        return None if out_scale is None else 1.0 / out_scale[0]

    def __call__(
        self,
        part: jax.Array,
        row_factor: jax.Array,
        inverse_out_scale: jax.Array | None,
        turn: jax.Array,
        place: tuple[jax.Array, jax.Array],
        in_tile: jax.Array | int,
    ) -> jax.Array:
        """What is to be stored of a part (64, columns) of the accumulator, in FP32.

        place: row and column of the part in C; in_tile: its column in the block's tile.
        """
        shape, columns = part.shape, part.shape[1]
        along_n = [self._along_n_of(turn, number, in_tile, columns) for number in range(len(self._along_n))]
        value = part * (row_factor if row_factor.ndim == 0 else lax.broadcast_in_dim(row_factor, shape, (0,)))
        if self.operands.column_scale is not None:
            value = value * lax.broadcast_in_dim(along_n.pop(0), shape, (1,))
        if self.operands.bias is not None:
            value = value + lax.broadcast_in_dim(along_n.pop(0), shape, (1,))
        is_coarse = jnp.dtype(self.out_dtype).itemsize == 1
        if self.operands.residual is None:
            return activated(value, self.operands.activation, is_coarse, inverse_out_scale)
        residual = load_clamped(self.operands.residual, place, shape, plgpu.Layout.WGMMA, self.interpret)
        value = activated(value, self.operands.activation, is_coarse, None) + residual.astype(jnp.float32)
        return value if inverse_out_scale is None else value * inverse_out_scale

    def _along_n_of(self, turn: jax.Array, number: int, in_tile: jax.Array | int, columns: int) -> jax.Array:
        smem = self.vectors[0].at[self._set_of(turn), pl.ds(number * _width(self.config) + in_tile, columns)]
        loaded: jax.Array = plgpu.load(smem, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
        return loaded


def activated(x: jax.Array, activation: str | None, is_coarse: bool, factor: jax.Array | None) -> jax.Array:
    """The activation of FP32 values times a scalar `factor`, or None for 1.

    Where the store is as coarse, by a tanh of one instruction, else by exp2: special functions come 16 a cycle and
    multiprocessor, so one each takes a 128×256 tile 2048 cycles. GELU(x) = x·sigmoid(2u) with u = √(2/π)·(x +
    0.044715·x³), and SiLU(x) = x·sigmoid(2u) with u = x/2; sigmoid(2u) = (1 + tanh(u))/2.
    """
    if activation in (None, "relu"):
        value = x if activation is None else jnp.maximum(x, 0.0)
        return value if factor is None else value * factor
    u = x * (_SQRT_2_OVER_PI + (_SQRT_2_OVER_PI * _GELU_CUBIC) * (x * x)) if activation == "gelu" else 0.5 * x
    if is_coarse:
        half = x * (jnp.float32(0.5) if factor is None else 0.5 * factor)
        return half + half * jnp.tanh(u)
    # The square of the root's reciprocal, for a division is ten instructions; of infinity it is zero, as it should be.
    root = lax.rsqrt(1.0 + jnp.exp2(u * (-2 * _LOG2_E)))
    value = x * (root * root)
    return value if factor is None else value * factor


def load_clamped(
    source: Any, first: tuple[jax.Array, ...], shape: tuple[int, ...], layout: Any, interpret: bool
) -> jax.Array:
    """`source` in global memory from `first` on, as an array in the layout; outside of it the last elements again.

    The last axis is even wherever the layout puts pairs into a register, so that a pair is inside or outside as one.
    """
    if interpret:
        index = [
            jnp.clip(start + jnp.arange(length), 0, extent - 1)
            for start, length, extent in zip(first, shape, source.shape, strict=True)
        ]
        found: jax.Array = source[...][jnp.ix_(*index)]
        return found
    result = plgpu.ShapeDtypeStruct(shape, source.dtype, layout=layout)
    scalar = plgpu.Layout.WG_SPLAT(())

    @plgpu.inline_mgpu(  # type: ignore[untyped-decorator]
        arg_types=(plgpu.RefType(), tuple(scalar for _ in first)), return_type=result
    )
    def emit(_: Any, gmem: Any, first: Any) -> Any:
        tiled = layout.to_mgpu()
        word = ir.IntegerType.get_signless(32)
        # Offsets of 64 bits only where they are needed: their registers would spill beside an accumulator.
        wide = ir.IntegerType.get_signless(64 if math.prod(source.shape) > 2**31 - 1 else 32)
        element = ir.MemRefType(gmem.type).element_type
        vector = ir.VectorType.get((tiled.vector_length,), element)
        alignment = tiled.vector_length * mgpu_utils.bitwidth(element) // 8
        base = llvm.addrspacecast(llvm.PointerType.get(1), mgpu_utils.memref_ptr(gmem))
        starts = [start.registers.item() for start in first]

        def offset_of(index: tuple[Any, ...]) -> Any:
            offset = mgpu_utils.c(0, wide)
            for axis, (start, i, extent) in enumerate(zip(starts, index, source.shape, strict=True)):
                held = tiled.vector_length if axis == len(shape) - 1 else 1
                last = mgpu_utils.c(extent - held, word)
                place = arith.minsi(arith.addi(start, arith.index_cast(word, i)), last)
                place = arith.extsi(wide, place) if wide != word else place
                offset = arith.addi(arith.muli(offset, mgpu_utils.c(extent, wide)), place)
            return offset

        loaded = [
            llvm.load(vector, mgpu_utils.getelementptr(base, [offset_of(i)], element), alignment=alignment)
            for i in tiled.thread_idxs(shape)
        ]
        registers = np.array(loaded, dtype=object).reshape(tiled.registers_shape(shape))
        return mgpu.FragmentedArray(_registers=registers, _layout=tiled, _is_signed=None)

    loaded: jax.Array = emit(source, first)
    return loaded
