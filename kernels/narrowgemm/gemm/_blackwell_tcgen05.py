"""C = scale · A·Bᵀ on Blackwell's tcgen05: the part that all `blackwell_tcgen05_*` kernels share.

A (M×K) and B (N×K) have K contiguous, so that both come through TMA into swizzled shared memory as tcgen05 wants them.
One MMA makes a tile of 128 rows in one thread block, or of 256 rows in a pair of blocks (`ctas=2`), of which each holds
half of the rows of A and of B and reads its partner's half of B: a pair needs half the shared memory and half the loads
of B. The FP32 accumulators live in tensor memory, two of them in turn, so that a tile's epilogue overlaps the next.

Roles of a thread block, which takes tiles one after the other, from the hardware's scheduler or by a fixed stride:
  warp 0 of warpgroup 0  load      TMA of A and B, as far ahead as there are stages;
  warp 1 of warpgroup 0  multiply  issues the MMAs; in a pair only the first block's warp does, for both;
  warpgroup 1            store     tensor memory -> registers -> scaled, converted -> shared memory -> TMA store.

Barriers, counted over all K steps s (stage s mod stages) or tiles t (accumulator t mod accumulators) of a block:
  loaded[stage]   one arrival for each array that is copied. `multiply` waits; in a pair the first block's alone counts.
  consumed[stage] one arrival, when the MMA that read the stage is done, in both blocks of a pair. `load` waits.
  finished[acc]   one arrival, when the tile's last MMA is done, in both blocks. `store` waits.
  drained[acc]    one arrival of `store` of each block of a pair, in both blocks. `multiply` waits.
At the end `load` and `multiply` wait for every phase still open: no block leaves while its partner can still reach it.

Block scales travel with their stage, as tiles that the hardware reads (`narrowgemm.formats.scale_layout`); `multiply`
copies them to tensor memory ahead of each MMA, and the tensor core's queue keeps both in order. Where two accumulators
and the scales exceed tensor memory, the accumulators share some columns: `store` takes those out first, last to first
in the first accumulator and first to last in the second, and the next tile waits for them alone.

In the interpreter, which knows no block-scaled MMA, a plain MMA of scaled values stands in for it; all else is as on
the GPU.

Edges need no code of their own: TMA fills what lies outside the operands with zeros and drops what lies outside C.

The roles follow NVIDIA's description of tcgen05 (PTX ISA) and JAX's Pallas Mosaic GPU reference.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.formats.quantize import Operand, as_quantized
from narrowgemm.formats.scale_layout import tile_scales
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._blackwell_plan import (
    BLOCK_M,
    SCALE_TILE_BLOCKS,
    SCALE_TILE_ROWS,
    STAGE_K_BYTES,
    STAGING_TILES,
    Config,
    Plan,
    candidates,
    check,
    plan,
)
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS
from narrowgemm.tiling import ceil_div

LOAD_WARP, MULTIPLY_WARP = 0, 1
MMA_WARPGROUP, STORE_WARPGROUP = 0, 1


def kernel(name: str, formats: tuple[str, ...]) -> Kernel:
    """The registry's entry of the kernel `name`, whose operands are each in one of `formats`."""

    def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
        operands = as_quantized(a), as_quantized(b)
        step_blocks = plan(operands[0].format, out_format, config).step_scales
        block_scales = tuple(tile_scales(q.scales, step_blocks) for q in operands if q.scales is not None)
        tensor_scales = tuple(q.tensor_scale.reshape(1) for q in operands if q.tensor_scale is not None)
        codes = _mosaic_gpu.travelling(operands[0], interpret), _mosaic_gpu.travelling(operands[1], interpret)
        used = operands[0].format, operands[1].format, out_format
        return gemm(name, codes, block_scales, tensor_scales, used, config, interpret)

    return Kernel(
        name=name,
        arch="blackwell",
        is_baseline=False,
        a_formats=formats,
        b_formats=formats,
        out_formats=OUT_FORMATS,
        config_type=Config,
        check=functools.partial(check, name),
        candidates=lambda p: candidates(functools.partial(check, name, p), p.m, p.n),
        matmul=matmul,
    )


def gemm(
    name: str,
    codes: tuple[jax.Array, jax.Array],
    block_scales: tuple[jax.Array, ...],
    tensor_scales: tuple[jax.Array, ...],
    formats: tuple[str, str, str],
    config: Config,
    interpret: bool,
) -> jax.Array:
    """C[m,n] = Π tensor_scales · A[m,k]·B[n,k]ᵀ, summed in FP32.

    codes:         of A and B, (rows, K) or, packed, (rows, bytes).
    block_scales:  none, or those of A and B as tiles (rows/128, blocks/4, 32, 16).
    tensor_scales: any number of FP32 arrays (1,).
    formats:       of A, B and C.
    """
    a, b = codes
    a_element, b_element, out_dtype = (format_named(format_name).element.dtype for format_name in formats)
    plan_ = plan(formats[0], formats[2], config)
    step_columns = plan_.step_k if interpret else STAGE_K_BYTES // a.dtype.itemsize
    tiles = (
        ceil_div(a.shape[0], config.tile_m),
        ceil_div(b.shape[0], config.tile_n),
        ceil_div(a.shape[1], step_columns),
    )
    scaled = len(block_scales), len(tensor_scales)
    clusters = tiles[0] * tiles[1]
    if config.schedule == "static":
        clusters = min(clusters, _mosaic_gpu.core_count(interpret) // config.ctas)
    kernel = plgpu.kernel(
        functools.partial(_body, plan=plan_, tiles=tiles, scaled=scaled, interpret=interpret),
        kernel_name=name,
        out_type=jax.ShapeDtypeStruct((a.shape[0], b.shape[0]), out_dtype),
        grid=(clusters,),
        grid_names=(_mosaic_gpu.TILE_AXIS,),
        cluster=(config.ctas,),
        cluster_names=(_mosaic_gpu.CTA_AXIS,),
        num_threads=2,
        thread_name=_mosaic_gpu.WARPGROUP_AXIS,
        scratch_types=_scratch(plan_, a_element, b_element, out_dtype, [s.dtype for s in block_scales], interpret),
        interpret=_mosaic_gpu.interpret_params(interpret, config.ctas == 2),
    )
    out: jax.Array = kernel(a, b, *block_scales, *tensor_scales)
    return out


def _scratch(
    plan: Plan, a_element: Any, b_element: Any, out_dtype: Any, scale_dtypes: list[Any], interpret: bool
) -> dict[str, Any]:
    config = plan.config
    pair = config.ctas == 2
    buffer = functools.partial(_mosaic_gpu.tile_buffer, interpret=interpret)
    scratch = {
        "a_buffer": buffer(config.stages, BLOCK_M, a_element, columns=plan.step_k),
        "b_buffer": buffer(config.stages, config.block_n, b_element, columns=plan.step_k),
        "out_buffer": buffer(STAGING_TILES, BLOCK_M, out_dtype, columns=plan.store_n),
        "acc_tmem": plgpu.TMEM((BLOCK_M, plan.accumulator_columns), jnp.float32, collective=pair),
        "loaded": plgpu.Barrier(num_arrivals=2 + len(scale_dtypes), num_barriers=config.stages),
        "consumed": _mosaic_gpu.tensor_core_barrier(config.stages),
        "finished": _mosaic_gpu.tensor_core_barrier(config.accumulators),
        "drained": _mosaic_gpu.tensor_core_barrier(plan.lag, pair=pair),
        "scale_smem": [],
        "scale_tmem": [],
        "stand_ins": [],
    }
    if scale_dtypes and interpret:
        rows = BLOCK_M, config.block_n
        scratch["stand_ins"] = [plgpu.SMEM((config.stages, n, plan.step_k), jnp.bfloat16) for n in rows]
    for row_tiles, dtype in zip((1, plan.b_scale_tiles), scale_dtypes, strict=False):
        blocks = plan.step_scales // SCALE_TILE_BLOCKS
        layout = plgpu.TMEMLayout.SCALES_LAYOUT
        shape = (row_tiles * SCALE_TILE_ROWS, plan.step_scales)
        scratch["scale_smem"].append(plgpu.SMEM((config.stages, row_tiles, blocks, 32, 16), dtype))
        scratch["scale_tmem"].append(plgpu.TMEM(shape, dtype, layout=layout, collective=pair))
    return scratch


def _body(  # noqa: C901 (closures of one kernel, which share its references)
    *refs: Any,
    plan: Plan,
    tiles: tuple[int, int, int],
    scaled: tuple[int, int],
    interpret: bool,
    a_buffer: Any,
    b_buffer: Any,
    out_buffer: Any,
    acc_tmem: Any,
    scale_smem: Any,
    scale_tmem: Any,
    stand_ins: Any,
    loaded: Any,
    consumed: Any,
    finished: Any,
    drained: Any,
) -> None:
    """The kernel of one thread block; `tiles` counts the output tiles in M and N and the K steps of one."""
    a_gmem, b_gmem, *scales_gmem, out_gmem = refs
    block_gmem, tensor_gmem = scales_gmem[: scaled[0]], scales_gmem[scaled[0] :]
    (a_tma, a_smem), (b_tma, b_smem), (out_tma, out_smem) = (
        _mosaic_gpu.views(buffer, interpret) for buffer in (a_buffer, b_buffer, out_buffer)
    )
    config = plan.config
    tiles_m, tiles_n, steps = tiles
    pair = config.ctas == 2
    axis = _mosaic_gpu.CTA_AXIS if pair else None
    halves, whole = (plgpu.CopyPartition.PARTITIONED(0), plgpu.CopyPartition.REPLICATED) if pair else (None, None)
    cta = lax.axis_index(_mosaic_gpu.CTA_AXIS)
    warpgroup = lax.axis_index(_mosaic_gpu.WARPGROUP_AXIS)

    def load(turn: Any, row: Any, column: Any) -> None:
        scale_rows = config.ctas, plan.b_scale_tiles

        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage = lax.rem(count, jnp.int32(config.stages))
            pl.when(count >= config.stages)(lambda: plgpu.barrier_wait(consumed.at[stage]))
            width = a_tma.shape[-1]
            ks = pl.ds(ki * width, width)
            copies: list[tuple[Any, Any, Any]] = [
                (a_gmem.at[pl.ds(row * config.tile_m, config.tile_m), ks], a_tma, halves),
                (b_gmem.at[pl.ds(column * config.tile_n, config.tile_n), ks], b_tma, halves),
            ]
            for gmem, smem, tile, height, part in zip(
                block_gmem, scale_smem, (row, column), scale_rows, (halves, whole), strict=False
            ):
                blocks = smem.shape[2]
                copies.append((gmem.at[pl.ds(tile * height, height), pl.ds(ki * blocks, blocks)], smem, part))
            for source, target, part in copies:
                plgpu.copy_gmem_to_smem(
                    source, target.at[stage], loaded.at[stage], collective_axes=axis, leader_tracked=part
                )

        lax.fori_loop(0, steps, step, None)

    def multiply(turn: Any) -> None:
        slot = lax.rem(turn, jnp.int32(config.accumulators))
        acc = acc_tmem.at[:, pl.ds(slot * plan.stride, config.tile_n)]
        pl.when(turn >= plan.lag)(lambda: plgpu.barrier_wait(drained.at[lax.rem(turn, jnp.int32(plan.lag))]))

        def step(ki: Any, _: None) -> None:
            stage = lax.rem(turn * steps + ki, jnp.int32(config.stages))
            plgpu.barrier_wait(loaded.at[stage])
            a, b, done = a_smem.at[stage], b_smem.at[stage], consumed.at[stage]
            if scale_smem:
                scales = [(smem.at[stage], tmem) for smem, tmem in zip(scale_smem, scale_tmem, strict=True)]
                _mosaic_gpu.scaled_mma(
                    acc, [a, b], scales, done, [tile.at[stage] for tile in stand_ins], accumulate=ki > 0, pair=pair
                )
            else:
                plgpu.tcgen05_mma(acc, a, b.T, done, accumulate=ki > 0, collective_axis=axis)

        @pl.when(cta == 0)
        def _() -> None:
            lax.fori_loop(0, steps, step, None)
            plgpu.tcgen05_commit_arrive(finished.at[slot], collective_axis=axis)

    def store(turn: Any, row: Any, column: Any) -> None:
        slot = lax.rem(turn, jnp.int32(config.accumulators))
        rows = pl.ds((row * config.ctas + cta) * BLOCK_M, BLOCK_M)
        scale = math.prod((ref[0] for ref in tensor_gmem), start=jnp.float32(1))
        plgpu.barrier_wait(finished.at[slot])
        pieces = config.tile_n // plan.store_n
        for piece in range(pieces):
            first = lax.select(slot == 0, jnp.int32(pieces - 1 - piece), jnp.int32(piece)) * plan.store_n
            values = plgpu.async_load_tmem(acc_tmem.at[:, pl.ds(slot * plan.stride + first, plan.store_n)])
            if piece + 1 == plan.drain_pieces:
                plgpu.wait_load_tmem()
                plgpu.barrier_arrive(drained.at[lax.rem(turn, jnp.int32(plan.lag))])
            staging = lax.rem(turn * pieces + piece, jnp.int32(STAGING_TILES))
            plgpu.wait_smem_to_gmem(STAGING_TILES - 1, wait_read_only=True)
            scaled = values * scale if tensor_gmem else values
            out_smem[staging] = _mosaic_gpu.saturating_cast(scaled, out_smem.dtype, interpret)
            plgpu.commit_smem()
            columns = pl.ds(column * config.tile_n + first, plan.store_n)
            plgpu.copy_smem_to_gmem(out_tma.at[staging], out_gmem.at[rows, columns])

    @_mosaic_gpu.tile_loop(tiles_m * tiles_n, config.schedule == "dynamic")  # type: ignore[untyped-decorator]
    def tiles_done(info: Any, carry: Any) -> Any:
        row, column = config.position(info.index[0], tiles_m, tiles_n)
        turn = info.local_index

        @pl.when(warpgroup == MMA_WARPGROUP)
        def _() -> None:
            @plgpu.warp_map
            def _(warp: Any) -> None:
                pl.when(warp == LOAD_WARP)(lambda: load(turn, row, column))
                pl.when(warp == MULTIPLY_WARP)(lambda: multiply(turn))

        pl.when(warpgroup == STORE_WARPGROUP)(lambda: store(turn, row, column))
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

    pl.when(warpgroup == STORE_WARPGROUP)(lambda: plgpu.wait_smem_to_gmem(0))
