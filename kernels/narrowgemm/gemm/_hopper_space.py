"""The choices of the dense Hopper kernels: what a config is, which are admitted, and which are worth trying first."""

import functools
import math
from dataclasses import dataclass
from typing import Literal

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._hopper import CONSUMERS, check_row, is_admitted
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

#: K bytes of one stage: the widest swizzle atom. A wider box could not be swizzled by one TMA copy.
STAGE_K_BYTES = 128
#: What barriers and alignment take of a block's shared memory.
RESERVED_BYTES = 1024
#: More FP32 accumulators a thread than this spill: 255 registers, less addresses and what the epilogue holds.
MAX_ACCUMULATORS = 128
#: Larger clusters leave some multiprocessors unused: a grid as large as the die then runs in two waves, not in one.
MAX_CLUSTER = 2
#: Narrower stores have no swizzle: 32 bytes of FP8.
MIN_CONSUMER_N = 32
#: Elements of the longest box that TMA copies, in each dimension (CUDA driver API, cuTensorMapEncodeTiled), and so rows
#: of a tile of an operand.
LONGEST_BOX = 256
#: Rows of one staged store: those of one wgmma.
STORE_ROWS = 64


@dataclass(frozen=True)
class Config:
    """Choices of a dense Hopper GEMM.

    tile_m, tile_n:       output tile of one thread block.
    stages:               depth of the operand pipeline.
    split:                dimension of the tile that the consumers divide (cooperative), or None: they take whole tiles
                          in turn (ping-pong).
    cluster_m, cluster_n: blocks of a cluster side by side in M and in N; those in M share B, those in N share A, each
                          loading its part for all.
    raster:               dimension that varies fastest inside a rasterisation group.
    raster_width:         cluster tiles of that dimension in a group.
    """

    tile_m: int = 128
    tile_n: int = 256
    stages: int = 4
    split: Literal["m", "n"] | None = "m"
    cluster_m: int = 1
    cluster_n: int = 1
    raster: Literal["m", "n"] = "m"
    raster_width: int = 8

    @property
    def consumers(self) -> int:
        """Warpgroups of a block that multiply."""
        return CONSUMERS


def check_dense(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: alignment, tile shape, registers, shared memory."""
    check_choices(kernel, config)
    check_row(kernel, "k", problem.k, problem.a_format)
    check_row(kernel, "k", problem.k, problem.b_format)
    check_row(kernel, "n", problem.n, problem.out_format)
    if config.cluster_m * config.cluster_n > MAX_CLUSTER:
        raise UnsupportedError(
            kernel,
            {"cluster_m": config.cluster_m, "cluster_n": config.cluster_n},
            f"makes clusters of more than {MAX_CLUSTER} blocks, which do not fill the die in one wave",
            "choose a smaller cluster",
        )
    m_wg, n_wg = consumer_tile(config)
    tile: dict[str, object] = {"tile_m": config.tile_m, "tile_n": config.tile_n, "split": config.split}
    is_divided = m_wg * n_wg * consumers_of_a_tile(config) == config.tile_m * config.tile_n
    if not is_divided or m_wg % 64 or n_wg % 8 or m_wg < 64 or not MIN_CONSUMER_N <= n_wg <= 256:
        rule = (
            f"gives a consumer {m_wg}×{n_wg}; these make up the tile, and m goes in steps of 64, n in steps of 8 "
            f"from {MIN_CONSUMER_N} to 256"
        )
        raise UnsupportedError(kernel, tile, rule, "change the tile")
    if max(config.tile_m, config.tile_n) > LONGEST_BOX:
        rule = f"has more rows of an operand than one TMA box takes, {LONGEST_BOX}"
        raise UnsupportedError(kernel, tile, rule, "shrink the tile")
    if m_wg * n_wg // 128 > MAX_ACCUMULATORS:
        raise UnsupportedError(
            kernel,
            tile,
            f"needs {m_wg * n_wg // 128} accumulators a thread; above {MAX_ACCUMULATORS} they spill",
            "shrink the tile",
        )
    needed = shared_memory_bytes(problem, config)
    available = _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if needed > available:
        raise UnsupportedError(
            kernel,
            tile | {"stages": config.stages},
            f"needs {needed} bytes of shared memory; a block has {available}",
            "use fewer stages or a smaller tile",
        )


def _itemsize(fmt: str) -> int:
    return format_named(fmt).element.bits // 8


def consumers_of_a_tile(config: Config) -> int:
    """Consumers that work on one tile: all, or one where they take turns."""
    return 1 if config.split is None else config.consumers


def consumer_tile(config: Config) -> tuple[int, int]:
    """The m×n part of the block's tile that one consumer computes."""
    return (
        config.tile_m // config.consumers if config.split == "m" else config.tile_m,
        config.tile_n // config.consumers if config.split == "n" else config.tile_n,
    )


def store_columns(config: Config, itemsize: int) -> int:
    """Columns of one staged store: the widest power of two within a swizzle atom and a consumer's columns."""
    widest = 1 << (consumer_tile(config)[1].bit_length() - 1)
    return min(STAGE_K_BYTES // itemsize, widest)


def shared_memory_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of a block: the operand stages and two staging tiles a consumer."""
    out_itemsize = _itemsize(problem.out_format)
    operands = config.stages * STAGE_K_BYTES * (config.tile_m + config.tile_n)
    return operands + config.consumers * 2 * STORE_ROWS * store_columns(config, out_itemsize) * out_itemsize


def candidates_dense(kernel: str, problem: GemmProblem, products: int = 1) -> list[Config]:
    """Every admitted config of the search space, quickest by a rough estimate for so many such products first.

    A cluster never has more blocks side by side than there are tiles: its last block would compute nothing that is
    kept, on a multiprocessor of its own. Raises the UnsupportedError of the smallest config where none is admitted,
    for then the problem itself is at fault.
    """
    space = [
        Config(tile_m, tile_n, stages, split, cluster_m, cluster_n)
        for tile_m, tile_n, split in _TILES
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2))
        for stages in (stages_that_fit(problem, Config(tile_m, tile_n, 1, split)),)
        if cluster_m <= ceil_div(problem.m, tile_m) and cluster_n <= ceil_div(problem.n, tile_n)
    ]
    admitted = [config for config in space if is_admitted(check_dense, kernel, problem, config)]
    if not admitted:
        check_dense(kernel, problem, Config(tile_m=64, tile_n=64, stages=1, split="n"))
    return sorted(admitted, key=functools.partial(estimated_cycles, problem, products))


#: Tiles worth trying. 64×256 a consumer has the best ratio of arithmetic to loads; the widths below it let the number
#: of tiles come just under a multiple of the multiprocessors; narrow ones serve few rows.
_TILES: tuple[tuple[int, int, Literal["m", "n"] | None], ...] = (
    *((128, tile_n, "m") for tile_n in (64, 96, 112, 128, 160, 168, 176, 192, 208, 224, 240, 256)),
    *((256, tile_n, "m") for tile_n in (64, 96, 128)),
    *((64, tile_n, "n") for tile_n in (64, 96, 128, 192, 256)),
    *((tile_m, tile_n, None) for tile_m, tile_n in ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128))),
)
MAX_STAGES = 12
#: Streaming multiprocessors of the SXM boards.
_SMS = 132
#: Fitted to 21 sweeps on an H200 (docs/performance/hopper_wgmma_fp8.md); the first candidate was within 4 % of the best
#: in 19 of them.
_LOAD_BYTES_PER_CYCLE = 58
_CYCLES_PER_LOADED_BYTE = 0.004  # what loads cost a board at its power limit, even behind arithmetic
_EPILOGUE_ELEMENTS_PER_CYCLE = 18
_CYCLES_PER_TILE = 1500
_PING_PONG_STEP = 1.05  # one consumer alone leaves the tensor core a gap between its K steps


def stages_that_fit(problem: GemmProblem, one_stage: Config) -> int:
    """How many stages shared memory has room for."""
    stage_bytes = STAGE_K_BYTES * (one_stage.tile_m + one_stage.tile_n)
    fixed_bytes = shared_memory_bytes(problem, one_stage) - stage_bytes
    return min(MAX_STAGES, (_mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES - fixed_bytes) // stage_bytes)


def tensor_cycles(rows: int, columns: int) -> float:
    """Cycles that a tensor core multiplies for a 128-byte K step of so many rows and columns."""
    return rows * columns / 32


def estimated_cycles(problem: GemmProblem, products: float, config: Config, least_step: float = 0.0) -> float:
    """Cycles of the busiest multiprocessor: K steps bound by tensor core or loads, and an exposed epilogue a tile.

    A partner in the cluster spares half an operand. `least_step`: cycles that anything else takes in a tile's K step.
    """
    tiles_m = math.ceil(problem.m / (config.tile_m * config.cluster_m)) * config.cluster_m
    tiles_n = math.ceil(problem.n / (config.tile_n * config.cluster_n)) * config.cluster_n
    loaded_bytes = (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m) * STAGE_K_BYTES
    step = max(tensor_cycles(config.tile_m, config.tile_n), loaded_bytes / _LOAD_BYTES_PER_CYCLE, least_step)
    step += _CYCLES_PER_LOADED_BYTE * loaded_bytes
    epilogue = config.tile_m * config.tile_n / _EPILOGUE_ELEMENTS_PER_CYCLE
    if config.split is None:
        step, epilogue = step * _PING_PONG_STEP, 0.0
    k_steps = math.ceil(problem.k * _itemsize(problem.a_format) / STAGE_K_BYTES)
    return math.ceil(products * tiles_m * tiles_n / _SMS) * (k_steps * step + epilogue + _CYCLES_PER_TILE)
