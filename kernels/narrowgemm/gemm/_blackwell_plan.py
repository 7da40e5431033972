"""What a Blackwell GEMM has to choose, what follows from it, and what it cannot do. No device code."""

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, raster, round_up

#: Rows of one block's part of an MMA: the lanes of tensor memory.
BLOCK_M = 128
#: Bytes of K in one stage: the widest swizzle atom.
STAGE_K_BYTES = 128
#: TMA addresses rows: their length in bytes is a multiple of this (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ROW_BYTES = 16
#: The widest MMA (PTX ISA, tcgen05.mma shapes), in one block and in a pair.
MAX_TILE_N = 256
#: Columns of 32 bits × 128 lanes (PTX ISA, tensor memory).
TENSOR_MEMORY_COLUMNS = 512
#: Rows and blocks of K whose scales lie together, and their bytes (`narrowgemm.formats.scale_layout`).
SCALE_TILE_ROWS, SCALE_TILE_BLOCKS, SCALE_TILE_BYTES = 128, 4, 512
#: Staging tiles of the epilogue: one is filled while the other is read by the TMA store.
STAGING_TILES = 2
#: Room for barriers and for what the dynamic scheduler keeps in shared memory; far less is used.
_BARRIER_BYTES = 1024
#: For the order of candidates alone: SMs of a B200, and what a tile costs beside its columns (filling the pipeline).
_GUESSED_CORES = 148
_TILE_OVERHEAD_COLUMNS = 32

_CHOICES: dict[str, tuple[object, ...]] = {
    "ctas": (1, 2),
    "accumulators": (1, 2),
    "raster": ("m", "n"),
    "schedule": ("dynamic", "static"),
}


@dataclass(frozen=True)
class Config:
    """Choices of a Blackwell GEMM. A stage holds 128 bytes of K: 64 elements of BF16, 128 of FP8, 256 of FP4.

    tile_n:       columns of an output tile, of both blocks where there are two.
    stages:       depth of the operand pipeline.
    ctas:         thread blocks that make one tile together: 1 (128 rows) or 2 (256 rows).
    accumulators: tiles of tensor memory taken in turn, 1 or 2; with 1 the epilogue does not overlap the next tile.
    raster:       dimension that varies fastest inside a rasterisation band, "m" or "n".
    raster_width: tiles of that dimension in a band.
    schedule:     who hands out tiles: "dynamic", the hardware, a grid of one block a tile, which running blocks take
                  over (cluster launch control); or "static", as many blocks as SMs, in a fixed stride.
    """

    tile_n: int = 256
    stages: int = 5
    ctas: int = 2
    accumulators: int = 2
    raster: str = "n"
    raster_width: int = 8
    schedule: str = "dynamic"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"Config: {name}={getattr(self, name)!r} is not one of {allowed}")

    @property
    def tile_m(self) -> int:
        """Rows of an output tile, of both blocks where there are two."""
        return BLOCK_M * self.ctas

    @property
    def block_n(self) -> int:
        """Rows of B that one block loads."""
        return self.tile_n // self.ctas

    def position(self, index: Any, tiles_m: int, tiles_n: int) -> tuple[Any, Any]:
        """Row and column of the output tile that is taken as number `index`, an integer or a traced one."""
        if self.raster == "n":
            return raster(index, tiles_m, tiles_n, self.raster_width)
        column, row = raster(index, tiles_n, tiles_m, self.raster_width)
        return row, column


@dataclass(frozen=True)
class Plan:
    """What follows from formats and config: sizes of a block's buffers and columns of its tensor memory.

    step_k:        elements of K in one stage.
    store_n:       columns converted and stored at a time: at most one swizzle atom, and a divisor of the tile.
    step_scales:   block scales of a row in one stage; 0 without block scales.
    stride:        columns from one accumulator to the next. It is less than tile_n where two accumulators and the
                   scales exceed tensor memory: then the end of the first is the beginning of the second.
    drain_pieces:  pieces of store_n columns to be taken out before the next tile may use the columns: those shared.
    lag:           tiles that may be under way before `multiply` waits for that: 2, or 1 where columns are shared.
    a_row_bytes:   bytes of a row of A in one stage.
    store_scales:  block scales of a row in a piece of the result; 0 where it has none.
    """

    config: Config
    step_k: int
    store_n: int
    step_scales: int
    stride: int
    drain_pieces: int
    lag: int
    a_row_bytes: int = STAGE_K_BYTES
    store_scales: int = 0

    @property
    def accumulator_columns(self) -> int:
        """Tensor memory of the accumulators."""
        return self.stride + self.config.tile_n

    @property
    def b_scale_tiles(self) -> int:
        """Tiles of 128 rows of B's scales; both blocks of a pair hold all of them."""
        return ceil_div(self.config.tile_n, SCALE_TILE_ROWS)

    def shared_memory_bytes(self, out_bits: int) -> int:
        """Shared memory of a block: operand stages, scales, two staging tiles, barriers, the scheduler's mailbox."""
        scales = (1 + self.b_scale_tiles) * self.step_scales // SCALE_TILE_BLOCKS * SCALE_TILE_BYTES
        stage = BLOCK_M * self.a_row_bytes + self.config.block_n * STAGE_K_BYTES + scales
        staging = BLOCK_M * self.store_n * out_bits // 8 + self.store_scales // SCALE_TILE_BLOCKS * SCALE_TILE_BYTES
        return self.config.stages * stage + STAGING_TILES * staging + _BARRIER_BYTES


def plan(
    a_format: str,
    out_format: str,
    config: Config,
    *,
    reserved_columns: int = 0,
    a_row_bytes: int = STAGE_K_BYTES,
    widest_store: int = 128,
) -> Plan:
    """Sizes for operands of `a_format` (the other is as wide, with as many scales) and a result of `out_format`.

    `reserved_columns` of tensor memory are left for other use; a row of A may be narrower than its elements say; and
    `widest_store` bounds the columns stored at a time.
    """
    operand, result = format_named(a_format), format_named(out_format)
    step_k = 8 * STAGE_K_BYTES // operand.element.bits
    step_scales = step_k // operand.block if operand.block else 0
    store_n = math.gcd(config.tile_n, min(8 * STAGE_K_BYTES // result.element.bits, widest_store))
    stride, drain_pieces, lag = 0, config.tile_n // store_n, 1
    if config.accumulators == 2:
        taken = reserved_columns + (1 + ceil_div(config.tile_n, SCALE_TILE_ROWS)) * step_scales
        shared = ceil_div(max(0, 2 * config.tile_n + taken - TENSOR_MEMORY_COLUMNS), store_n)
        stride = config.tile_n - shared * store_n
        drain_pieces, lag = (shared, 1) if shared else (drain_pieces, 2)
    store_scales = store_n // result.block if result.block else 0
    return Plan(config, step_k, store_n, step_scales, stride, drain_pieces, lag, a_row_bytes, store_scales)


def check(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: rows, tile shape, shared memory."""
    check_choices(kernel, config)
    check_rows(kernel, problem)
    block_scaled = format_named(problem.a_format).block is not None
    step = SCALE_TILE_ROWS if block_scaled else 16 * config.ctas
    if config.tile_n % step or not 32 <= config.tile_n <= MAX_TILE_N:
        why = "a tile of scales has 128 rows" if block_scaled else "tcgen05.mma and the staged store need it"
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "ctas": config.ctas},
            f"is not a multiple of {step} from 32 to {MAX_TILE_N}: {why}",
            f"use tile_n={min(max(round_up(config.tile_n, step), 32), MAX_TILE_N)}",
        )
    check_shared_memory(kernel, problem.out_format, plan(problem.a_format, problem.out_format, config))


def check_quantised(kernel: str, problem: GemmProblem, out_format: str, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem` with a result in the block format `out_format`."""
    check(kernel, problem, config)
    n, step = problem.n, 8 * TMA_ROW_BYTES // format_named(out_format).element.bits
    if n % step:
        rule = f"is not a multiple of {step}: TMA takes rows of whole {TMA_ROW_BYTES} bytes, here of {out_format}"
        raise UnsupportedError(kernel, {"n": n}, rule, f"pad n to {round_up(n, step)}")
    if config.tile_n % SCALE_TILE_ROWS:
        rule = f"is not a multiple of {SCALE_TILE_ROWS}, the columns that are quantised at a time"
        raise UnsupportedError(kernel, {"tile_n": config.tile_n}, rule, f"use tile_n={SCALE_TILE_ROWS}")
    check_shared_memory(kernel, out_format, plan(problem.a_format, out_format, config))


def check_shared_memory(kernel: str, out_format: str, planned: Plan) -> None:
    """Raise UnsupportedError for a plan that needs more shared memory than a block has."""
    config = planned.config
    needed = planned.shared_memory_bytes(format_named(out_format).element.bits)
    if needed > _mosaic_gpu.SHARED_MEMORY_BYTES:
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "ctas": config.ctas, "stages": config.stages},
            f"need {needed} bytes of shared memory; a block has {_mosaic_gpu.SHARED_MEMORY_BYTES}",
            "use fewer stages or a narrower tile",
        )


def check_rows(kernel: str, problem: GemmProblem) -> None:
    """Raise UnsupportedError for a row of an operand or of the result that TMA does not take."""
    for name, extent, format_name in (
        ("k", problem.k, problem.a_format),
        ("k", problem.k, problem.b_format),
        ("n", problem.n, problem.out_format),
    ):
        step = 8 * TMA_ROW_BYTES // math.gcd(8 * TMA_ROW_BYTES, format_named(format_name).element.bits)
        if extent % step:
            raise UnsupportedError(
                kernel,
                {name: extent},
                f"is not a multiple of {step}: TMA takes rows of whole {TMA_ROW_BYTES} bytes, here of {format_name}",
                f"pad {name} to {round_up(extent, step)}",
            )


def candidates(
    check: Callable[[Config], None], rows: int, columns: int, tiles_n: Sequence[int] = (256, 192, 128, 64)
) -> list[Config]:
    """Configs that `check` admits for a result of rows×columns, in the order of a rough cost: rounds × time of a tile.

    A stage of 128 rows × tile_n columns takes 2·tile_n cycles of a tensor core (8192 FP8 multiply-adds a cycle), and
    loading it at 64 bytes a cycle takes 2·(128 + block_n): the larger counts, in half cycles. Raises the
    UnsupportedError of the smallest config if there is none, for then the problem itself is at fault.
    """
    admitted = []
    for ctas, tile_n, stages in itertools.product((2, 1), tiles_n, (7, 6, 5, 4, 3)):
        config = Config(tile_n=tile_n, stages=stages, ctas=ctas)
        with contextlib.suppress(UnsupportedError):
            check(config)
            admitted.append(config)
    if not admitted:
        check(Config(tile_n=128, stages=3, ctas=1))

    def cost(config: Config) -> tuple[int, int]:
        rounds = ceil_div(
            ceil_div(rows, config.tile_m) * ceil_div(columns, config.tile_n), _GUESSED_CORES // config.ctas
        )
        return rounds * (max(config.tile_n, BLOCK_M + config.block_n) + _TILE_OVERHEAD_COLUMNS), -config.stages

    return sorted(admitted, key=cost)
