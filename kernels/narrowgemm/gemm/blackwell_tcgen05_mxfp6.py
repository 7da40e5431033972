"""C = A·Bᵀ with one operand in MXFP6 and the other in MXFP8, on Blackwell's tcgen05 (`kind::mxf8f6f4.block_scale`).

A (M×K), B (N×K): one E2M3 or E3M2, four codes in three bytes, the other E4M3 or E5M2; K contiguous, a multiple of 64;
one E8M0 scale for 32 elements of K. C (M×N): BF16, F16, F32 or FP8, rounded once, at the store; its rows are whole 16
bytes.

FP6 travels packed, 0.75 byte an element, and is widened to E4M3 in registers, exactly, on the way to tensor memory,
where the tensor core reads the operand that it takes by rows of 128. What this buys is bytes: a quarter less memory
and traffic than MXFP8 for weights. What it does not buy is FLOP/s, for the tensor core multiplies FP6 at the rate of
FP8, and the widening takes issue slots. A tensor core could read FP6 from shared memory itself, spread by TMA; JAX
lowers neither.

Where B is the FP6 operand the product is computed as Cᵀ = B·Aᵀ, and stored transposed.

Roles of a thread block, which takes tiles as in `_blackwell_tcgen05`:
  warp 0 of warpgroup 0  load      TMA of packed codes, FP8 codes and scales, as far ahead as there are stages;
  warp 1 of warpgroup 0  multiply  issues the MMAs; in a pair only the first block's warp does, for both;
  warpgroup 1            store     tensor memory -> registers -> converted -> shared memory -> TMA store;
  warpgroups 2 and 3     widen     each half of a stage's K: packed codes -> registers -> tensor memory.

Barriers, beside those of `_blackwell_tcgen05` (`loaded` counts FP8 codes and both scales):
  packed[stage]  one arrival, of the block's own copy of packed codes. `widen` waits.
  widened[slot]  one arrival a widening warpgroup, of both blocks of a pair. `multiply` waits. There are SLOTS slots.
  `widen` also waits for consumed[stage] of the step that used its slot before.

In the interpreter, which knows neither the register code (`inline_mgpu`) nor block-scaled MMAs, arrays and a plain MMA
of scaled values stand in for them; all else, barriers and copies included, is as on the GPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.scale_layout import tile_scales
from narrowgemm.formats.spec import E4M3, E8M0, format_named
from narrowgemm.gemm import _blackwell_movement as movement
from narrowgemm.gemm import _blackwell_plan, _mosaic_gpu
from narrowgemm.gemm._blackwell_plan import BLOCK_M, SCALE_TILE_BLOCKS, SCALE_TILE_ROWS, STAGING_TILES, Config, Plan
from narrowgemm.gemm._blackwell_store import drain
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._fp6_widening import PLACEMENT, widen
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem
from narrowgemm.tiling import ceil_div

NAME = "blackwell_tcgen05_mxfp6"
_FP6 = ("mxfp6_e2m3", "mxfp6_e3m2")
_FP8 = ("mxfp8_e4m3", "mxfp8_e5m2")
#: Elements of K in a stage, and the bytes of a row's packed codes.
STEP_K, STEP_PACKED_BYTES = 128, 96
#: Stages of widened codes in tensor memory, of STEP_K / 4 columns each.
SLOTS = 2
WIDENERS = 2
LOAD_WARP, MULTIPLY_WARP = 0, 1
MMA_WARPGROUP, STORE_WARPGROUP, WIDEN_WARPGROUP = 0, 1, 2


def check(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_choices(NAME, config)
    formats: dict[str, object] = {"a_format": problem.a_format, "b_format": problem.b_format}
    if sum(name in _FP6 for name in formats.values()) != 1:
        rule = "are not one MXFP6 and one MXFP8: the operand in tensor memory is the one that is widened"
        raise UnsupportedError(NAME, formats, rule, "quantise one operand to MXFP6 and the other to MXFP8")
    _blackwell_plan.check_rows(NAME, problem)
    columns = _rows_of_fp8(problem)
    tile_n, step = config.tile_n, 16 * config.ctas
    admitted = tile_n in (SCALE_TILE_ROWS, 2 * SCALE_TILE_ROWS) or columns <= tile_n < SCALE_TILE_ROWS
    if tile_n % step or not admitted:
        rule = (
            f"is neither 128 nor 256, the rows of whole tiles of scales, nor a multiple of {step} that covers {columns}"
        )
        raise UnsupportedError(NAME, {"tile_n": tile_n, "ctas": config.ctas}, rule, "use tile_n=128")
    out = format_named(problem.out_format).element
    if problem.a_format in _FP6 and 8 * min(_mosaic_gpu.SWIZZLE_BYTES) > tile_n * out.bits:
        rule = f"makes rows of {tile_n * out.bits // 8} bytes of {problem.out_format}; a swizzled tile has 32 or more"
        raise UnsupportedError(NAME, {"tile_n": tile_n}, rule, f"use tile_n={2 * tile_n}")
    _blackwell_plan.check_shared_memory(NAME, problem.out_format, _plan(problem, config))


def candidates(problem: GemmProblem) -> list[Config]:
    """Configs worth trying for `problem`, best guess first."""
    columns = _rows_of_fp8(problem)
    rows = problem.m + problem.n - columns
    narrow = () if columns > 64 else (64, 32, 16)
    return _blackwell_plan.candidates(functools.partial(check, problem), rows, columns, (256, 128, *narrow))


def _rows_of_fp8(problem: GemmProblem) -> int:
    """Rows of the operand that stays in shared memory: columns of the tensor core's result."""
    return problem.n if problem.a_format in _FP6 else problem.m


def _plan(problem: GemmProblem, config: Config) -> Plan:
    """The plan of an MXFP8 product, but for the packed codes and the room that they take in tensor memory, widened.

    A transposed store holds a column of the piece in each thread: 64 of them leave room in the 128 registers of one of
    512 threads.
    """
    return _blackwell_plan.plan(
        problem.b_format if problem.a_format in _FP6 else problem.a_format,
        problem.out_format,
        config,
        reserved_columns=SLOTS * STEP_K // 4,
        a_row_bytes=STEP_PACKED_BYTES,
        widest_store=64 if problem.b_format in _FP6 else 128,
    )


def matmul(a: QuantizedArray, b: QuantizedArray, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ, one of them MXFP6 and the other MXFP8, as an M×N array of `out_format`."""
    transposed = b.spec.is_packed
    narrow, other = (b, a) if transposed else (a, b)
    out_dtype = format_named(out_format).element.dtype
    problem = GemmProblem(a.shape[0], b.shape[0], a.shape[1], a.format, b.format, out_format)
    plan = _plan(problem, config)
    tiles = (
        ceil_div(narrow.shape[0], config.tile_m),
        ceil_div(other.shape[0], config.tile_n),
        ceil_div(narrow.shape[1], STEP_K),
    )
    clusters = tiles[0] * tiles[1]
    if config.schedule == "static":
        clusters = min(clusters, _mosaic_gpu.core_count(interpret) // config.ctas)
    kernel = plgpu.kernel(
        functools.partial(
            _body, plan=plan, tiles=tiles, element=narrow.spec.element.name, transposed=transposed, interpret=interpret
        ),
        kernel_name=NAME,
        out_type=jax.ShapeDtypeStruct((a.shape[0], b.shape[0]), out_dtype),
        grid=(clusters,),
        grid_names=(_mosaic_gpu.TILE_AXIS,),
        cluster=(config.ctas,),
        cluster_names=(_mosaic_gpu.CTA_AXIS,),
        num_threads=2 + WIDENERS,
        thread_name=_mosaic_gpu.WARPGROUP_AXIS,
        scratch_types=_scratch(plan, other.spec.element.dtype, out_dtype, transposed, interpret),
        interpret=_mosaic_gpu.interpret_params(interpret, config.ctas == 2),
    )
    scales = [tile_scales(q.scales, plan.step_scales) for q in (narrow, other) if q.scales is not None]
    out: jax.Array = kernel(narrow.codes, other.codes, *scales)
    return out


def _scratch(plan: Plan, other_element: Any, out_dtype: Any, transposed: bool, interpret: bool) -> dict[str, Any]:
    config = plan.config
    pair = config.ctas == 2
    buffer = functools.partial(_mosaic_gpu.tile_buffer, interpret=interpret)

    blocks = plan.step_scales // SCALE_TILE_BLOCKS
    row_tiles = (1, plan.b_scale_tiles)
    layout = plgpu.TMEMLayout.SCALES_LAYOUT
    out_tile = (
        plgpu.SMEM((STAGING_TILES, plan.store_n, BLOCK_M), out_dtype)
        if transposed
        else buffer(STAGING_TILES, BLOCK_M, out_dtype, columns=plan.store_n)
    )
    rows = (BLOCK_M, config.block_n) if interpret else ()
    stand_ins = [plgpu.SMEM((config.stages, n, STEP_K), jnp.bfloat16) for n in rows]
    return {
        "packed_smem": plgpu.SMEM((config.stages, BLOCK_M, STEP_PACKED_BYTES), jnp.uint8),
        "other_buffer": buffer(config.stages, config.block_n, other_element, columns=STEP_K),
        "scale_smem": [plgpu.SMEM((config.stages, rows, blocks, 32, 16), E8M0) for rows in row_tiles],
        "scale_tmem": [
            plgpu.TMEM((rows * SCALE_TILE_ROWS, plan.step_scales), E8M0, layout=layout, collective=pair)
            for rows in row_tiles
        ],
        "out_buffer": out_tile,
        "acc_tmem": plgpu.TMEM((BLOCK_M, plan.accumulator_columns), jnp.float32, collective=pair),
        "wide_tmem": plgpu.TMEM((BLOCK_M, SLOTS * STEP_K), E4M3, packed=True, collective=pair),
        "stand_ins": stand_ins,
        "packed": plgpu.Barrier(num_barriers=config.stages),
        "loaded": plgpu.Barrier(num_arrivals=3, num_barriers=config.stages),
        "widened": _mosaic_gpu.tensor_core_barrier(SLOTS, arrivals=WIDENERS, pair=pair),
        "consumed": _mosaic_gpu.tensor_core_barrier(config.stages),
        "finished": _mosaic_gpu.tensor_core_barrier(config.accumulators),
        "drained": _mosaic_gpu.tensor_core_barrier(plan.lag, pair=pair),
    }


def _body(  # noqa: C901 (closures of one kernel, which share its references)
    packed_gmem: Any,
    other_gmem: Any,
    packed_scale_gmem: Any,
    other_scale_gmem: Any,
    out_gmem: Any,
    *,
    plan: Plan,
    tiles: tuple[int, int, int],
    element: str,
    transposed: bool,
    interpret: bool,
    packed_smem: Any,
    other_buffer: Any,
    scale_smem: Any,
    scale_tmem: Any,
    out_buffer: Any,
    acc_tmem: Any,
    wide_tmem: Any,
    stand_ins: Any,
    packed: Any,
    loaded: Any,
    widened: Any,
    consumed: Any,
    finished: Any,
    drained: Any,
) -> None:
    """The kernel of one thread block; `tiles` counts tiles of the packed operand's rows, the other's, and K steps."""
    config = plan.config
    other_tma, other_smem = _mosaic_gpu.views(other_buffer, interpret)
    out_tma, out_smem = _mosaic_gpu.views(out_buffer, interpret or transposed)
    row_tiles, column_tiles, steps = tiles
    pair = config.ctas == 2
    axis = _mosaic_gpu.CTA_AXIS if pair else None
    halves, whole = (plgpu.CopyPartition.PARTITIONED(0), plgpu.CopyPartition.REPLICATED) if pair else (None, None)
    cta = lax.axis_index(_mosaic_gpu.CTA_AXIS)
    warpgroup = lax.axis_index(_mosaic_gpu.WARPGROUP_AXIS)

    def stage_of(count: Any) -> Any:
        return lax.rem(count, jnp.int32(config.stages))

    def block_rows(row: Any) -> Any:
        return pl.ds(*movement.block_rows(config, row, cta))

    def load(turn: Any, row: Any, column: Any) -> None:
        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage = stage_of(count)
            pl.when(count >= config.stages)(lambda: plgpu.barrier_wait(consumed.at[stage]))
            ks = pl.ds(*movement.k_part(ki, STEP_PACKED_BYTES))
            plgpu.copy_gmem_to_smem(packed_gmem.at[block_rows(row), ks], packed_smem.at[stage], packed.at[stage])
            blocks = pl.ds(*movement.k_part(ki, scale_smem[0].shape[2]))
            columns = pl.ds(*movement.b_rows(config, column))
            scale_rows = pl.ds(*movement.a_scale_tiles(config, row))
            scale_columns = pl.ds(*movement.b_scale_tiles(plan, column))
            copies: list[tuple[Any, Any, Any]] = [
                (other_gmem.at[columns, pl.ds(*movement.k_part(ki, STEP_K))], other_tma, halves),
                (packed_scale_gmem.at[scale_rows, blocks], scale_smem[0], halves),
                (other_scale_gmem.at[scale_columns, blocks], scale_smem[1], whole),
            ]
            for source, target, part in copies:
                plgpu.copy_gmem_to_smem(
                    source, target.at[stage], loaded.at[stage], collective_axes=axis, leader_tracked=part
                )

        lax.fori_loop(0, steps, step, None)

    def widen_half(half: int, turn: Any) -> None:
        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage, slot = stage_of(count), lax.rem(count, jnp.int32(SLOTS))
            plgpu.barrier_wait(packed.at[stage])
            pl.when(count >= SLOTS)(lambda: plgpu.barrier_wait(consumed.at[stage_of(count - SLOTS)]))
            width, bytes_ = STEP_K // WIDENERS, STEP_PACKED_BYTES // WIDENERS
            wide = _mosaic_gpu.convert_rows(
                packed_smem.at[stage, :, pl.ds(half * bytes_, bytes_)],
                width,
                E4M3,
                functools.partial(_widen_words, element=element),
                interpret,
            )
            plgpu.async_store_tmem(wide_tmem.at[:, pl.ds(slot * STEP_K + half * width, width)], wide)
            plgpu.commit_tmem()
            plgpu.barrier_arrive(widened.at[slot])

        lax.fori_loop(0, steps, step, None)

    def multiply(turn: Any) -> None:
        accumulator = lax.rem(turn, jnp.int32(config.accumulators))
        acc = acc_tmem.at[:, pl.ds(accumulator * plan.stride, config.tile_n)]
        pl.when(turn >= plan.lag)(lambda: plgpu.barrier_wait(drained.at[lax.rem(turn, jnp.int32(plan.lag))]))

        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage, slot = stage_of(count), lax.rem(count, jnp.int32(SLOTS))
            plgpu.barrier_wait(loaded.at[stage])
            plgpu.barrier_wait(widened.at[slot])
            _mosaic_gpu.scaled_mma(
                acc,
                [wide_tmem.at[:, pl.ds(slot * STEP_K, STEP_K)], other_smem.at[stage]],
                [(smem.at[stage], tmem) for smem, tmem in zip(scale_smem, scale_tmem, strict=True)],
                consumed.at[stage],
                [tile.at[stage] for tile in stand_ins],
                accumulate=ki > 0,
                pair=pair,
            )

        @pl.when(cta == 0)
        def _() -> None:
            lax.fori_loop(0, steps, step, None)
            plgpu.tcgen05_commit_arrive(finished.at[accumulator], collective_axis=axis)

    def store(turn: Any, row: Any, column: Any) -> None:
        layout = plgpu.Layout.TCGEN05_TMEM_NATIVE(1) if transposed else plgpu.Layout.TCGEN05

        def write(loaded_values: Any, staging: Any, first: Any) -> None:
            values = _mosaic_gpu.saturating_cast(
                loaded_values * jnp.float32(2.0 ** PLACEMENT[element][1]), out_smem.dtype, interpret
            )
            columns = pl.ds(*movement.c_columns(plan, column, first, plan.store_n))
            if transposed:
                _mosaic_gpu.store_transposed(values, out_smem.at[staging], interpret)
                target = out_gmem.at[columns, block_rows(row)]
            else:
                out_smem[staging] = values
                target = out_gmem.at[block_rows(row), columns]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out_tma.at[staging], target)

        read = functools.partial(plgpu.async_load_tmem, layout=layout)
        drain(plan, turn, acc_tmem, finished, drained, read, write)

    @_mosaic_gpu.tile_loop(row_tiles * column_tiles, config.schedule == "dynamic")  # type: ignore[untyped-decorator]
    def tiles_done(info: Any, carry: Any) -> Any:
        row, column = config.position(info.index[0], row_tiles, column_tiles)
        turn = info.local_index

        @pl.when(warpgroup == MMA_WARPGROUP)
        def _() -> None:
            @plgpu.warp_map
            def _(warp: Any) -> None:
                pl.when(warp == LOAD_WARP)(lambda: load(turn, row, column))
                pl.when(warp == MULTIPLY_WARP)(lambda: multiply(turn))

        pl.when(warpgroup == STORE_WARPGROUP)(lambda: store(turn, row, column))
        for half in range(WIDENERS):
            pl.when(warpgroup == WIDEN_WARPGROUP + half)(functools.partial(widen_half, half, turn))
        return carry + 1

    @pl.when(warpgroup == MMA_WARPGROUP)
    def _() -> None:
        @plgpu.warp_map
        def _(warp: Any) -> None:
            for stage in range(config.stages):
                still_open = jnp.logical_and(warp == LOAD_WARP, stage < tiles_done * steps)
                pl.when(still_open)(functools.partial(plgpu.barrier_wait, consumed.at[stage]))
            for slot in range(plan.lag):
                still_open = jnp.logical_and(warp == MULTIPLY_WARP, slot < tiles_done)
                pl.when(still_open)(functools.partial(plgpu.barrier_wait, drained.at[slot]))

    @pl.when(warpgroup >= WIDEN_WARPGROUP)
    def _() -> None:
        steps_done = tiles_done * steps
        first_open = jnp.maximum(steps_done - SLOTS, 0)
        lax.fori_loop(first_open, steps_done, lambda count, _: plgpu.barrier_wait(consumed.at[stage_of(count)]), None)

    pl.when(warpgroup == STORE_WARPGROUP)(lambda: plgpu.wait_smem_to_gmem(0))


def _widen_words(words: list[Any], do: Any, *, element: str) -> list[Any]:
    """Any number of groups of three words, each widened to four."""
    groups = zip(words[::3], words[1::3], words[2::3], strict=True)
    return [wide for group in groups for wide in widen(group, element, do)]


KERNELS = (
    Kernel(
        name=NAME,
        arch="blackwell",
        is_baseline=False,
        a_formats=_FP6 + _FP8,
        b_formats=_FP8 + _FP6,
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=check,
        candidates=candidates,
        matmul=matmul,
    ),
)
