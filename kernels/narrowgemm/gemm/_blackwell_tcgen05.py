"""C = scale · A·Bᵀ on Blackwell's tcgen05: the part that all `blackwell_tcgen05_*` kernels share.

A (M×K) and B (N×K) have K contiguous, so that both come through TMA into swizzled shared memory as tcgen05 wants them.
One MMA makes a tile of 128 rows in one thread block, or of 256 rows in a pair of blocks (`ctas=2`), of which each holds
half of the rows of A and of B and reads its partner's half of B: a pair needs half the shared memory and half the loads
of B. The FP32 accumulators live in tensor memory, two of them in turn, so that a tile's epilogue overlaps the next.

Roles of a thread block, whose tiles come one after the other from the hardware's scheduler (cluster launch control):
  warp 0 of warpgroup 0  load      TMA of A and B, as far ahead as there are stages;
  warp 1 of warpgroup 0  multiply  issues the MMAs; in a pair only the first block's warp does, for both;
  warpgroup 1            store     tensor memory -> registers -> scaled, converted -> shared memory -> TMA store.

Barriers, counted over all K steps s (stage s mod stages) or tiles t (accumulator t mod accumulators) of a block:
  loaded[stage]   one arrival for each array that is copied. `multiply` waits; in a pair the first block's alone counts.
  consumed[stage] one arrival, when the MMA that read the stage is done, in both blocks of a pair. `load` waits.
  finished[acc]   one arrival, when the tile's last MMA is done, in both blocks. `store` waits.
  drained[acc]    one arrival of `store` of each block of a pair, in both blocks. `multiply` waits.
At the end `load` and `multiply` wait for every phase still open: no block leaves while its partner can still reach it.

Edges need no code of their own: TMA fills what lies outside the operands with zeros and drops what lies outside C.

The roles follow NVIDIA's description of tcgen05 (PTX ISA) and JAX's Pallas Mosaic GPU reference.
"""

import contextlib
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, raster, round_up

#: Rows of one block's part of an MMA: the lanes of tensor memory.
BLOCK_M = 128
LOAD_WARP, MULTIPLY_WARP = 0, 1
MMA_WARPGROUP, STORE_WARPGROUP = 0, 1
#: Bytes of K in one stage: the widest swizzle atom.
STAGE_K_BYTES = 128
#: TMA addresses rows: their length in bytes is a multiple of this (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ROW_BYTES = 16
#: The widest MMA (PTX ISA, tcgen05.mma shapes), in one block and in a pair.
MAX_TILE_N = 256
#: Columns of 32 bits × 128 lanes (PTX ISA, tensor memory).
TENSOR_MEMORY_COLUMNS = 512
#: Staging tiles of the epilogue: one is filled while the other is read by the TMA store.
STAGING_TILES = 2
#: Room for barriers and for what the dynamic scheduler keeps in shared memory; far less is used.
_BARRIER_BYTES = 1024
#: For the order of candidates alone: SMs of a B200, and what a tile costs beside its columns (filling the pipeline).
_GUESSED_CORES = 148
_TILE_OVERHEAD_COLUMNS = 32


@dataclass(frozen=True)
class Config:
    """Choices of a Blackwell GEMM. A stage holds 128 bytes of K: 64 elements of BF16, 128 of FP8, 256 of FP4.

    tile_n:       columns of an output tile, of both blocks where there are two.
    stages:       depth of the operand pipeline.
    ctas:         thread blocks that make one tile together: 1 (128 rows) or 2 (256 rows).
    accumulators: tiles of tensor memory taken in turn; with 1 the epilogue does not overlap the next tile.
    raster:       dimension that varies fastest inside a rasterisation band.
    raster_width: tiles of that dimension in a band.
    """

    tile_n: int = 256
    stages: int = 5
    ctas: int = 2
    accumulators: int = 2
    raster: Literal["m", "n"] = "n"
    raster_width: int = 8

    @property
    def tile_m(self) -> int:
        return BLOCK_M * self.ctas

    @property
    def block_n(self) -> int:
        """Rows of B that one block loads."""
        return self.tile_n // self.ctas


def store_columns(config: Config, out_bits: int) -> int:
    """Columns converted and stored at a time: at most one swizzle atom, and a divisor of the tile."""
    return math.gcd(config.tile_n, 8 * STAGE_K_BYTES // out_bits)


def shared_memory_bytes(config: Config, out_bits: int) -> int:
    """Shared memory of a block: operand stages, two staging tiles of the output, barriers, the scheduler's mailbox."""
    operands = config.stages * STAGE_K_BYTES * (BLOCK_M + config.block_n)
    staging = STAGING_TILES * BLOCK_M * store_columns(config, out_bits) * out_bits // 8
    return operands + staging + _BARRIER_BYTES


def check(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: rows, tile shape, shared and tensor memory."""
    out_bits = format_named(problem.out_format).element.bits
    for name, extent, format_name in (
        ("k", problem.k, problem.a_format),
        ("k", problem.k, problem.b_format),
        ("n", problem.n, problem.out_format),
    ):
        step = 8 * TMA_ROW_BYTES // format_named(format_name).element.bits
        if extent % step:
            raise UnsupportedError(
                kernel,
                {name: extent},
                f"is not a multiple of {step}: TMA takes rows of whole {TMA_ROW_BYTES} bytes, here of {format_name}",
                f"pad {name} to {round_up(extent, step)}",
            )
    if config.ctas not in (1, 2) or config.accumulators not in (1, 2):
        raise ValueError(f"{kernel}: ctas={config.ctas} and accumulators={config.accumulators} are each 1 or 2")
    step = 16 * config.ctas
    if config.tile_n % step or not 32 <= config.tile_n <= MAX_TILE_N:
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "ctas": config.ctas},
            f"is not a multiple of {step} from 32 to {MAX_TILE_N}, as tcgen05.mma and the staged store need",
            f"use tile_n={min(max(round_up(config.tile_n, step), 32), MAX_TILE_N)}",
        )
    columns = config.accumulators * config.tile_n
    if columns > TENSOR_MEMORY_COLUMNS:
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "accumulators": config.accumulators},
            f"need {columns} columns of tensor memory; an SM has {TENSOR_MEMORY_COLUMNS}",
            "use one accumulator or a narrower tile",
        )
    needed = shared_memory_bytes(config, out_bits)
    if needed > _mosaic_gpu.SHARED_MEMORY_BYTES:
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "ctas": config.ctas, "stages": config.stages},
            f"need {needed} bytes of shared memory; a block has {_mosaic_gpu.SHARED_MEMORY_BYTES}",
            "use fewer stages or a narrower tile",
        )


def candidates(kernel: str, problem: GemmProblem) -> list[Config]:
    """Configs that `check` admits for `problem`, in the order of a rough cost: rounds of tiles × time of a tile.

    A stage of 128 rows × tile_n columns takes 2·tile_n cycles of a tensor core (8192 FP8 multiply-adds a cycle), and
    loading it at 64 bytes a cycle takes 2·(128 + block_n): the larger counts, in half cycles.

    Raises the UnsupportedError of the smallest config if there is none, for then the problem itself is at fault.
    """
    admitted = []
    for ctas, tile_n, stages in itertools.product((2, 1), (256, 192, 128, 64), (7, 6, 5, 4, 3)):
        config = Config(tile_n=tile_n, stages=stages, ctas=ctas)
        with contextlib.suppress(UnsupportedError):
            check(kernel, problem, config)
            admitted.append(config)
    if not admitted:
        check(kernel, problem, Config(tile_n=64, stages=3, ctas=1))

    def cost(config: Config) -> tuple[int, int]:
        tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n)
        rounds = ceil_div(tiles, _GUESSED_CORES // config.ctas)
        return rounds * (max(config.tile_n, BLOCK_M + config.block_n) + _TILE_OVERHEAD_COLUMNS), -config.stages

    return sorted(admitted, key=cost)


def gemm(
    name: str,
    a: jax.Array,
    b: jax.Array,
    tensor_scales: tuple[jax.Array, ...],
    config: Config,
    out_format: str,
    interpret: bool,
) -> jax.Array:
    """C[m,n] = Π tensor_scales · A[m,k]·B[n,k]ᵀ in `out_format`, summed in FP32; a tensor scale has shape (1,)."""
    (m, k), (n, _) = a.shape, b.shape
    out_dtype = format_named(out_format).element.dtype
    tile_k = 8 * STAGE_K_BYTES // jnp.finfo(a.dtype).bits
    tiles = ceil_div(m, config.tile_m), ceil_div(n, config.tile_n), ceil_div(k, tile_k)
    pair = config.ctas == 2
    columns = store_columns(config, jnp.finfo(out_dtype).bits)
    drained: dict[str, Any] = {"num_barriers": config.accumulators, "orders_tensor_core": True}
    kernel = plgpu.kernel(
        functools.partial(_body, config=config, tiles=tiles, tile_k=tile_k, interpret=interpret),
        kernel_name=name,
        out_type=jax.ShapeDtypeStruct((m, n), out_dtype),
        grid=(tiles[0] * tiles[1],),
        grid_names=("tile",),
        cluster=(config.ctas,),
        cluster_names=("cta",),
        num_threads=2,
        thread_name="warpgroup",
        scratch_types={
            "a_buffer": _mosaic_gpu.tile_buffer(config.stages, BLOCK_M, tile_k, a.dtype, interpret),
            "b_buffer": _mosaic_gpu.tile_buffer(config.stages, config.block_n, tile_k, b.dtype, interpret),
            "out_buffer": _mosaic_gpu.tile_buffer(STAGING_TILES, BLOCK_M, columns, out_dtype, interpret),
            "acc_tmem": plgpu.TMEM((BLOCK_M, config.accumulators * config.tile_n), jnp.float32, collective=pair),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=config.stages),
            "consumed": plgpu.Barrier(num_barriers=config.stages, orders_tensor_core=True),
            "finished": plgpu.Barrier(num_barriers=config.accumulators, orders_tensor_core=True),
            "drained": plgpu.ClusterBarrier(collective_axes=("cta",), **drained) if pair else plgpu.Barrier(**drained),
        },
        interpret=_mosaic_gpu.interpret_params(interpret),
    )
    out: jax.Array = kernel(a, b, *tensor_scales)
    return out


def _body(  # noqa: C901 (closures of one kernel, which share its references)
    a_gmem: Any,
    b_gmem: Any,
    *scales_and_out: Any,
    config: Config,
    tiles: tuple[int, int, int],
    tile_k: int,
    interpret: bool,
    a_buffer: Any,
    b_buffer: Any,
    out_buffer: Any,
    acc_tmem: Any,
    loaded: Any,
    consumed: Any,
    finished: Any,
    drained: Any,
) -> None:
    """The kernel of one thread block; `tiles` counts the output tiles in M and N and the K steps of one."""
    *scales_gmem, out_gmem = scales_and_out
    (a_tma, a_smem), (b_tma, b_smem), (out_tma, out_smem) = (
        _mosaic_gpu.views(buffer, interpret) for buffer in (a_buffer, b_buffer, out_buffer)
    )
    tiles_m, tiles_n, steps = tiles
    axis, halves = ("cta", plgpu.CopyPartition.PARTITIONED(0)) if config.ctas == 2 else (None, None)
    cta = lax.axis_index("cta")
    warpgroup = lax.axis_index("warpgroup")

    def load(turn: Any, row: Any, column: Any) -> None:
        rows, columns = pl.ds(row * config.tile_m, config.tile_m), pl.ds(column * config.tile_n, config.tile_n)

        def step(ki: Any, _: None) -> None:
            count = turn * steps + ki
            stage = lax.rem(count, jnp.int32(config.stages))
            pl.when(count >= config.stages)(lambda: plgpu.barrier_wait(consumed.at[stage]))
            ks = pl.ds(ki * tile_k, tile_k)
            for source, target in ((a_gmem.at[rows, ks], a_tma), (b_gmem.at[columns, ks], b_tma)):
                plgpu.copy_gmem_to_smem(
                    source, target.at[stage], loaded.at[stage], collective_axes=axis, leader_tracked=halves
                )

        lax.fori_loop(0, steps, step, None)

    def multiply(turn: Any) -> None:
        slot = lax.rem(turn, jnp.int32(config.accumulators))
        acc = acc_tmem.at[:, pl.ds(slot * config.tile_n, config.tile_n)]
        pl.when(turn >= config.accumulators)(lambda: plgpu.barrier_wait(drained.at[slot]))

        def step(ki: Any, _: None) -> None:
            stage = lax.rem(turn * steps + ki, jnp.int32(config.stages))
            plgpu.barrier_wait(loaded.at[stage])
            plgpu.tcgen05_mma(
                acc, a_smem.at[stage], b_smem.at[stage].T, consumed.at[stage], accumulate=ki > 0, collective_axis=axis
            )

        @pl.when(cta == 0)
        def _() -> None:
            lax.fori_loop(0, steps, step, None)
            plgpu.tcgen05_commit_arrive(finished.at[slot], collective_axis=axis)

    def store(turn: Any, row: Any, column: Any) -> None:
        slot = lax.rem(turn, jnp.int32(config.accumulators))
        rows = pl.ds((row * config.ctas + cta) * BLOCK_M, BLOCK_M)
        width = out_smem.shape[-1]
        scale = math.prod((ref[0] for ref in scales_gmem), start=jnp.float32(1))
        plgpu.barrier_wait(finished.at[slot])
        for first in range(0, config.tile_n, width):
            values = plgpu.async_load_tmem(acc_tmem.at[:, pl.ds(slot * config.tile_n + first, width)])
            if first + width == config.tile_n:
                plgpu.wait_load_tmem()
                plgpu.barrier_arrive(drained.at[slot])
            staging = first // width % STAGING_TILES
            plgpu.wait_smem_to_gmem(STAGING_TILES - 1, wait_read_only=True)
            out_smem[staging] = (values * scale if scales_gmem else values).astype(out_smem.dtype)
            plgpu.commit_smem()
            columns = pl.ds(column * config.tile_n + first, width)
            plgpu.copy_smem_to_gmem(out_tma.at[staging], out_gmem.at[rows, columns])

    @plgpu.dynamic_scheduling_loop(("tile",), thread_axis="warpgroup", cluster_axes=("cta",), init_carry=jnp.int32(0))
    def tiles_done(info: Any, carry: Any) -> Any:
        if config.raster == "n":
            row, column = raster(info.index[0], tiles_m, tiles_n, config.raster_width)
        else:
            column, row = raster(info.index[0], tiles_n, tiles_m, config.raster_width)
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
            for slot in range(config.accumulators):
                still_open = jnp.logical_and(warp == MULTIPLY_WARP, slot < tiles_done)
                pl.when(still_open)(functools.partial(plgpu.barrier_wait, drained.at[slot]))

    pl.when(warpgroup == STORE_WARPGROUP)(lambda: plgpu.wait_smem_to_gmem(0))
