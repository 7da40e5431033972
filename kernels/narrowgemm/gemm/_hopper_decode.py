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
that an earlier tile still uses. Where there are many rows of A, which every tile reads, `cluster_n` blocks of a cluster
have their tiles side by side and each load half of A's rows for both; a tile that they divide each reads for itself,
with as many steps, the last of which may lie outside of K.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers (0, 1)  half of the tile's weight rows each: wgmma from shared memory, exchange, scale, transpose, store; a
                    tile of 64 rows has one consumer;
  producer  (last)  issues the TMA loads of all K steps of all tiles in order, as far ahead as there are stages.

Barriers:
  full   one a stage; an arrival a copy: a box 128 bytes wide of A, and one of B, for each 128 bytes of the stage's K.
         Every consumer waits for it.
  empty  one a stage; an arrival a consumer, in both blocks where they share A. The producer waits for it, and at the
         end once more for every stage in use: no block leaves a cluster while a partner can still reach it.
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
)
from narrowgemm.gemm._hopper_parts import tail_tiles
from narrowgemm.gemm._hopper_work import Work, empty_barrier, for_each_work
from narrowgemm.tiling import ceil_div, round_up


def launch(name: str, a: Operand, b: Operand, config: Config, out_format: str, interpret: bool) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their tensor scales, M×N of `out_format`; the problem has passed `check_decode`."""
    qa, qb = as_quantized(a), as_quantized(b)
    (m, k), n = qa.shape, qb.shape[0]
    out = jax.ShapeDtypeStruct((m, n), format_named(out_format).element.dtype)
    tiles, k_steps = ceil_div(n, config.tile_n), ceil_div(k, config.tile_k)
    cores = _mosaic_gpu.core_count(interpret)
    tail = tail_tiles(tiles, config.parts, cores) if config.tail_splits > 1 else 0
    # Blocks that share A take as many tiles each; what lies beyond C is dropped.
    whole = round_up(tiles - tail, config.cluster_n)
    abreast = 1 if config.splits > 1 else config.blocks
    most = tiles if config.splits > 1 else max(1, cores // config.blocks)
    passed = [_interpreted_exchange(config, tiles)] if interpret and config.parts > 1 else []
    kernel = plgpu.kernel(
        functools.partial(_body, config=config, tiles=(whole, tail), k_steps=k_steps, interpret=interpret),
        out_type=(out, *passed),
        grid=(min(ceil_div(whole, abreast) + tail, most),),
        grid_names=("clusters",),
        cluster=(config.blocks,),
        cluster_names=("parts",),
        num_threads=config.consumers + 1,
        thread_name="role",
        scratch_types=_scratch(config, qa, qb, out.dtype, interpret),
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
    )
    result: jax.Array = kernel(qa.codes, qb.codes, scale_operand(qa.tensor_scale), scale_operand(qb.tensor_scale))[0]
    return result


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
        "empty": empty_barrier(config.stages, config.consumers, "parts" if config.cluster_n > 1 else None),
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

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def for_each_tile(visit: Callable[[Work], None]) -> jax.Array:
        parts = (config.splits, config.tail_splits)
        shares_a = config.cluster_n > 1
        return for_each_work(visit, tiles, parts, k_steps, blocks=config.blocks, in_step=shares_a)

    @pl.when(role == config.consumers)
    def _produce() -> None:
        if config.consumers > 1:
            plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

        def load_tile(work: Work) -> None:
            shared = "parts" if config.cluster_n > 1 and not work.is_divided else None

            @pl.loop(0, work.loaded)
            def _load(i: jax.Array) -> None:
                slot = stage_of(work.done + i)
                pl.when(work.done + i >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                step = work.step(i, k_steps)
                for j in range(boxes):
                    columns = pl.ds(step * config.tile_k + j * BOX_K, BOX_K)
                    weights = b_gmem.at[pl.ds(work.tile * config.tile_n, config.tile_n), columns]
                    plgpu.copy_gmem_to_smem(weights, b_tma.at[slot * boxes + j], full.at[slot])
                for j in range(boxes):
                    columns = pl.ds(step * config.tile_k + j * BOX_K, BOX_K)
                    activations = a_gmem.at[pl.ds(0, config.tile_m), columns]
                    plgpu.copy_gmem_to_smem(
                        activations, a_tma.at[slot * boxes + j], full.at[slot], collective_axes=shared
                    )

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

        def leave(step: jax.Array) -> None:
            # One thread tells the other block, for all of the warpgroup; in its own block each tells for itself.
            if config.cluster_n > 1:
                plgpu.commit_smem()
            plgpu.barrier_arrive(empty.at[stage_of(step)])

        def multiply(acc: Any, work: Work) -> jax.Array:
            @pl.loop(0, work.loaded)
            def _multiply(i: jax.Array) -> None:
                slot = stage_of(work.done + i)
                plgpu.barrier_wait(full.at[slot])
                for j in range(boxes):
                    weights = b_smem.at[slot * boxes + j, pl.ds(role * rows, rows)]
                    plgpu.wgmma(acc, weights, a_smem.at[slot * boxes + j].T)
                # This stage's wgmmas stay in flight; those of the stage before have now read theirs.
                plgpu.wgmma_wait(boxes)
                pl.when(i > 0)(lambda: leave(work.done + i - 1))

            result: jax.Array = acc[...]
            leave(work.done + work.loaded - 1)
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

        def compute_tile(work: Work) -> None:
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
