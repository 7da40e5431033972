"""The choices of the Hopper kernels with folded weights: what a config is, which are admitted and worth trying."""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.fold_words import BLOCK, TILE_K, TILE_ROWS, tiles_shape
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._hopper import CONSUMERS, check_row, is_admitted
from narrowgemm.gemm._hopper_parts import CLUSTERS, SPLITS, check_parts, tail_tiles
from narrowgemm.gemm._pruning import worth_trying
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, raster

#: Rows of B, columns of C, of a block's tile: those of one consumer, or of two.
TILES_N = (TILE_ROWS, CONSUMERS * TILE_ROWS)
#: wgmma's widest N, and 128 accumulators a thread.
MAX_TILE_M = 256
#: Commit groups of a step: of all its blocks of K, or of one each.
GROUPS = (1, TILE_K // BLOCK)
#: With four consumers, whose threads have fewer registers.
MAX_TILE_M_OF_FOUR = 64
#: Steps of K are taken in pairs, the first of which is given back during the second.
MIN_STAGES, MAX_STAGES = 2, 24
#: What barriers and alignment take of a block's shared memory.
RESERVED_BYTES = 2048
#: Rows of A in a band of tiles: the tiles in flight at once, 132, then cover about as many columns of C as rows.
BAND_ROWS = 2048
#: Rows of A from which on sharing them is tried: below, weights are most of what is loaded.
_LEAST_SHARED = 64
#: Rows of B of a tile and pairs of consumers -> stages that are tried, or as many as fit. Eight of 128 rows are enough
#: for what is on its way from memory, and with one pair more were slower: blocks that ask far ahead get in each other's
#: way. Two pairs halve what each finds, and 64 rows the bytes of a stage.
_DEPTHS = {
    (CONSUMERS * TILE_ROWS, 1): (8, MAX_STAGES),
    (CONSUMERS * TILE_ROWS, 2): (8, 12, 16),
    (TILE_ROWS, 1): (8, 16),
    (TILE_ROWS, 2): (12, 16, MAX_STAGES),
}
#: Parts of K, blocks that share A, and parts of K of the last tiles.
_PARTS = (*((splits, 1, 1) for splits in SPLITS), (1, 2, 1), (1, 1, 2))
_TILES_M = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


@dataclass(frozen=True)
class Config:
    """Choices of a Hopper GEMM with folded weights.

    tile_m: rows of A of a tile, a multiple of 8; of C it is tile_m×tile_n.
    stages: depth of the operand pipeline, in steps of 128 of K.
    splits: parts of K, computed side by side by the blocks of a cluster.
    cluster_n: blocks of a cluster side by side in N, which share A, each loading its part for all; without splits.
    pairs:  of consumers, 1 or 2; two take two steps of K in turn and add their sums at the end of a tile.
    tile_n: rows of B of a tile, 64 for each consumer of a pair, which of a tile of 64 is one consumer alone.
    groups: commit groups of a step: 1, or 4, of a block of K each, so that one is multiplied while the next is widened.
    tail_splits: as `splits`, of the tiles that are left for a last wave, where they are at most one a cluster; all
        others are a block's.
    """

    tile_m: int = 16
    stages: int = 12
    splits: int = 1
    cluster_n: int = 1
    pairs: int = 1
    tile_n: int = CONSUMERS * TILE_ROWS
    groups: int = 1
    tail_splits: int = 1

    @property
    def abreast(self) -> int:
        """Consumers that multiply rows of their own: a pair, or the one of a tile of 64 rows."""
        return self.tile_n // TILE_ROWS

    @property
    def consumers(self) -> int:
        """Warpgroups of a block that multiply."""
        return self.pairs * self.abreast

    @property
    def parts(self) -> int:
        """Blocks of a cluster that divide K: of all tiles, or of the last ones."""
        return max(self.splits, self.tail_splits)


def check_folded(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: alignment, tile, parts of K, shared memory."""
    check_choices(kernel, config)
    check_row(kernel, "n", problem.n, problem.out_format)
    if problem.k % BLOCK:
        rule = f"is not a multiple of {BLOCK}, the block of {problem.b_format}"
        raise UnsupportedError(kernel, {"k": problem.k}, rule, f"pad k to {math.ceil(problem.k / BLOCK) * BLOCK}")
    if config.tile_m % 8 or not 8 <= config.tile_m <= MAX_TILE_M:
        rule = f"is not a multiple of 8 from 8 to {MAX_TILE_M}, the widest wgmma"
        raise UnsupportedError(kernel, {"tile_m": config.tile_m}, rule, "change tile_m")
    check_parts(kernel, ceil_div(problem.k, TILE_K), tile_count(problem, config), config.splits, config.tail_splits)
    if config.cluster_n not in (1, 2) or (config.cluster_n == 2 and (config.parts > 1 or config.tile_m % 16)):
        names = ("cluster_n", "splits", "tail_splits", "tile_m")
        values: dict[str, object] = {name: getattr(config, name) for name in names}
        rule = "are not one block, or two without parts of K that load whole groups of 8 rows of A each"
        raise UnsupportedError(kernel, values, rule, "change cluster_n")
    if config.pairs not in (1, 2):
        raise UnsupportedError(kernel, {"pairs": config.pairs}, "of consumers are not 1 or 2", "change pairs")
    if config.tile_n not in TILES_N:
        rule = f"is not one of {', '.join(map(str, TILES_N))}"
        raise UnsupportedError(kernel, {"tile_n": config.tile_n}, rule, "change tile_n")
    if config.groups not in GROUPS:
        rule = f"are not {GROUPS[0]}, or {GROUPS[1]}: one for each block of K of a step"
        raise UnsupportedError(kernel, {"groups": config.groups}, rule, "change groups")
    most = MAX_TILE_M_OF_FOUR if config.consumers == 2 * CONSUMERS else MAX_TILE_M
    if config.pairs == 2 and (config.tile_m > most or config.cluster_n > 1 or config.stages % 4):
        values = {name: getattr(config, name) for name in ("pairs", "tile_m", "cluster_n", "stages")}
        rule = f"take tiles of up to {most} rows, no cluster_n, and stages that are a multiple of 4"
        raise UnsupportedError(kernel, values, rule, "use pairs=1, or change them")
    needed, available = shared_memory_bytes(problem, config), _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if needed > available or not MIN_STAGES <= config.stages <= MAX_STAGES:
        stages = f"{MIN_STAGES} to {MAX_STAGES}"
        rule = f"needs {needed} bytes of shared memory; a block has {available} and takes {stages} stages"
        raise UnsupportedError(kernel, {"tile_m": config.tile_m, "stages": config.stages}, rule, "change stages")


def candidates_folded(kernel: str, problem: GemmProblem) -> list[Config]:
    """The admitted configs of the search space that are worth trying, quickest by a rough estimate first.

    Raises the UnsupportedError of the smallest config where none is admitted, for then the problem itself is at fault.
    """
    found = []
    for narrower, tile_m in itertools.pairwise((0, *_TILES_M)):
        if narrower >= problem.m:
            break  # that one holds all rows
        for (tile_n, pairs), depths in _DEPTHS.items():
            for splits, cluster_n, tail_splits in _PARTS:
                if cluster_n > 1 and (problem.n <= Config.tile_n or tile_m < _LEAST_SHARED):
                    continue
                config = Config(tile_m, 1, splits, cluster_n, pairs, tile_n, tail_splits=tail_splits)
                if tail_splits > 1 and tile_count(problem, config) < CLUSTERS[1]:
                    continue  # a tail is all there is, and divided as `splits` has it
                unit = 4 if pairs > 1 else 1
                fitting = _stages_that_fit(problem, config) // unit * unit
                for stages, groups in itertools.product(sorted({min(fitting, most) for most in depths}), GROUPS):
                    chosen = replace(config, stages=stages, groups=groups)
                    found += [chosen] if is_admitted(check_folded, kernel, problem, chosen) else []
    if not found:
        check_folded(kernel, problem, Config(tile_m=8, stages=MIN_STAGES))
    tried = worth_trying(found, functools.partial(_estimated_cycles, problem))
    # No GPU has run these yet: behind all others, until a search has timed them.
    return sorted(tried, key=lambda config: config.groups > 1 or config.tail_splits > 1)


def tile_count(problem: GemmProblem, config: Config) -> int:
    """Tiles of the whole grid: of a cluster that shares A, together one."""
    return ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n * config.cluster_n)


def place_of(index: Any, tiles: tuple[int, int], tile_m: int) -> tuple[Any, Any]:
    """Tile in M and in N of tile number `index`; Python, NumPy or traced integers.

    Tiles that share weights follow each other, in bands of rows of A that the L2 holds.
    """
    tile_n, tile = raster(index, tiles[1], tiles[0], max(1, BAND_ROWS // tile_m))
    return tile, tile_n


def store_rows(tile_m: int) -> int:
    """Rows of A that are staged for a store at once: the most that divide a tile."""
    return next(rows for rows in range(64, 0, -8) if tile_m % rows == 0)


def store_columns(out_itemsize: int) -> int:
    """Columns of C of one staged store: a consumer's 64, but of FP32 the 32 that a swizzle atom of 128 bytes holds."""
    return min(TILE_ROWS, 128 // out_itemsize)


def shared_memory_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of a block: the stages, two staging tiles a consumer, and what the other parts of K send."""
    itemsize = format_named(problem.out_format).element.bits // 8
    staging = config.abreast * 2 * TILE_ROWS * store_rows(config.tile_m) * itemsize
    sums = (config.pairs - 1) * config.abreast * TILE_ROWS * config.tile_m * 4
    stages = config.stages * _stage_bytes(problem.b_format, config)
    return stages + staging + received_bytes(config) + sums


def received_bytes(config: Config) -> int:
    """FP32 sums of a consumer, from every other block of the cluster."""
    return (config.parts - 1) * TILE_ROWS * config.tile_m * 4


def _stage_bytes(fmt: str, config: Config) -> int:
    return _weight_bytes(fmt, config) + config.tile_m * TILE_K


def _weight_bytes(fmt: str, config: Config) -> int:
    rows, words = tiles_shape((TILE_ROWS, TILE_K), fmt)[2:]
    return config.abreast * rows * words * 4


def _stages_that_fit(problem: GemmProblem, one_stage: Config) -> int:
    stage = _stage_bytes(problem.b_format, one_stage)
    fixed = shared_memory_bytes(problem, one_stage) - stage
    return min(MAX_STAGES, (_mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES - fixed) // stage)


#: The memory's 4.25 TB/s at 1.75 GHz, a multiprocessor's share of it where fewer are at work, and of the L2. These and
#: what follows are fitted to 1996 times of 59 shapes and formats on an H200
#: (docs/performance/hopper_wgmma_w4a8_folded.md): with FP4 weights the first guess takes 1.2 % longer than the quickest
#: of the space, in geometric mean, and 10 % at most.
_MEMORY_BYTES_PER_CYCLE, _BYTES_PER_CYCLE, _L2_BYTES_PER_CYCLE = 2430, 24, 63
#: Of a step: what two consumers take to widen it, and more for each row of A; two pairs take no less.
_STEP_CYCLES, _STEP_CYCLES_PER_ROW = {"mxfp4": 415, "mxfp6_e3m2": 505, "mxfp6_e2m3": 700}, 2.1
#: Of that a consumer alone, and two that take steps of 64 rows in turn.
_ALONE = {1: 0.65, 2: 0.59}
_LATENCY_CYCLES = 1700  # from the request for a stage to its first byte
_CYCLES_PER_TILE, _CYCLES_PER_SUM, _LAUNCH_CYCLES = 1350, 50, 4100
_EXCHANGE_CYCLES, _EXCHANGE_BYTES_PER_CYCLE = 1250, 12  # the cycles for each doubling of the cluster
_CYCLES_PER_LOADED_BYTE = 0.004  # of the dense kernels: what loads cost a board at its power limit
_EPILOGUE_ELEMENTS_PER_CYCLE = 18


def _estimated_cycles(problem: GemmProblem, config: Config) -> float:
    """Cycles of the whole grid: of full waves, of a last one, which has the memory for itself, and of their ends."""
    tiles, at_once = tile_count(problem, config) * config.cluster_n, CLUSTERS[config.splits]
    tail = tail_tiles(tiles, config.parts, CLUSTERS[1]) if config.tail_splits > 1 else 0
    full, last = divmod(tiles - tail, at_once)
    steps = full * _step_cycles(problem, config, at_once) + (_step_cycles(problem, config, last) if last else 0)
    if tail:
        steps += _step_cycles(problem, config, config.parts * tail) / config.parts
    end = config.tile_n * config.tile_m / _EPILOGUE_ELEMENTS_PER_CYCLE + _CYCLES_PER_TILE
    end += (config.pairs - 1) * _CYCLES_PER_SUM
    ends = ceil_div(tiles, at_once) * end
    if config.parts > 1:
        exchange = math.log2(config.parts) * _EXCHANGE_CYCLES + received_bytes(config) / _EXCHANGE_BYTES_PER_CYCLE
        ends += exchange * (1 if tail else ceil_div(tiles, at_once))
    return ceil_div(ceil_div(problem.k, TILE_K), config.splits) * steps + ends + _LAUNCH_CYCLES


def _step_cycles(problem: GemmProblem, config: Config, tiles: int) -> float:
    """Of a step of all of so many tiles at once, by what takes the longest: wgmma, widening, the memory or latency."""
    tiles_m, weights = ceil_div(problem.m, config.tile_m), _weight_bytes(problem.b_format, config)
    loaded = weights + config.tile_m * TILE_K // config.cluster_n
    share = _MEMORY_BYTES_PER_CYCLE / (tiles * config.splits)
    arriving = max(weights / min(_BYTES_PER_CYCLE, share) / tiles_m, loaded / _L2_BYTES_PER_CYCLE)
    widening = _STEP_CYCLES[problem.b_format] + _STEP_CYCLES_PER_ROW * config.tile_m
    return max(
        config.tile_n * config.tile_m * TILE_K / 4096 + _CYCLES_PER_LOADED_BYTE * loaded,
        widening * (1 if config.abreast > 1 else _ALONE[config.pairs]),
        arriving,
        (_LATENCY_CYCLES + arriving) / (config.stages - config.pairs),
    )
