"""The choices of the Hopper decode kernel: what a config is, which are admitted, and which are worth trying first."""

import functools
import itertools
import math
from dataclasses import dataclass, replace

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._hopper import CONSUMERS, check_row, is_admitted
from narrowgemm.gemm._hopper_parts import CLUSTERS, SPLITS, check_parts, tail_tiles
from narrowgemm.gemm._pruning import worth_trying
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, round_up

#: Rows of one wgmma: of B, which is its left operand.
WGMMA_ROWS = 64
#: More rows of A are no decode step: there the dense kernel's tiles reuse the weights.
MAX_M = 128
#: K bytes of one TMA box: the widest swizzle atom.
BOX_K = 128
#: Weight rows of a block's tile: those of one consumer, or one or two wgmmas of each of two; three spill at 128 rows
#: of A.
TILES_N = (64, 128, 256)
#: K bytes of a stage: one, two or four boxes.
TILES_K = (128, 256, 512)
#: A stage is given back when the next one has come, so there are two; Mosaic GPU keeps the phases of a group of
#: barriers in the bits of one word.
MIN_STAGES, MAX_STAGES = 2, 32
#: What barriers and alignment take of a block's shared memory.
RESERVED_BYTES = 2048


@dataclass(frozen=True)
class Config:
    """Choices of a Hopper decode GEMM.

    tile_m: rows of A, wgmma's N: a multiple of 8 that holds all M.
    tile_n: rows of B of a tile, of one consumer if they are 64, else half of them a consumer's.
    tile_k: elements of K of a stage.
    stages: depth of the operand pipeline.
    splits: parts of K, computed side by side by the blocks of a cluster.
    tail_splits: the same of the tiles that are left for a last wave, where they are at most one a cluster; all others
                 are a block's.
    cluster_n: blocks of a cluster that take tiles side by side and share A, each loading its part for all; without
               splits. The blocks that share A are those that divide a tile of the last wave.
    """

    tile_m: int = 16
    tile_n: int = 128
    tile_k: int = 128
    stages: int = 12
    splits: int = 1
    tail_splits: int = 1
    cluster_n: int = 1

    @property
    def consumers(self) -> int:
        """Warpgroups of a block that multiply."""
        return 1 if self.tile_n == WGMMA_ROWS else CONSUMERS

    @property
    def parts(self) -> int:
        """Parts of K of all tiles, or of the last ones."""
        return max(self.splits, self.tail_splits)

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return max(self.parts, self.cluster_n)


def check_decode(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: M, alignment, tile shape, shared memory."""
    check_choices(kernel, config)
    check_shape(kernel, problem)
    if config.tile_m % 8 or not problem.m <= config.tile_m <= MAX_M:
        rule = f"is not a multiple of 8 from m={problem.m} to {MAX_M}: all of M is one tile"
        raise UnsupportedError(kernel, {"tile_m": config.tile_m}, rule, f"use tile_m={round_up(problem.m, 8)}")
    for name, known in {"tile_n": TILES_N, "tile_k": TILES_K}.items():
        if getattr(config, name) not in known:
            rule = f"is not one of {', '.join(map(str, known))}"
            raise UnsupportedError(kernel, {name: getattr(config, name)}, rule, f"change {name}")
    steps, tiles = ceil_div(problem.k, config.tile_k), ceil_div(problem.n, config.tile_n)
    check_parts(kernel, steps, tiles, config.splits, config.tail_splits)
    if config.cluster_n not in (1, 2) or (config.cluster_n == 2 and (config.splits > 1 or config.tile_m % 16)):
        values: dict[str, object] = {name: getattr(config, name) for name in ("cluster_n", "splits", "tile_m")}
        rule = "are not one block, or two without splits that load whole groups of 8 rows of A each"
        raise UnsupportedError(kernel, values, rule, "change cluster_n")
    needed, available = shared_memory_bytes(problem, config), _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if needed > available or not MIN_STAGES <= config.stages <= MAX_STAGES:
        stages = f"{MIN_STAGES} to {MAX_STAGES}"
        rule = f"needs {needed} bytes of shared memory; a block has {available} and takes {stages} stages"
        values = {name: getattr(config, name) for name in ("tile_m", "tile_n", "tile_k", "stages")}
        raise UnsupportedError(kernel, values, rule, "change stages or a tile")


def check_shape(kernel: str, problem: GemmProblem) -> None:
    """Raise UnsupportedError for a shape that no config does."""
    check_row(kernel, "k", problem.k, problem.a_format)
    check_row(kernel, "n", problem.n, problem.out_format)
    if problem.m > MAX_M:
        rule = f"is more than {MAX_M} rows, which one tile holds"
        raise UnsupportedError(kernel, {"m": problem.m}, rule, "use hopper_wgmma_fp8")


def candidates_decode(kernel: str, problem: GemmProblem) -> list[Config]:
    """The admitted configs of the search space that are worth trying, quickest by a rough estimate first.

    Raises UnsupportedError for a shape that no config does.
    """
    check_shape(kernel, problem)
    found = []
    for tile_n, tile_k, cluster_n in itertools.product(TILES_N, reversed(TILES_K), (1, 2)):
        if cluster_n > 1 and (problem.m < _LEAST_SHARED or problem.n <= tile_n):
            continue
        tile_m = round_up(problem.m, 8 * cluster_n)
        # With less than a wave of whole tiles a tail is all there is, and divided as `splits` has it.
        has_waves = ceil_div(problem.n, tile_n) > CLUSTERS[1]
        for splits, tail_splits in (*((splits, 1) for splits in SPLITS), *([(1, 2)] if has_waves else [])):
            config = Config(tile_m, tile_n, tile_k, 1, splits, tail_splits, cluster_n)
            config = replace(config, stages=_stages_that_fit(problem, config))
            is_deep = tile_k < TILES_K[-1] or config.stages >= _LEAST_OF_LONG
            if is_deep and is_admitted(check_decode, kernel, problem, config):
                found.append(config)
    tried = worth_trying(found, functools.partial(_estimated_cycles, problem))
    # No GPU has run these yet: behind all others, until a search has timed them.
    return sorted(tried, key=lambda config: config.cluster_n > 1)


def store_columns(out_itemsize: int) -> int:
    """Columns of C of one staged store: a consumer's 64, but of FP32 the 32 that a swizzle atom holds."""
    return min(WGMMA_ROWS, BOX_K // out_itemsize)


def shared_memory_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of a block: the stages, a staging tile a consumer, and what the other parts of K send."""
    operands = config.stages * _stage_bytes(config)
    staging = config.consumers * WGMMA_ROWS * config.tile_m * format_named(problem.out_format).element.bits // 8
    return operands + staging + received_bytes(config)


def received_bytes(config: Config) -> int:
    """FP32 sums of a consumer, from every other block of the cluster."""
    return (config.parts - 1) * config.tile_n // config.consumers * config.tile_m * 4


def _stage_bytes(config: Config) -> int:
    return (config.tile_m + config.tile_n) * config.tile_k


def _stages_that_fit(problem: GemmProblem, one_stage: Config) -> int:
    fixed = shared_memory_bytes(problem, one_stage) - _stage_bytes(one_stage)
    most = (_mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES - fixed) // _stage_bytes(one_stage)
    return min(MAX_STAGES, most)


#: Rows of A from which on sharing them is tried: below, weights are nearly all that is loaded.
_LEAST_SHARED = 32
#: Stages of the longest that are worth it: with fewer, shorter ones were quicker on an H200.
_LEAST_OF_LONG = 5
#: The memory's 4.4 TB/s at 1.75 GHz, and less where 128 bytes of a row are loaded at once. These and all that follow
#: are fitted to the 1181 times of a search at 63 shapes on an H200 (docs/performance/hopper_wgmma_fp8_decode.md): the
#: first guess takes 0.6 % longer than the quickest of the space, in geometric mean, and 7 % at most.
_MEMORY_BYTES_PER_CYCLE, _OF_SHORT_ROWS = 2500, 0.965
#: What one multiprocessor takes.
_BYTES_PER_CYCLE = 59
#: From the request for a stage to its first byte. A stage is given back when the next one has come, so one less than
#: there are is on its way.
_LATENCY_CYCLES = 2050
#: What reading A again from the L2 costs, of what a byte of memory costs.
_A_SHARE = 0.04
_EPILOGUE_ELEMENTS_PER_CYCLE = 18  # not measured, of the same order as for the dense kernels
_CYCLES_PER_TILE, _LAUNCH_CYCLES = 380, 3800
_EXCHANGE_CYCLES, _EXCHANGE_BYTES_PER_CYCLE = 450, 5.5  # the cycles for each doubling of the cluster
_START_CYCLES = 1770  # of a cluster that waits for another to end: nothing is fetched ahead for it


def _estimated_cycles(problem: GemmProblem, config: Config) -> float:
    """Cycles of the whole grid: of all bytes through the memory, or of the busiest multiprocessor's, and of the end."""
    tiles = ceil_div(problem.n, config.tile_n)
    tail = tail_tiles(tiles, config.parts, CLUSTERS[1]) if config.tail_splits > 1 else 0
    waves = ceil_div(tiles - tail, CLUSTERS[config.splits]) + (tail > 0) / config.tail_splits
    steps = ceil_div(ceil_div(problem.k, config.tile_k), config.splits)
    rate = _MEMORY_BYTES_PER_CYCLE * (_OF_SHORT_ROWS if config.tile_k == BOX_K else 1)
    memory = problem.k * (problem.n + _A_SHARE * tiles * config.tile_m / config.cluster_n) / rate
    arriving = _stage_bytes(config) / _BYTES_PER_CYCLE
    busiest = waves * steps * max(arriving, (_LATENCY_CYCLES + arriving) / (config.stages - 1))
    end = config.tile_n * config.tile_m / _EPILOGUE_ELEMENTS_PER_CYCLE + _CYCLES_PER_TILE
    if config.parts > 1:
        end += math.log2(config.parts) * _EXCHANGE_CYCLES + received_bytes(config) / _EXCHANGE_BYTES_PER_CYCLE
    if config.splits > 1:
        end += (waves - 1) * _START_CYCLES
    return max(memory, busiest) + end + _LAUNCH_CYCLES
