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

from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized
from narrowgemm.formats.scale_layout import tile_scales, untile_scales
from narrowgemm.formats.spec import Format, format_named
from narrowgemm.gemm import _blackwell_movement as movement
from narrowgemm.gemm import _blackwell_store, _mosaic_gpu
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
    check_quantised,
    plan,
)
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem
from narrowgemm.tiling import ceil_div

LOAD_WARP, MULTIPLY_WARP = 0, 1
MMA_WARPGROUP, STORE_WARPGROUP = 0, 1


def kernel(name: str, formats: tuple[str, ...]) -> Kernel:
    """The registry's entry of the kernel `name`, whose operands are each in one of `formats`."""

    def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
        operands = as_quantized(a), as_quantized(b)
        return gemm(name, *_as_kernel_takes(operands, out_format, config, interpret), config, interpret)[0]

    def matmul_quantised(
        a: Operand,
        b: Operand,
        config: Config | None,
        out_format: str,
        tensor_scale: jax.Array | None = None,
        interpret: bool = False,
    ) -> QuantizedArray:
        operands = as_quantized(a), as_quantized(b)
        m, n = operands[0].shape[0], operands[1].shape[0]
        problem = GemmProblem(m, n, operands[0].shape[1], operands[0].format, operands[1].format, "f32")
        if config is None:
            config = candidates(functools.partial(check_quantised, name, problem, out_format), m, n, (256, 128))[0]
        check_quantised(name, problem, out_format, config)
        spec, scale_dtype = format_named(out_format), format_named(out_format).scale_dtype
        if scale_dtype is None:
            raise ValueError(f"{name}: {out_format} has no block scales; matmul stores it")
        if spec.tensor_scale != (tensor_scale is not None):
            needs = "an FP32 tensor_scale, which must be known before" if spec.tensor_scale else "no tensor_scale"
            raise ValueError(f"{name}: tensor_scale={tensor_scale}, but {out_format} has {needs}")
        codes, blocks, scales, formats = _as_kernel_takes(operands, out_format, config, interpret)
        if tensor_scale is not None:
            scales = (*scales, (1 / tensor_scale).reshape(1))
        out, words = gemm(name, codes, blocks, scales, formats, config, interpret)
        tiles = lax.bitcast_convert_type(words, jnp.uint8).reshape(*words.shape[:3], -1)
        whole = untile_scales(tiles, tiles.shape[0] * SCALE_TILE_ROWS, tiles.shape[1] * SCALE_TILE_BLOCKS)
        out_scales = lax.bitcast_convert_type(whole[:m, : spec.scale_bytes(1, n) - 4 * spec.tensor_scale], scale_dtype)
        return QuantizedArray(_mosaic_gpu.packed(out, interpret), out_scales, tensor_scale, out_format, (m, n))

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
        matmul_quantised=matmul_quantised,
    )


_Arrays = tuple[jax.Array, ...]


def _as_kernel_takes(
    operands: tuple[QuantizedArray, QuantizedArray], out_format: str, config: Config, interpret: bool
) -> tuple[_Arrays, _Arrays, _Arrays, tuple[str, str, str]]:
    """Codes, block scales, tensor scales and formats, as `gemm` takes them."""
    a, b = operands
    step_blocks = plan(a.format, out_format, config).step_scales
    return (
        (_mosaic_gpu.travelling(a, interpret), _mosaic_gpu.travelling(b, interpret)),
        tuple(tile_scales(q.scales, step_blocks) for q in operands if q.scales is not None),
        tuple(q.tensor_scale.reshape(1) for q in operands if q.tensor_scale is not None),
        (a.format, b.format, out_format),
    )


def gemm(
    name: str,
    codes: _Arrays,
    block_scales: _Arrays,
    tensor_scales: _Arrays,
    formats: tuple[str, str, str],
    config: Config,
    interpret: bool,
) -> list[jax.Array]:
    """C[m,n] = Π tensor_scales · A[m,k]·B[n,k]ᵀ, summed in FP32.

    codes:         of A and B, (rows, K) or, packed, (rows, bytes).
    block_scales:  none, or those of A and B as tiles (rows/128, blocks/4, 32, 16).
    tensor_scales: any number of FP32 arrays (1,).
    formats:       of A, B and C.

    Returns C; or, where C's format has block scales, its codes as they travel and its scales as tiles of INT32 words
    (rows/128, blocks/4, 32, 4), both dimensions rounded up to whole output tiles.
    """
    a, b = codes
    a_element, b_element = (format_named(format_name).element.dtype for format_name in formats[:2])
    result = format_named(formats[2])
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
        functools.partial(_body, plan=plan_, tiles=tiles, scaled=scaled, result=result, interpret=interpret),
        kernel_name=name,
        out_type=_out_type(a.shape[0], b.shape[0], result, plan_, tiles, interpret),
        grid=(clusters,),
        grid_names=(_mosaic_gpu.TILE_AXIS,),
        cluster=(config.ctas,),
        cluster_names=(_mosaic_gpu.CTA_AXIS,),
        num_threads=2,
        thread_name=_mosaic_gpu.WARPGROUP_AXIS,
        scratch_types=_scratch(plan_, a_element, b_element, result, [s.dtype for s in block_scales], interpret),
        interpret=_mosaic_gpu.interpret_params(interpret, config.ctas == 2),
    )
    return list(kernel(a, b, *block_scales, *tensor_scales))


def _out_type(m: int, n: int, result: Format, plan: Plan, tiles: tuple[int, int, int], interpret: bool) -> list[Any]:
    """Shapes of what `gemm` returns."""
    if result.block is None:
        return [jax.ShapeDtypeStruct((m, n), result.element.dtype)]
    columns, dtype = _mosaic_gpu.travelling_row(n, result.element.dtype, interpret)
    scale_tiles = (tiles[0] * plan.config.ctas, tiles[1] * plan.config.tile_n // result.block // SCALE_TILE_BLOCKS)
    return [jax.ShapeDtypeStruct((m, columns), dtype), jax.ShapeDtypeStruct((*scale_tiles, 32, 4), jnp.int32)]


def _scratch(
    plan: Plan, a_element: Any, b_element: Any, result: Format, scale_dtypes: list[Any], interpret: bool
) -> dict[str, Any]:
    config = plan.config
    pair = config.ctas == 2
    out_tiles = plan.store_scales // SCALE_TILE_BLOCKS
    buffer = functools.partial(_mosaic_gpu.tile_buffer, interpret=interpret)
    scratch = {
        "a_buffer": buffer(config.stages, BLOCK_M, a_element, columns=plan.step_k),
        "b_buffer": buffer(config.stages, config.block_n, b_element, columns=plan.step_k),
        "out_buffer": buffer(STAGING_TILES, BLOCK_M, result.element.dtype, columns=plan.store_n),
        "out_scale_smem": [plgpu.SMEM((STAGING_TILES, out_tiles, 32, 4), jnp.int32)] if out_tiles else [],
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
    result: Format,
    interpret: bool,
    a_buffer: Any,
    b_buffer: Any,
    out_buffer: Any,
    out_scale_smem: Any,
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
    a_gmem, b_gmem, *others_gmem = refs
    block_gmem, tensor_gmem = others_gmem[: scaled[0]], others_gmem[scaled[0] : sum(scaled)]
    out_gmem, *out_scale_gmem = others_gmem[sum(scaled) :]
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
        scale_rows = movement.a_scale_tiles(config, row), movement.b_scale_tiles(plan, column)

        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage = lax.rem(count, jnp.int32(config.stages))
            pl.when(count >= config.stages)(lambda: plgpu.barrier_wait(consumed.at[stage]))
            ks = pl.ds(*movement.k_part(ki, a_tma.shape[-1]))
            copies: list[tuple[Any, Any, Any]] = [
                (a_gmem.at[pl.ds(*movement.a_rows(config, row)), ks], a_tma, halves),
                (b_gmem.at[pl.ds(*movement.b_rows(config, column)), ks], b_tma, halves),
            ]
            for gmem, smem, rows, part in zip(block_gmem, scale_smem, scale_rows, (halves, whole), strict=False):
                copies.append((gmem.at[pl.ds(*rows), pl.ds(*movement.k_part(ki, smem.shape[2]))], smem, part))
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
        rows = pl.ds(*movement.block_rows(config, row, cta))
        scale = math.prod((ref[0] for ref in tensor_gmem), start=jnp.float32(1))

        def scaled_by_tensor(values: Any) -> Any:
            return values * scale if tensor_gmem else values

        def copy_out(staging: Any, first: Any, last_of_group: bool) -> None:
            columns = movement.c_columns(plan, column, first, out_tma.shape[-1])
            target = out_gmem.at[rows, pl.ds(*columns)]
            plgpu.copy_smem_to_gmem(out_tma.at[staging], target, commit_group=last_of_group)

        def write(values: Any, staging: Any, first: Any) -> None:
            out_smem[staging] = _mosaic_gpu.saturating_cast(scaled_by_tensor(values), out_smem.dtype, interpret)
            plgpu.commit_smem()
            copy_out(staging, first, last_of_group=True)

        def write_quantised(blocks: list[Any], staging: Any, first: Any) -> None:
            quantised = [
                _blackwell_store.quantise_block(scaled_by_tensor(values), result, interpret) for values in blocks
            ]
            _mosaic_gpu.store_rows([codes for codes, _ in quantised], out_tma.at[staging], interpret)
            for index, words in enumerate(_blackwell_store.scale_words([scale for _, scale in quantised])):
                _mosaic_gpu.store_scale_words(words, out_scale_smem[0].at[staging, index], interpret)
            plgpu.commit_smem()
            copy_out(staging, first, last_of_group=False)
            scale_row, scale_tiles = movement.c_scale_row(config, row, cta), movement.c_scale_tiles(plan, column, first)
            target = out_scale_gmem[0].at[scale_row, pl.ds(*scale_tiles)]
            plgpu.copy_smem_to_gmem(out_scale_smem[0].at[staging], target)

        if result.block is None:
            _blackwell_store.drain(plan, turn, acc_tmem, finished, drained, plgpu.async_load_tmem, write)
        else:
            read = functools.partial(_blackwell_store.read_blocks, block=result.block)
            _blackwell_store.drain(plan, turn, acc_tmem, finished, drained, read, write_quantised)

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
