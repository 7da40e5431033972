"""C = scale · A·Bᵀ on Hopper's wgmma: what the dense `hopper_wgmma_*` kernels share.

A (M×K) and B (N×K) have K contiguous, so that TMA brings both into shared memory swizzled as wgmma wants them. The grid
is persistent: a cluster of thread blocks walks over many output tiles, in a rasterised order that keeps the operands of
neighbouring tiles in the L2.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers (0, 1)  multiply from shared memory, scale, convert and store. Cooperative: they split each tile. Ping-pong:
                    they take whole tiles in turn, so that one stores while the other multiplies;
  producer  (2)     issues the TMA loads of all K steps of all tiles in order, as far ahead as there are stages.
Some configs have three consumers (0, 1, 2), of fewer registers each, and the producer behind them.

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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu, _wgmma_epilogue
from narrowgemm.gemm._hopper import REGISTERS, scale_operand
from narrowgemm.gemm._hopper_space import (
    STAGE_K_BYTES,
    STORE_ROWS,
    Config,
    consumer_tile,
    consumers_of_a_tile,
)
from narrowgemm.gemm._hopper_walks import OneProduct, Place
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.problem import GemmProblem


@dataclass(frozen=True)
class Tile:
    """What a consumer computes: `shape` of C from `row` and `column` on, in `k_steps` steps.

    stages:   how many there are; steps take them in turn.
    stage_of: the stage of step number k of the tile.
    wait:     waits for a stage, once a step.
    operands: references to the tile's rows of A and of B in a stage.
    leave:    gives a stage back.
    """

    row: jax.Array
    column: jax.Array
    shape: tuple[int, int]
    k_steps: int
    stages: int
    stage_of: Callable[[Any], jax.Array]
    wait: Callable[[jax.Array], None]
    operands: Callable[[jax.Array], tuple[Any, Any]]
    leave: Callable[[jax.Array], None]


@dataclass(frozen=True)
class Accumulation:
    """How a tile's products become its FP32 sums.

    scales: what the kernel reads of an operand beside its codes.
    sums:   a tile, references to those of A and of B, and `interpret` -> the sums, in wgmma's layout.
    are_scaled: whether the sums have all scales; else they lack the product of two tensor scales.
    """

    scales: Callable[[QuantizedArray], jax.Array]
    sums: Callable[[Tile, Any, Any, bool], jax.Array]
    are_scaled: bool


def _in_tensor_core(tile: Tile, a_scale: Any, b_scale: Any, interpret: bool) -> jax.Array:
    """All of K in the tensor core's accumulator."""
    del a_scale, b_scale, interpret

    def accumulate(acc: Any) -> jax.Array:
        @pl.loop(0, tile.k_steps)
        def _multiply(k_step: jax.Array) -> None:
            tile.wait(tile.stage_of(k_step))
            a_part, b_part = tile.operands(tile.stage_of(k_step))
            plgpu.wgmma(acc, a_part, b_part.T)
            # One wgmma stays in flight; the one before it has now read its stage.
            plgpu.wgmma_wait(1)
            pl.when(k_step > 0)(lambda: tile.leave(tile.stage_of(k_step - 1)))

        sums: jax.Array = acc[...]
        tile.leave(tile.stage_of(tile.k_steps - 1))
        return sums

    result: jax.Array = pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef(tile.shape, jnp.float32))
    return result


#: One sum over all of K, to be multiplied by both tensor scales.
ONE_SUM = Accumulation(lambda operand: scale_operand(operand.tensor_scale), _in_tensor_core, are_scaled=False)


def launch(
    name: str,
    a: Operand,
    b: Operand,
    config: Config,
    out_format: str,
    interpret: bool,
    epilogue: Epilogue | None = None,
    accumulation: Accumulation = ONE_SUM,
) -> jax.Array:
    """a·bᵀ times their scales, M×N of `out_format`; the problem has passed the kernel's `check`.

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
    walk = OneProduct(config, grid)
    kernel = kernel_of(
        name,
        functools.partial(_sorted, epilogue, walk, config=config, interpret=interpret, accumulation=accumulation),
        jax.ShapeDtypeStruct((m, n), out_dtype),
        grid[0] * grid[1],
        config,
        (
            *scratch(config, (qa.codes.dtype, qb.codes.dtype, out_dtype), columns, interpret),
            *_wgmma_epilogue.scratch(config, epilogue),
        ),
        interpret,
        compiler_params=_wgmma_epilogue.compiler_params(epilogue),
    )
    scales = (accumulation.scales(qa), accumulation.scales(qb))
    result: jax.Array = kernel(qa.codes, qb.codes, *scales, *(jnp.atleast_1d(x) for x in jax.tree.leaves(epilogue)))
    return result


def _sorted(epilogue: Epilogue, walk: OneProduct, *refs: Any, config: Config, interpret: bool, **how: Any) -> None:
    """`body` of references in a kernel's order: operands, the epilogue's, the output, scratch, the epilogue's."""
    leaves, structure = jax.tree.flatten(epilogue)
    out = 4 + len(leaves)
    vectors = len(refs) - len(_wgmma_epilogue.scratch(config, epilogue))
    operands = jax.tree.unflatten(structure, refs[4:out])
    finish = _wgmma_epilogue.Finish(operands, refs[vectors:], config, refs[out].dtype, interpret)
    body(*refs[:4], *refs[out:vectors], config=config, walk=walk, interpret=interpret, finish=finish, **how)


def kernel_of(
    name: str,
    kernel: Callable[..., None],
    out: jax.ShapeDtypeStruct,
    tiles: int,
    config: Config,
    scratch_types: tuple[Any, ...],
    interpret: bool,
    **parameters: Any,
) -> Callable[..., jax.Array]:
    """The kernel as a function of arrays: clusters for at most so many cluster tiles, each of blocks with all roles."""
    clusters = _mosaic_gpu.core_count(interpret) // (config.cluster_m * config.cluster_n)
    launched: Callable[..., jax.Array] = plgpu.kernel(
        kernel,
        out_type=out,
        grid=(max(1, min(clusters, tiles)),),
        grid_names=("clusters",),
        cluster=(config.cluster_m, config.cluster_n),
        cluster_names=("cluster_m", "cluster_n"),
        num_threads=config.consumers + 1,
        thread_name="role",
        scratch_types=scratch_types,
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
        **parameters,
    )
    return launched


def scratch(config: Config, dtypes: tuple[Any, Any, Any], columns: int, interpret: bool) -> tuple[Any, ...]:
    """Stages of A and B, the staging tiles of C, so many columns wide, and the barriers of the stages."""
    a, b, out = dtypes
    buffer = functools.partial(_mosaic_gpu.tile_buffer, interpret=interpret)
    return (
        buffer(config.stages, config.tile_m, a, columns=STAGE_K_BYTES // a.itemsize),
        buffer(config.stages, config.tile_n, b, columns=STAGE_K_BYTES // b.itemsize),
        buffer(config.consumers * 2, STORE_ROWS, out, columns=columns),
        plgpu.Barrier(num_arrivals=2, num_barriers=config.stages * config.consumers // consumers_of_a_tile(config)),
        _empty_barrier(config),
    )


def _empty_barrier(config: Config) -> Any:
    arrivals, stages = consumers_of_a_tile(config), config.stages
    axes = tuple(axis for axis in ("cluster_m", "cluster_n") if getattr(config, axis) > 1)
    if axes:
        return plgpu.ClusterBarrier(collective_axes=axes, num_arrivals=arrivals, num_barriers=stages)
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=stages)


def body(  # noqa: C901 (the device code of one kernel; its closures are its phases)
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
    walk: OneProduct,
    interpret: bool,
    finish: _wgmma_epilogue.Finish,
    accumulation: Accumulation = ONE_SUM,
) -> None:
    """The kernel of one thread block."""
    k_steps = walk.grid[2]
    (a_tma, a_smem), (b_tma, b_smem), (out_tma, out_smem) = (
        _mosaic_gpu.views(buffer, interpret) for buffer in (a_buffer, b_buffer, out_buffer)
    )
    m_wg, n_wg = consumer_tile(config)
    tile_k, columns = a_smem.shape[-1], out_smem.shape[-1]
    role = lax.axis_index("role")
    in_turn = config.split is None
    consumer_registers, producer_registers = REGISTERS[config.consumers]

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def full_of(turn: jax.Array, slot: jax.Array) -> Any:
        return full.at[slot + (turn * config.stages if in_turn else 0)]

    @pl.when(role == config.consumers)
    def _produce() -> None:
        plgpu.set_max_registers(producer_registers, action="decrease")

        def load_tile(place: Place) -> None:
            @pl.loop(0, k_steps)
            def _load(k_step: jax.Array) -> None:
                step = place.first_step + k_step
                slot, k_slice = stage_of(step), pl.ds(k_step * tile_k, tile_k)
                pl.when(step >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                plgpu.copy_gmem_to_smem(
                    walk.a_of(a_gmem, place).at[pl.ds(place.row, config.tile_m), k_slice],
                    a_tma.at[slot],
                    full_of(place.turn, slot),
                    collective_axes="cluster_n" if config.cluster_n > 1 else None,
                )
                plgpu.copy_gmem_to_smem(
                    walk.b_of(b_gmem, place).at[pl.ds(place.column, config.tile_n), k_slice],
                    b_tma.at[slot],
                    full_of(place.turn, slot),
                    collective_axes="cluster_m" if config.cluster_m > 1 else None,
                )

            finish.load(place.turn, place.first_step, k_steps, place.column)

        walk.begin()
        steps, _ = walk.for_each(load_tile)

        @pl.loop(jnp.maximum(steps - config.stages, 0), steps)
        def _drain(step: jax.Array) -> None:
            plgpu.barrier_wait(empty.at[stage_of(step)])

        finish.drain(steps, k_steps)

    @pl.when(role < config.consumers)
    def _consume() -> None:
        plgpu.set_max_registers(consumer_registers, action="increase")
        scale = (lambda _: jnp.float32(1.0)) if accumulation.are_scaled else walk.scale(a_scale_gmem, b_scale_gmem)
        row_in_tile = role * m_wg if config.split == "m" else 0
        column_in_tile = role * n_wg if config.split == "n" else 0
        inverse_out_scale = finish.inverse_out_scale()

        def store(result: jax.Array, place: Place, factors: list[Any]) -> None:
            row, column = place.row + row_in_tile, place.column + column_in_tile
            parts = [(i, min(j, n_wg - columns)) for i in range(0, m_wg, STORE_ROWS) for j in range(0, n_wg, columns)]

            def store_part(staged: jax.Array, i: int, j: int) -> None:
                part_of_tile, at = result[i : i + STORE_ROWS, j : j + columns], (row + i, column + j)
                factor = factors[i // STORE_ROWS]
                values = finish(part_of_tile, factor, inverse_out_scale, place.turn, at, column_in_tile + j)
                out_smem[staged] = _mosaic_gpu.saturating_cast(values, out_smem.dtype, interpret)
                plgpu.commit_smem()
                walk.put(out_tma, staged, out_gmem, place, *at)

            for part, (i, j) in enumerate(parts):
                # Where the width does not divide, a row's last part writes columns again: the part before lands first.
                again = j % columns != 0
                # An odd number of parts leaves the first staging tile in use by the last part of the tile before.
                taken = part == 0 and len(parts) % 2 == 1
                miscounted = interpret and not walk.one_copy_a_part
                plgpu.wait_smem_to_gmem(0 if again or taken or miscounted else 1, wait_read_only=not again)
                walk.where_stored(place, row + i, functools.partial(store_part, role * 2 + part % 2, i, j))

        def compute_tile(place: Place) -> None:
            factors = finish.row_factors(place.row + row_in_tile, m_wg, scale(place))

            def operands(slot: jax.Array) -> tuple[Any, Any]:
                return a_smem.at[slot, pl.ds(row_in_tile, m_wg)], b_smem.at[slot, pl.ds(column_in_tile, n_wg)]

            tile = Tile(
                row=place.row + row_in_tile,
                column=place.column + column_in_tile,
                shape=(m_wg, n_wg),
                k_steps=k_steps,
                stages=config.stages,
                stage_of=lambda k_step: stage_of(place.first_step + k_step),
                wait=lambda slot: plgpu.barrier_wait(full_of(place.turn, slot)),
                operands=operands,
                leave=lambda slot: plgpu.barrier_arrive(empty.at[slot]),
            )
            sums = accumulation.sums(tile, a_scale_gmem, b_scale_gmem, interpret)
            finish.wait(place.turn)
            store(sums, place, factors)
            finish.leave(place.turn)

        def visit(place: Place) -> None:
            mine = role == place.turn if in_turn else True
            pl.when(mine)(lambda: compute_tile(place))

        _, rows = walk.for_each(visit)
        walk.end(rows, out_smem.at[role * 2], out_tma.at[role * 2], out_gmem, role)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
