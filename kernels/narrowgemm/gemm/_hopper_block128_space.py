"""The choices of Hopper's kernel for FP8 in blocks of 128: what a config is, what is admitted, what is tried first."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _hopper_space
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._hopper import CONSUMERS, is_admitted
from narrowgemm.gemm._hopper_space import (
    consumer_tile,
    consumers_of_a_tile,
    estimated_cycles,
    stages_that_fit,
    tensor_cycles,
)
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

NAME = "hopper_wgmma_fp8_block128"
#: Rows of B and elements of K that share a scale.
BLOCK = 128
#: Accumulators a thread of so many consumers, those of parts in flight included, that leave room for the rest in its
#: registers.
MAX_ACCUMULATORS = {2: 192, 3: 128}
#: Parts of a step: with more, or in longer rounds, LLVM computes too many addresses ahead.
MAX_PARTS = 2
#: Places in the parts of a step where another block of B can begin: each is a choice of factors that a thread holds.
MAX_BOUNDARIES = 10
#: Steps of K whose scales are fetched at once: rounds do not cross from one such group into the next.
GROUP_STEPS = 4


@dataclass(frozen=True)
class Config(_hopper_space.Config):
    """Choices of a dense Hopper GEMM whose partial sums are promoted.

    part_n:    columns of a partial sum, of 64 rows; they divide a consumer's columns.
    in_flight: partial sums that multiply at once, 1 or 2.
    round_k:   steps of K after which none is in flight: 1, 2 or 4.
    consumers: warpgroups that multiply, 2 or 3.
    """

    part_n: int = 128
    in_flight: int = 1
    round_k: int = 1
    consumers: int = CONSUMERS


def check_block128(problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: what `check_dense` says, parts and registers."""
    check_choices(NAME, config)
    if config.consumers not in MAX_ACCUMULATORS:
        rule = "leaves the consumers of a block too few registers, or is none"
        raise UnsupportedError(NAME, {"consumers": config.consumers}, rule, "use 2 or 3")
    m_wg, n_wg = consumer_tile(config)
    parts: dict[str, object] = {"part_n": config.part_n, "in_flight": config.in_flight, "round_k": config.round_k}
    tile: dict[str, object] = {"tile_m": config.tile_m, "tile_n": config.tile_n, "split": config.split}
    if config.in_flight not in (1, 2) or config.round_k not in (1, 2, GROUP_STEPS):
        raise UnsupportedError(NAME, parts, "in_flight is 1 or 2, and round_k 1, 2 or 4", "change them")
    if config.part_n < 1 or config.part_n % 8 or n_wg % config.part_n:
        rule = f"parts of a multiple of 8 columns have to divide a consumer's {n_wg}"
        raise UnsupportedError(NAME, tile | parts, rule, "change part_n or the tile")
    parts_of_step = m_wg // _hopper_space.STORE_ROWS * (n_wg // config.part_n)
    if parts_of_step > MAX_PARTS or (parts_of_step > 1 and config.round_k > 1):
        rule = (
            f"makes {parts_of_step} parts a step; more than {MAX_PARTS}, or several in rounds of several steps, spill"
        )
        raise UnsupportedError(NAME, tile | parts, rule, "choose a larger part_n, or round_k=1")
    if config.part_n > BLOCK + grain(config):
        rule = f"parts that begin at multiples of {grain(config)} can meet three blocks of {BLOCK} columns"
        raise UnsupportedError(NAME, tile | parts, rule, "choose a smaller part_n, or a tile_n of more factors of 2")
    boundaries = parts_of_step * (config.part_n // grain(config)) if config.part_n > grain(config) else 0
    if boundaries > MAX_BOUNDARIES:
        rule = (
            f"has {boundaries} places in a step where a block of {BLOCK} can begin; above {MAX_BOUNDARIES} they spill"
        )
        raise UnsupportedError(NAME, tile | parts, rule, "choose a tile_n of more factors of 2")
    accumulators = (m_wg * n_wg + config.in_flight * _hopper_space.STORE_ROWS * config.part_n) // 128
    if accumulators > (most := MAX_ACCUMULATORS[config.consumers]):
        rule = f"needs {accumulators} accumulators a thread of {config.consumers} consumers; above {most} they spill"
        raise UnsupportedError(NAME, tile | parts, rule, "shrink the tile or part_n")
    if config.stages <= config.in_flight:
        rule = "are too few stages: a consumer that has parts of several steps in flight waits for one more"
        raise UnsupportedError(NAME, parts | {"stages": config.stages}, rule, f"use at least {config.in_flight + 1}")
    _hopper_space.check_dense(NAME, problem, config)


def grain(config: Config) -> int:
    """A divisor of every column where a part can begin, and of a block."""
    return math.gcd(BLOCK, config.tile_n, consumer_tile(config)[1], config.part_n)


def candidates_block128(problem: GemmProblem) -> list[Config]:
    """Every admitted config of the search space, quickest by a rough estimate first.

    Clusters are as `candidates_dense` has them. Raises the UnsupportedError of the smallest config where none is
    admitted, for then the problem itself is at fault.
    """
    space = [
        replace(config, stages=stages, cluster_m=cluster_m, cluster_n=cluster_n)
        for config in _SHAPES
        for stages in (stages_that_fit(problem, replace(config, stages=1)),)
        for cluster_m, cluster_n in ((1, 1), (2, 1), (1, 2))
        if cluster_m <= ceil_div(problem.m, config.tile_m) and cluster_n <= ceil_div(problem.n, config.tile_n)
    ]
    admitted = [config for config in space if is_admitted(_check, NAME, problem, config)]
    if not admitted:
        check_block128(problem, replace(_SMALLEST, stages=3))
    return sorted(admitted, key=functools.partial(_estimated_cycles, problem))


def _check(_: str, problem: GemmProblem, config: Config) -> None:
    check_block128(problem, config)


def _shape(
    tile_m: int,
    tile_n: int,
    split: Literal["m", "n"] | None,
    part_n: int,
    in_flight: int,
    round_k: int,
    consumers: int = CONSUMERS,
) -> Config:
    return Config(tile_m, tile_n, 1, split, part_n=part_n, in_flight=in_flight, round_k=round_k, consumers=consumers)


_SMALLEST = _shape(64, 128, "n", 64, 2, 4)
#: Tiles worth trying, and how each is cut. Parts are as wide as registers allow, for the wider they are the longer the
#: other consumer multiplies beside a gap; two in flight where there is room for them.
_SHAPES: tuple[Config, ...] = (
    *(_shape(128, tile_n, "m", tile_n, 1, 1) for tile_n in (128, 144, 160, 192)),
    _shape(128, 128, "m", 128, 2, 2),
    *(_shape(128, tile_n, "m", tile_n, 2, 4) for tile_n in (64, 80, 96, 112, 128)),
    _shape(128, 160, "m", 80, 2, 1),
    _shape(128, 192, "m", 96, 2, 1),
    _shape(128, 256, "m", 128, 1, 1),
    *(_shape(256, tile_n, "m", tile_n, 2, 1) for tile_n in (64, 96)),
    _shape(256, 128, "m", 128, 1, 1),
    _shape(64, 256, "n", 128, 2, 4),
    *(_shape(64, tile_n, None, tile_n, 2, 4) for tile_n in (64, 96, 128)),
    _shape(64, 192, None, 192, 1, 1),
    _shape(64, 256, None, 128, 1, 1),
    *(_shape(128, tile_n, None, tile_n, 1, 1) for tile_n in (64, 128)),
    _shape(64, 192, "n", 96, 2, 4),
    _SMALLEST,
    _shape(192, 128, "m", 128, 1, 1, consumers=3),
)
#: Fitted to 41 times on an H200 (docs/performance/hopper_wgmma_fp8_block128.md), of which it misses one by 8 %, and the
#: others by less.
_GAP_CYCLES = 45  # what a gap adds to promoting: the wait's end, descriptors, barriers, the first instruction's start
_CHOICE_CYCLES = 20  # a part that can meet two blocks of B: which of two factors, again and again
#: Two rows of eight columns a thread, of a warp scheduler that issues one instruction a cycle.
_PROMOTED_COLUMNS_PER_CYCLE = 2
#: Longer rounds have fewer gaps, but were no quicker.
_ROUND_WORTH = 2


def _estimated_cycles(problem: GemmProblem, config: Config) -> float:
    """As for dense kernels; besides, the tensor core rests in the consumers' gaps.

    Consumers that share a tile also share the tensor core, an instruction in turn. Both end a part within one
    instruction, which takes as long as promoting does: so of a gap only the rest is left without work, in both at once.
    Consumers that take whole tiles in turn multiply one after the other, since their steps come in order.
    """
    m_wg, n_wg = consumer_tile(config)
    parts = m_wg // _hopper_space.STORE_ROWS * (n_wg // config.part_n)
    gaps = parts if config.in_flight == 1 else 1 / min(config.round_k, _ROUND_WORTH)
    gap, consumers = float(_GAP_CYCLES), consumers_of_a_tile(config)
    if consumers == 1:
        gap += config.part_n / _PROMOTED_COLUMNS_PER_CYCLE
    choices = consumers * parts if config.part_n > grain(config) else 0
    step = tensor_cycles(config.tile_m, config.tile_n) + gaps * gap + choices * _CHOICE_CYCLES
    return estimated_cycles(problem, 1, config, step)
