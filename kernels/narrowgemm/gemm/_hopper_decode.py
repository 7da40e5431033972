"""C = scale · A·Bᵀ on Hopper's wgmma for few rows of A: the kernel of `hopper_wgmma_fp8_decode`.

The operands are swapped: a block computes a tile of Cᵀ = B·Aᵀ, so that the weights' rows are wgmma's M, in steps of 64,
and the few rows of A its N, in steps of 8. All of M is one tile, so every weight is read from memory once.

Where there are fewer tiles than multiprocessors, `splits` parts of K are computed side by side by the blocks of a
cluster. At the end each block but the owner sends its FP32 sums into the owner's shared memory, and the owner adds them
to its own in the order of the parts: one kernel, no partial sums in memory, and the same bits on every run.
Block c of a cluster owns the rows of consumer c, so that two blocks share the additions and the stores.

Without splits the grid is persistent, and loads of the next tile run ahead while a tile is stored. Where the last wave
would leave half of the blocks idle, `tail_splits` blocks of a cluster, which had tiles of their own until then, take
parts of K of one of its tiles. So a cluster divides one tile at the most, its last: nobody sends into shared memory
that an earlier tile still uses.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers (0, 1)  half of the tile's weight rows each: wgmma from shared memory, exchange, scale, transpose, store; a
                    tile of 64 rows has one consumer;
  producer  (last)  issues the TMA loads of all K steps of all tiles in order, as far ahead as there are stages.

Barriers:
  full   one a stage; an arrival a copy: a box 128 bytes wide of A, and one of B, for each 128 bytes of the stage's K.
         Every consumer waits for it.
  empty  one a stage; an arrival a consumer. The producer waits for it, and at the end once more for every stage in
         use.
  sent   one, where K is divided; an arrival, with its bytes, from every other block of the cluster. The owner waits for
         it: it may then read, and no block ends while another still writes to it.
A consumer's staging tile is written again when the store before has been read out.

Edges need no code of their own: TMA fills with zeros what lies outside the operands and drops what lies outside C.

JAX interprets no store into another block's shared memory: there the sums pass through an array in global memory, in
the same slots and order, and `sent` is a barrier of the cluster at which all consumers arrive.

Source of the idea: swapped operands and split K are common in decode kernels (e.g. Marlin, arXiv:2408.11743), sums over
distributed shared memory follow NVIDIA's programming guide for clusters.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _hopper_sums, _mosaic_gpu, _wgmma_store
from narrowgemm.gemm._hopper import CONSUMER_REGISTERS, PRODUCER_REGISTERS, scale_operand
from narrowgemm.gemm._hopper_decode_space import (
    BOX_K,
    WGMMA_ROWS,
    Config,
    store_columns,
    tail_tiles,
)
from narrowgemm.gemm._hopper_parts import steps_of_part
from narrowgemm.tiling import ceil_div


def launch(name: str, a: Operand, b: Operand, config: Config, out_format: str, interpret: bool) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their tensor scales, M×N of `out_format`; the problem has passed `check_decode`."""
    qa, qb = as_quantized(a), as_quantized(b)
    (m, k), n = qa.shape, qb.shape[0]
    out = jax.ShapeDtypeStruct((m, n), format_named(out_format).element.dtype)
    tiles, k_steps = ceil_div(n, config.tile_n), ceil_div(k, config.tile_k)
    cores = _mosaic_gpu.core_count(interpret)
    tail = tail_tiles(tiles, config.parts, cores) if config.tail_splits > 1 else 0
    most = tiles if config.splits > 1 else max(1, cores // config.parts)
    passed = [_interpreted_exchange(config, tiles)] if interpret and config.parts > 1 else []
    kernel = plgpu.kernel(
        functools.partial(_body, config=config, tiles=(tiles - tail, tail), k_steps=k_steps, interpret=interpret),
        out_type=(out, *passed),
        grid=(min(ceil_div(tiles - tail, config.tail_splits) + tail, most),),
        grid_names=("clusters",),
        cluster=(config.parts,),
        cluster_names=("parts",),
        num_threads=config.consumers + 1,
        thread_name="role",
        scratch_types=_scratch(config, qa, qb, out.dtype, interpret),
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
    )
    result: jax.Array = kernel(qa.codes, qb.codes, scale_operand(qa.tensor_scale), scale_operand(qb.tensor_scale))[0]
    return result


@dataclass(frozen=True)
class _Work:
    """What a block does of a tile: `steps` of K from `first_step`, after `done` steps of tiles before.

    is_divided: whether the other blocks of the cluster do the rest.
    """

    tile: jax.Array
    done: jax.Array
    first_step: jax.Array
    steps: jax.Array
    is_divided: bool


def _interpreted_exchange(config: Config, tiles: int) -> jax.ShapeDtypeStruct:
    """What stands for `received` of every cluster and consumer in the interpreter."""
    sums = (config.tile_n // config.consumers, config.tile_m)
    return jax.ShapeDtypeStruct((tiles, config.consumers, config.parts - 1, *sums), jnp.float32)


def _scratch(config: Config, a: QuantizedArray, b: QuantizedArray, out_dtype: Any, interpret: bool) -> dict[str, Any]:
    boxes = config.tile_k // BOX_K
    columns = store_columns(out_dtype.itemsize)
    buffer = functools.partial(_mosaic_gpu.tile_buffer, config.stages * boxes, interpret=interpret, columns=BOX_K)
    swizzle = plgpu.SwizzleTransform(columns * out_dtype.itemsize)  # type: ignore[abstract]
    staged = (config.consumers * WGMMA_ROWS // columns, config.tile_m, columns)
    scratch = {
        "a_buffer": buffer(config.tile_m, a.codes.dtype),
        "b_buffer": buffer(config.tile_n, b.codes.dtype),
        "out_smem": plgpu.SMEM(staged, out_dtype, transforms=(swizzle,)),
        "full": plgpu.Barrier(num_arrivals=2 * boxes, num_barriers=config.stages),
        "empty": plgpu.Barrier(num_arrivals=config.consumers, num_barriers=config.stages),
    }
    if config.parts > 1 and interpret:
        arrivals = config.consumers
        scratch["sent"] = plgpu.ClusterBarrier(collective_axes=("parts",), num_arrivals=arrivals, num_barriers=1)
    elif config.parts > 1:
        scratch["sent"] = plgpu.Barrier(num_arrivals=config.parts - 1)
        sums = (config.parts - 1, config.tile_n // config.consumers, config.tile_m)
        scratch["received"] = plgpu.SMEM(sums, jnp.float32)
    return scratch


def _body(  # noqa: C901 (the device code of one kernel; its closures are its phases)
    a_gmem: Any,
    b_gmem: Any,
    a_scale_gmem: Any,
    b_scale_gmem: Any,
    out_gmem: Any,
    exchange_gmem: Any = None,
    *,
    a_buffer: Any,
    b_buffer: Any,
    out_smem: Any,
    full: Any,
    empty: Any,
    sent: Any = None,
    received: Any = None,
    config: Config,
    tiles: tuple[int, int],
    k_steps: int,
    interpret: bool,
) -> None:
    """The kernel of one thread block; `tiles` counts those before the last ones that are divided, and these."""
    (a_tma, a_smem), (b_tma, b_smem) = (_mosaic_gpu.views(buffer, interpret) for buffer in (a_buffer, b_buffer))
    boxes = config.tile_k // BOX_K
    rows = config.tile_n // config.consumers
    role, part = lax.axis_index("role"), lax.axis_index("parts")
    whole, tail = tiles

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def for_each_tile(visit: Callable[[_Work], None]) -> jax.Array:
        """Call visit(work) for the tiles of this block; return its steps in all."""
        is_divided = config.splits > 1
        # A tile is its cluster's, or its block's where only K of the last ones is divided.
        axes = ("clusters", "parts") if config.tail_splits > 1 else "clusters"
        first, steps = steps_of_part(part if is_divided else jnp.int32(0), config.splits, k_steps)

        @plgpu.nd_loop((whole,), collective_axes=axes, init_carry=jnp.int32(0))
        def steps_done(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
            visit(_Work(loop.index[0], carry, first, steps, is_divided))
            done: jax.Array = carry + steps
            return done

        total: jax.Array = steps_done
        if tail:
            first, steps = steps_of_part(part, config.tail_splits, k_steps)
            cluster, done = lax.axis_index("clusters"), total
            pl.when(cluster < tail)(lambda: visit(_Work(whole + cluster, done, first, steps, is_divided=True)))
            total += jnp.where(cluster < tail, steps, 0)
        return total

    @pl.when(role == config.consumers)
    def _produce() -> None:
        if config.consumers > 1:
            plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

        def load_tile(work: _Work) -> None:
            @pl.loop(0, work.steps)
            def _load(i: jax.Array) -> None:
                slot = stage_of(work.done + i)
                pl.when(work.done + i >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                for j in range(boxes):
                    columns = pl.ds((work.first_step + i) * config.tile_k + j * BOX_K, BOX_K)
                    weights = b_gmem.at[pl.ds(work.tile * config.tile_n, config.tile_n), columns]
                    plgpu.copy_gmem_to_smem(weights, b_tma.at[slot * boxes + j], full.at[slot])
                for j in range(boxes):
                    columns = pl.ds((work.first_step + i) * config.tile_k + j * BOX_K, BOX_K)
                    activations = a_gmem.at[pl.ds(0, config.tile_m), columns]
                    plgpu.copy_gmem_to_smem(activations, a_tma.at[slot * boxes + j], full.at[slot])

        total = for_each_tile(load_tile)

        @pl.loop(jnp.maximum(total - config.stages, 0), total)
        def _drain(step: jax.Array) -> None:
            plgpu.barrier_wait(empty.at[stage_of(step)])

    @pl.when(role < config.consumers)
    def _consume() -> None:  # noqa: C901 (as its kernel)
        # A block of two warpgroups is launched with all the registers that a thread can have.
        if config.consumers > 1:
            plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        scale = a_scale_gmem[0] * b_scale_gmem[0]
        staging = WGMMA_ROWS // store_columns(out_smem.dtype.itemsize)
        staged = out_smem.at[pl.ds(role * staging, staging)]

        def multiply(acc: Any, work: _Work) -> jax.Array:
            @pl.loop(0, work.steps)
            def _multiply(i: jax.Array) -> None:
                slot = stage_of(work.done + i)
                plgpu.barrier_wait(full.at[slot])
                for j in range(boxes):
                    weights = b_smem.at[slot * boxes + j, pl.ds(role * rows, rows)]
                    plgpu.wgmma(acc, weights, a_smem.at[slot * boxes + j].T)
                # This stage's wgmmas stay in flight; those of the stage before have now read theirs.
                plgpu.wgmma_wait(boxes)
                pl.when(i > 0)(lambda: plgpu.barrier_arrive(empty.at[stage_of(work.done + i - 1)]))

            result: jax.Array = acc[...]
            plgpu.barrier_arrive(empty.at[stage_of(work.done + work.steps - 1)])
            return result

        def store(result: jax.Array, tile: jax.Array) -> None:
            for block in range(0, rows, WGMMA_ROWS):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                scaled = result[block : block + WGMMA_ROWS] * scale
                narrowed = _mosaic_gpu.saturating_cast(scaled, out_smem.dtype, interpret)
                _wgmma_store.store_transposed(narrowed, staged, interpret)
                plgpu.commit_smem()
                for j in range(staging):
                    length = WGMMA_ROWS // staging
                    columns = pl.ds(tile * config.tile_n + role * rows + block + j * length, length)
                    target = out_gmem.at[pl.ds(0, config.tile_m), columns]
                    plgpu.copy_smem_to_gmem(out_smem.at[role * staging + j], target)

        def compute_tile(work: _Work) -> None:
            def accumulate(acc: Any) -> None:
                result, finish = multiply(acc, work), functools.partial(store, tile=work.tile)
                if not work.is_divided:
                    finish(result)
                    return
                slots = exchange_gmem.at[work.tile, role] if interpret else received
                _hopper_sums.sum_of_parts(result, (part, role), slots, sent, finish, interpret)

            pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((rows, config.tile_m), jnp.float32))

        for_each_tile(compute_tile)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
