"""C = scale · A·Bᵀ on Hopper's wgmma: what the dense `hopper_wgmma_*` kernels share.

A (M×K) and B (N×K) have K contiguous, so that TMA brings both into shared memory swizzled as wgmma wants them. The grid
is persistent: a cluster of thread blocks walks over many output tiles, in a rasterised order that keeps the operands of
neighbouring tiles in the L2.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers (0, 1)  multiply from shared memory, scale, convert and store. Cooperative: they split each tile. Ping-pong:
                    they take whole tiles in turn, so that one stores while the other multiplies;
  producer  (2)     issues the TMA loads of all K steps of all tiles in order, as far ahead as there are stages.

K steps are counted over all tiles of a block; step s uses stage s mod stages. Barriers:
  full   one a stage (cooperative), or one a consumer and stage (ping-pong: who waits for a barrier waits for all of its
         phases, so each consumer has barriers for its own tiles alone). 2 arrivals: the copy of A and the copy of B.
         The tile's consumers wait for it.
  empty  one a stage. An arrival from each consumer of the tile, in every block of the cluster that shares an operand,
         for a multicast copy overwrites the stage in all of them. The producer waits for it, and at the end once more
         for every stage in use: no block leaves a cluster while a partner can still reach it.
An epilogue adds what `_wgmma_epilogue` says. An empty one, which is none, adds nothing.
Stores go through two staging tiles a consumer; one is written again when the store before last has been read out.

Edges need no code of their own: TMA fills with zeros what lies outside the operands and drops what lies outside C.

The pipeline follows NVIDIA's CUTLASS and the Hopper example of JAX Pallas in idea.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.quantize import Operand, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu, _wgmma_epilogue
from narrowgemm.gemm._hopper import CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS, scale_operand
from narrowgemm.gemm._hopper_space import (
    STAGE_K_BYTES,
    STORE_ROWS,
    Config,
    consumer_tile,
    consumers_of_a_tile,
)
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.problem import GemmProblem


def launch(
    name: str,
    a: Operand,
    b: Operand,
    config: Config,
    out_format: str,
    interpret: bool,
    epilogue: Epilogue | None = None,
) -> jax.Array:
    """a·bᵀ times their tensor scales, M×N of `out_format`; the problem has passed `check_dense`.

    Raises ValueError for an epilogue of another shape, UnsupportedError for one that shared memory has no room for.
    """
    qa, qb = as_quantized(a), as_quantized(b)
    (m, k), n = qa.shape, qb.shape[0]
    out_dtype = format_named(out_format).element.dtype
    tile_k = STAGE_K_BYTES // qa.codes.dtype.itemsize
    grid = (
        pl.cdiv(m, config.tile_m * config.cluster_m),
        pl.cdiv(n, config.tile_n * config.cluster_n),
        pl.cdiv(k, tile_k),
    )
    problem, epilogue = GemmProblem(m, n, k, qa.format, qb.format, out_format), epilogue or Epilogue()
    epilogue.check(problem)
    _wgmma_epilogue.check_room(name, problem, config, epilogue)
    columns = _wgmma_epilogue.columns_at_once(config, out_dtype.itemsize, epilogue)
    clusters = _mosaic_gpu.core_count(interpret) // (config.cluster_m * config.cluster_n)
    buffer = functools.partial(_mosaic_gpu.tile_buffer, interpret=interpret)
    kernel = plgpu.kernel(
        functools.partial(_sorted, epilogue=epilogue, config=config, grid=grid, interpret=interpret),
        out_type=jax.ShapeDtypeStruct((m, n), out_dtype),
        grid=(max(1, min(clusters, grid[0] * grid[1])),),
        grid_names=("clusters",),
        cluster=(config.cluster_m, config.cluster_n),
        cluster_names=("cluster_m", "cluster_n"),
        num_threads=CONSUMERS + 1,
        thread_name="role",
        scratch_types=(
            buffer(config.stages, config.tile_m, qa.codes.dtype, columns=tile_k),
            buffer(config.stages, config.tile_n, qb.codes.dtype, columns=tile_k),
            buffer(CONSUMERS * 2, STORE_ROWS, out_dtype, columns=columns),
            plgpu.Barrier(num_arrivals=2, num_barriers=config.stages * CONSUMERS // consumers_of_a_tile(config)),
            _empty_barrier(config),
            *_wgmma_epilogue.scratch(config, epilogue),
        ),
        compiler_params=_wgmma_epilogue.compiler_params(epilogue),
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
    )
    scales = (scale_operand(qa.tensor_scale), scale_operand(qb.tensor_scale))
    result: jax.Array = kernel(qa.codes, qb.codes, *scales, *(jnp.atleast_1d(x) for x in jax.tree.leaves(epilogue)))
    return result


def _sorted(*refs: Any, epilogue: Epilogue, config: Config, grid: tuple[int, int, int], interpret: bool) -> None:
    """`_body` of references in a kernel's order: operands, the epilogue's, the output, scratch, the epilogue's."""
    leaves, structure = jax.tree.flatten(epilogue)
    out = 4 + len(leaves)
    vectors = len(refs) - len(_wgmma_epilogue.scratch(config, epilogue))
    operands = jax.tree.unflatten(structure, refs[4:out])
    finish = _wgmma_epilogue.Finish(operands, refs[vectors:], config, refs[out].dtype, interpret)
    _body(*refs[:4], *refs[out:vectors], config=config, grid=grid, interpret=interpret, finish=finish)


def _empty_barrier(config: Config) -> Any:
    arrivals, stages = consumers_of_a_tile(config), config.stages
    axes = tuple(axis for axis in ("cluster_m", "cluster_n") if getattr(config, axis) > 1)
    if axes:
        return plgpu.ClusterBarrier(collective_axes=axes, num_arrivals=arrivals, num_barriers=stages)
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=stages)


def _body(  # noqa: C901 (the device code of one kernel; its closures are its phases)
    a_gmem: Any,
    b_gmem: Any,
    a_scale_gmem: Any,
    b_scale_gmem: Any,
    out_gmem: Any,
    a_buffer: Any,
    b_buffer: Any,
    out_buffer: Any,
    full: Any,
    empty: Any,
    *,
    config: Config,
    grid: tuple[int, int, int],
    interpret: bool,
    finish: _wgmma_epilogue.Finish,
) -> None:
    """The kernel of one thread block; `grid` is the cluster tiles in M and in N and the K steps of a tile."""
    m_tiles, n_tiles, k_steps = grid
    (a_tma, a_smem), (b_tma, b_smem), (out_tma, out_smem) = (
        _mosaic_gpu.views(buffer, interpret) for buffer in (a_buffer, b_buffer, out_buffer)
    )
    m_wg, n_wg = consumer_tile(config)
    tile_k, columns = a_smem.shape[-1], out_smem.shape[-1]
    role = lax.axis_index("role")
    in_turn = config.split is None

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def full_of(turn: jax.Array, step: jax.Array) -> Any:
        return full.at[stage_of(step) + (turn * config.stages if in_turn else 0)]

    def origin(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        raster = 0 if config.raster == "m" else 1
        tile_m, tile_n = plgpu.planar_snake(index, (m_tiles, n_tiles), raster, config.raster_width)
        row = (tile_m * config.cluster_m + lax.axis_index("cluster_m")) * config.tile_m
        column = (tile_n * config.cluster_n + lax.axis_index("cluster_n")) * config.tile_n
        return row, column

    def for_each_tile(visit: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], None]) -> jax.Array:
        """Call visit(whose turn, first step, row, column) for the tiles of this cluster; return the steps in all."""

        @plgpu.nd_loop((m_tiles * n_tiles,), collective_axes="clusters", init_carry=jnp.int32(0))
        def tiles(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
            visit(lax.rem(carry, jnp.int32(CONSUMERS)), carry * k_steps, *origin(loop.index[0]))
            return carry + 1

        steps: jax.Array = tiles * k_steps
        return steps

    @pl.when(role == CONSUMERS)
    def _produce() -> None:
        plgpu.set_max_registers(PRODUCER_REGISTERS, action="decrease")

        def load_tile(turn: jax.Array, first_step: jax.Array, row: jax.Array, column: jax.Array) -> None:
            @pl.loop(0, k_steps)
            def _load(k_step: jax.Array) -> None:
                step = first_step + k_step
                slot, k_slice = stage_of(step), pl.ds(k_step * tile_k, tile_k)
                pl.when(step >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                plgpu.copy_gmem_to_smem(
                    a_gmem.at[pl.ds(row, config.tile_m), k_slice],
                    a_tma.at[slot],
                    full_of(turn, step),
                    collective_axes="cluster_n" if config.cluster_n > 1 else None,
                )
                plgpu.copy_gmem_to_smem(
                    b_gmem.at[pl.ds(column, config.tile_n), k_slice],
                    b_tma.at[slot],
                    full_of(turn, step),
                    collective_axes="cluster_m" if config.cluster_m > 1 else None,
                )

            finish.load(turn, first_step, k_steps, column)

        steps = for_each_tile(load_tile)

        @pl.loop(jnp.maximum(steps - config.stages, 0), steps)
        def _drain(step: jax.Array) -> None:
            plgpu.barrier_wait(empty.at[stage_of(step)])

        finish.drain(steps, k_steps)

    @pl.when(role < CONSUMERS)
    def _consume() -> None:
        plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        scale = a_scale_gmem[0] * b_scale_gmem[0]
        row_in_tile = role * m_wg if config.split == "m" else 0
        column_in_tile = role * n_wg if config.split == "n" else 0
        inverse_out_scale = finish.inverse_out_scale()

        def store(result: jax.Array, turn: jax.Array, row: jax.Array, column: jax.Array, factors: list[Any]) -> None:
            parts = [(i, min(j, n_wg - columns)) for i in range(0, m_wg, STORE_ROWS) for j in range(0, n_wg, columns)]
            for part, (i, j) in enumerate(parts):
                # Where the width does not divide, a row's last part writes columns again: the part before lands first.
                again = j % columns != 0
                # An odd number of parts leaves the first staging tile in use by the last part of the tile before.
                taken = part == 0 and len(parts) % 2 == 1
                plgpu.wait_smem_to_gmem(0 if again or taken else 1, wait_read_only=not again)
                staged = role * 2 + part % 2
                part_of_tile = result[i : i + STORE_ROWS, j : j + columns]
                place, factor = (row + i, column + j), factors[i // STORE_ROWS]
                values = finish(part_of_tile, factor, inverse_out_scale, turn, place, column_in_tile + j)
                out_smem[staged] = _mosaic_gpu.saturating_cast(values, out_smem.dtype, interpret)
                plgpu.commit_smem()
                part_of_c = out_gmem.at[pl.ds(row + i, STORE_ROWS), pl.ds(column + j, columns)]
                plgpu.copy_smem_to_gmem(out_tma.at[staged], part_of_c)

        def compute_tile(turn: jax.Array, first_step: jax.Array, row: jax.Array, column: jax.Array) -> None:
            factors = finish.row_factors(row + row_in_tile, m_wg, scale)

            def accumulate(acc: Any) -> None:
                @pl.loop(0, k_steps)
                def _multiply(k_step: jax.Array) -> None:
                    step = first_step + k_step
                    plgpu.barrier_wait(full_of(turn, step))
                    a_part = a_smem.at[stage_of(step), pl.ds(row_in_tile, m_wg)]
                    b_part = b_smem.at[stage_of(step), pl.ds(column_in_tile, n_wg)]
                    plgpu.wgmma(acc, a_part, b_part.T)
                    # One wgmma stays in flight; the one before it has now read its stage.
                    plgpu.wgmma_wait(1)
                    pl.when(k_step > 0)(lambda: plgpu.barrier_arrive(empty.at[stage_of(step - 1)]))

                result = acc[...]
                plgpu.barrier_arrive(empty.at[stage_of(first_step + k_steps - 1)])
                finish.wait(turn)
                store(result, turn, row + row_in_tile, column + column_in_tile, factors)
                finish.leave(turn)

            pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((m_wg, n_wg), jnp.float32))

        def visit(turn: jax.Array, first_step: jax.Array, row: jax.Array, column: jax.Array) -> None:
            mine = role == turn if in_turn else True
            pl.when(mine)(lambda: compute_tile(turn, first_step, row, column))

        for_each_tile(visit)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
