"""C = scale · A·Bᵀ on Hopper, B folded FP4 or FP6 weights: the kernel of `hopper_wgmma_w4a8_folded`, `_w6a8_folded`.

The operands are swapped: a block computes a tile of Cᵀ = B·Aᵀ, so that the weights are wgmma's left operand, which may
come from registers, and the rows of A are the dimension of it that goes from 8 to 256. The weights travel as 4 or 6
bits and are widened in registers to FP8 (`_folded_widening`, `_folded_fp6_widening`), each row short of one factor, so
that the tensor core adds over all of K.

Where there are fewer tiles than multiprocessors, `splits` parts of K are computed side by side by the blocks of a
cluster. At the end each block but the owner sends its FP32 sums into the owner's shared memory, and the owner adds them
to its own in the order of the parts: the same bits on every run. Block c of a cluster owns the rows of consumer c.

Without splits the grid is persistent, and loads of the next tile run ahead while a tile is stored; two blocks of a
cluster may then take tiles side by side in N and each load half of the rows of A for both. Or, where the last wave
would leave half of the blocks idle, `tail_splits` blocks, which had tiles of their own until then, take parts of K of
one of its tiles. A cluster divides one tile at the most, its last: nobody sends into shared memory that an earlier tile
still uses.

Roles of a thread block, each one a Pallas thread (a warpgroup of 128):
  consumers (0, 1)  64 of N each (a tile of 64 has one alone): words -> registers -> widened -> wgmma with A from shared
                    memory; exchange, scale, convert, transpose into shared memory, store by TMA. A step's wgmmas stay
                    in flight while the next step is widened, so steps are taken two by two with registers of their
                    own; what is missing to a multiple of two is filled up by steps outside of K, which TMA makes zeros
                    of. With `groups` = 4 a step's first block of K is multiplied while its next ones are widened;
            (then)  with `pairs` = 2: as many more of the same rows. The pairs take two steps in turn, so that one
                    widens while the other waits; at the end of a tile the second hands its sums to the first, which
                    stores the total. Stages are then a multiple of four, so that a stage's barrier is always waited for
                    by one pair;
  producer  (last)  issues the TMA loads of all steps of all tiles in order, as far ahead as there are stages.

Barriers:
  full   one a stage of 128 of K; 2 arrivals: the copies of the weights' two tiles and of A. Both consumers wait for it.
  empty  one a stage; an arrival a consumer, in every block of the cluster that shares A, once the wgmmas of the step
         have read A: its words are in registers since long. The producer waits for it, and at the end once more for
         every stage in use: no block leaves a cluster while a partner can still reach it.
  handed, taken  one a consumer of the first pair, with two pairs only; an arrival of its partner, whose sums lie in
         shared memory, and of itself, once they have been added. The partner waits for `taken` before the next tile's.
  sent   one, where K is divided; an arrival, with its bytes, from every other block of the cluster. The owner waits for
         it: it may then read, and no block ends while another still writes to it.
Of a consumer's two staging tiles one is written again when the store before the last has been read out.

Edges need no code of their own: TMA fills with zeros what lies outside A, drops what lies outside C, and the folded
weights are padded with zeros.

JAX interprets neither the register code, nor wgmma with a left operand in registers, nor a store into another block's
shared memory. In the interpreter a plain product with the tile's values stands in for the first two, and sums pass
through an array in global memory, `sent` being a barrier of the cluster at which all consumers arrive.

Source of the idea: Marlin (arXiv:2408.11743) for weights in fragment order; folding them is this library's own.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.fold import FoldedWeights, tile_values
from narrowgemm.formats.fold_words import TILE_K, TILE_ROWS, tiles_shape
from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _hopper_sums, _mosaic_gpu, _wgmma_folded, _wgmma_ptx, _wgmma_store
from narrowgemm.gemm._hopper import REGISTERS, scale_operand
from narrowgemm.gemm._hopper_folded_space import (
    Config,
    place_of,
    store_columns,
    store_rows,
)
from narrowgemm.gemm._hopper_parts import tail_tiles
from narrowgemm.gemm._hopper_sums import Finish
from narrowgemm.gemm._hopper_work import Work, empty_barrier, for_each_work
from narrowgemm.gemm._wgmma_epilogue import load_clamped
from narrowgemm.tiling import ceil_div

#: A row's factor beyond it, or below its inverse, is applied in two parts, of which one is its square.
FAR = 2.0**32


def launch(name: str, a: Operand, b: Any, config: Config, out_format: str, interpret: bool) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ times their scales, M×N of `out_format`; the problem has passed `check_folded`."""
    qa = as_quantized(a)
    if not isinstance(b, FoldedWeights):
        rule, remedy = "has block scales apart from its weights", "pass narrowgemm.fold_weights(b), made once, off-line"
        raise UnsupportedError(name, {"b": type(b).__name__}, rule, remedy)
    (m, k), n = qa.shape, b.shape[0]
    out = jax.ShapeDtypeStruct((m, n), format_named(out_format).element.dtype)
    tiles, k_steps = (ceil_div(m, config.tile_m), ceil_div(n, config.tile_n * config.cluster_n)), ceil_div(k, TILE_K)
    count, cores = tiles[0] * tiles[1], _mosaic_gpu.core_count(interpret)
    tail = tail_tiles(count, config.parts, cores) if config.tail_splits > 1 else 0
    clusters = count if config.splits > 1 else max(1, cores // (config.cluster_n * config.parts))
    passed = [_interpreted_exchange(config, count)] if interpret and config.parts > 1 else []
    kernel = plgpu.kernel(
        functools.partial(
            _body, fmt=b.format, config=config, tiles=tiles, tail=tail, k_steps=k_steps, interpret=interpret
        ),
        out_type=(out, *passed),
        grid=(min(ceil_div(count - tail, config.tail_splits) + tail, clusters),),
        grid_names=("clusters",),
        cluster=(config.parts, config.cluster_n),
        cluster_names=("parts", "cluster_n"),
        num_threads=config.consumers + 1,
        thread_name="role",
        scratch_types=_scratch(config, qa, b.format, out.dtype, interpret),
        interpret=_mosaic_gpu.interpret_params(interpret),
        kernel_name=name,
    )
    result: jax.Array = kernel(b.tiles, b.factors, qa.codes, scale_operand(qa.tensor_scale))[0]
    return result


def _interpreted_exchange(config: Config, tiles: int) -> jax.ShapeDtypeStruct:
    """What stands for `received` of every cluster and consumer in the interpreter."""
    return jax.ShapeDtypeStruct((tiles, config.abreast, config.parts - 1, TILE_ROWS, config.tile_m), jnp.float32)


def _scratch(config: Config, a: QuantizedArray, fmt: str, out_dtype: Any, interpret: bool) -> dict[str, Any]:
    words = tiles_shape((TILE_ROWS, TILE_K), fmt)[2:]
    columns, rows = store_columns(out_dtype.itemsize), store_rows(config.tile_m)
    swizzle = plgpu.SwizzleTransform(columns * out_dtype.itemsize)  # type: ignore[abstract]
    staged = (config.abreast * 2 * TILE_ROWS // columns, rows, columns)
    scratch = {
        "packed_smem": plgpu.SMEM((config.stages, config.abreast, *words), jnp.uint32),
        "a_buffer": _mosaic_gpu.tile_buffer(config.stages, config.tile_m, a.codes.dtype, interpret, columns=TILE_K),
        "out_smem": plgpu.SMEM(staged, out_dtype, transforms=(swizzle,)),
        "full": plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
        "empty": empty_barrier(config.stages, config.abreast, "cluster_n" if config.cluster_n > 1 else None),
    }
    if config.pairs > 1:
        scratch["sums"] = plgpu.SMEM((config.abreast, TILE_ROWS, config.tile_m), jnp.float32)
        scratch["handed"] = plgpu.Barrier(num_arrivals=1, num_barriers=config.abreast)
        scratch["taken"] = plgpu.Barrier(num_arrivals=1, num_barriers=config.abreast)
    if config.parts > 1 and interpret:
        arrivals = config.abreast
        scratch["sent"] = plgpu.ClusterBarrier(collective_axes=("parts",), num_arrivals=arrivals, num_barriers=1)
    elif config.parts > 1:
        scratch["sent"] = plgpu.Barrier(num_arrivals=config.parts - 1)
        scratch["received"] = plgpu.SMEM((config.parts - 1, TILE_ROWS, config.tile_m), jnp.float32)
    return scratch


def _body(  # noqa: C901 (the device code of one kernel; its closures are its phases)
    tiles_gmem: Any,
    factors_gmem: Any,
    a_gmem: Any,
    a_scale_gmem: Any,
    out_gmem: Any,
    exchange_gmem: Any = None,
    *,
    packed_smem: Any,
    a_buffer: Any,
    out_smem: Any,
    full: Any,
    empty: Any,
    sums: Any = None,
    handed: Any = None,
    taken: Any = None,
    sent: Any = None,
    received: Any = None,
    fmt: str,
    config: Config,
    tiles: tuple[int, int],
    tail: int,
    k_steps: int,
    interpret: bool,
) -> None:
    """The kernel of one thread block; `tiles` counts those of C in M, and in N those of a cluster.

    tail: how many of all tiles, the last ones, are divided among the blocks of a cluster.
    """
    a_tma, a_smem = _mosaic_gpu.views(a_buffer, interpret)
    role, part = lax.axis_index("role"), lax.axis_index("parts")
    consumers, abreast = config.consumers, config.abreast
    half, pair = (role, jnp.int32(0)) if config.pairs == 1 else (lax.rem(role, abreast), role // abreast)
    # Each pair takes two steps a round.
    round_steps = 2 * config.pairs

    def step_of(done: jax.Array, number: jax.Array | int) -> jax.Array:
        """The step that is this pair's own step number `number` of a tile."""
        if config.pairs == 1:
            return done + number
        return done + (number // 2 * config.pairs + pair) * 2 + lax.rem(jnp.int32(number), 2)

    def stage_of(step: jax.Array) -> jax.Array:
        return lax.rem(step, jnp.int32(config.stages))

    def for_each_tile(visit: Callable[[Work, jax.Array, jax.Array], None]) -> jax.Array:
        """Call visit(work, number of the tile in M, and in N) for the tiles of this block; return the steps in all."""

        def visit_place(work: Work) -> None:
            tile_m, cluster_tile = place_of(work.tile, tiles, config.tile_m)
            visit(work, tile_m, cluster_tile * config.cluster_n + lax.axis_index("cluster_n"))

        counts = (tiles[0] * tiles[1] - tail, tail)
        parts = (config.splits, config.tail_splits)
        return for_each_work(visit_place, counts, parts, k_steps, blocks=config.parts, unit=round_steps)

    @pl.when(role == consumers)
    def _produce() -> None:
        if consumers > 1:
            plgpu.set_max_registers(REGISTERS[consumers][1], action="decrease")

        def load_tile(work: Work, tile_m: jax.Array, tile_n: jax.Array) -> None:
            @pl.loop(0, work.loaded)
            def _load(i: jax.Array) -> None:
                slot, k_step = stage_of(work.done + i), work.step(i, k_steps)
                pl.when(work.done + i >= config.stages)(lambda: plgpu.barrier_wait(empty.at[slot]))
                weights = tiles_gmem.at[pl.ds(tile_n * abreast, abreast), k_step]
                plgpu.copy_gmem_to_smem(weights, packed_smem.at[slot], full.at[slot])
                activations = a_gmem.at[pl.ds(tile_m * config.tile_m, config.tile_m), pl.ds(k_step * TILE_K, TILE_K)]
                plgpu.copy_gmem_to_smem(
                    activations,
                    a_tma.at[slot],
                    full.at[slot],
                    collective_axes="cluster_n" if config.cluster_n > 1 else None,
                )

        total = for_each_tile(load_tile)

        @pl.loop(jnp.maximum(total - config.stages, 0), total)
        def _drain(step: jax.Array) -> None:
            plgpu.barrier_wait(empty.at[stage_of(step)])

    @pl.when(role < consumers)
    def _consume() -> None:  # noqa: C901 (as its kernel)
        # A block of two warpgroups is launched with all the registers that a thread can have.
        if consumers > 1:
            plgpu.set_max_registers(REGISTERS[consumers][0], action="increase")
        scale = a_scale_gmem[0]
        shape = (TILE_ROWS, config.tile_m)
        rows, columns = store_rows(config.tile_m), out_smem.shape[2]
        across = TILE_ROWS // columns

        def leave(step: jax.Array) -> None:
            # One thread tells the other block, for all of the warpgroup; in its own block each tells for itself. The
            # interpreter also wants a fence: it sees no wgmma that has ended, in which the words are.
            if config.cluster_n > 1 or interpret:
                plgpu.commit_smem()
            plgpu.barrier_arrive(empty.at[stage_of(step)])

        def sums_of(work: Work) -> jax.Array:
            rounds = work.loaded // round_steps

            def two_steps(number: jax.Array, total: jax.Array) -> jax.Array:
                for own in (2 * number, 2 * number + 1):
                    slot = stage_of(step_of(work.done, own))
                    plgpu.barrier_wait(full.at[slot])
                    total = _wgmma_folded.multiply(
                        total, packed_smem.at[slot, half], a_smem.at[slot], fmt, config.groups
                    )
                    # This step's wgmmas stay in flight; those of the step before have now read theirs.
                    plgpu.wgmma_wait(config.groups)
                    pl.when(own > 0)(functools.partial(leave, step_of(work.done, own - 1)))
                return total

            total = lax.fori_loop(0, rounds, two_steps, _wgmma_ptx.zeros(shape, interpret))
            plgpu.wgmma_wait(0)
            own_sums = _wgmma_folded.finished(total)
            leave(step_of(work.done, 2 * rounds - 1))
            return own_sums

        def interpreted_sums_of(work: Work) -> jax.Array:
            def step(i: jax.Array, total: jax.Array) -> jax.Array:
                slot = stage_of(step_of(work.done, i))
                plgpu.barrier_wait(full.at[slot])
                values = tile_values(packed_smem[slot, half][None, None], fmt)
                total += values @ a_smem[slot].astype(jnp.float32).T
                leave(step_of(work.done, i))
                return total

            result: jax.Array = lax.fori_loop(0, work.loaded // config.pairs, step, jnp.zeros(shape, jnp.float32))
            return result

        def store(total: jax.Array, factors: tuple[jax.Array, jax.Array], row: jax.Array, column: jax.Array) -> None:
            for number, start in enumerate(range(0, config.tile_m, rows)):
                staged = (half * 2 + number % 2) * across
                # An odd number of parts leaves the first staging tile in use by the last part of the tile before.
                taken = number == 0 and config.tile_m // rows % 2 == 1
                plgpu.wait_smem_to_gmem(0 if taken else across, wait_read_only=True)
                values = total[:, start : start + rows]
                near, far = (lax.broadcast_in_dim(factor, values.shape, (0,)) for factor in factors)
                scaled = values * near * far
                narrowed = _mosaic_gpu.saturating_cast(scaled, out_smem.dtype, interpret)
                _wgmma_store.store_transposed(narrowed, out_smem.at[pl.ds(staged, across)], interpret)
                plgpu.commit_smem()
                for j in range(across):
                    target = out_gmem.at[pl.ds(row + start, rows), pl.ds(column + j * columns, columns)]
                    plgpu.copy_smem_to_gmem(out_smem.at[staged + j], target)

        def compute_tile(work: Work, tile_m: jax.Array, tile_n: jax.Array) -> None:
            row, column = tile_m * config.tile_m, (tile_n * abreast + half) * TILE_ROWS
            layout = plgpu.Layout.WGMMA.reduce(1)
            factors = load_clamped(factors_gmem, (column,), (TILE_ROWS,), layout, interpret)
            own = (interpreted_sums_of if interpret else sums_of)(work)
            # Part of a factor that is far from one is taken first, and the rest with A's scale, which may undo it: the
            # sum times either alone can leave FP32 where the result does not.
            near = jnp.where(factors > FAR, FAR * FAR, jnp.where(factors < 1 / FAR, 1 / (FAR * FAR), 1.0))
            far = factors * jnp.where(factors > FAR, 1 / (FAR * FAR), jnp.where(factors < 1 / FAR, FAR * FAR, 1.0))
            finish: Finish = functools.partial(store, factors=(near, far * scale), row=row, column=column)
            if work.is_divided:
                slots = exchange_gmem.at[work.tile, half] if interpret else received
                finish = functools.partial(
                    _hopper_sums.sum_of_parts,
                    place=(part, half),
                    slots=slots,
                    sent=sent,
                    finish=finish,
                    interpret=interpret,
                )
            if config.pairs > 1:
                exchange = (sums.at[half], handed.at[half], taken.at[half])
                _hopper_sums.sum_of_pairs(own, pair, work.done > 0, exchange, finish, interpret)
            else:
                finish(own)

        steps = for_each_tile(compute_tile)
        if config.pairs > 1:
            # Where parts of a tail are asked for and there is none, a block may have had no tile.
            pl.when((pair == 1) & (steps > 0))(lambda: plgpu.barrier_wait(taken.at[half]))
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
