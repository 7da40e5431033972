"""The choices of the Hopper kernels with FP4 and FP6 weights: what a config is, which are admitted and worth trying."""

import functools
import math
from dataclasses import dataclass
from typing import Any

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.shuffle import TILE_K, TILE_ROWS, tiles_shape
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_gpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm._hopper import CONSUMERS, TMA_ROW_BYTES, is_admitted
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

#: Rows of B, columns of C, of a tile.
TILE_N = CONSUMERS * TILE_ROWS
#: Formats that the kernels store: FP8 would need the transposed tile in pairs of bytes.
OUT_FORMATS = ("bf16", "f16", "f32")
#: What barriers and alignment take of a block's shared memory.
RESERVED_BYTES = 2048
#: Wider tiles of A spill, in FP8 with NVFP4 first: by pairs of consumers and bits of an activation.
MAX_TILE_M = {1: {8: 64, 16: 128}, 2: {8: 32, 16: 64}}
MAX_SPLITS = 16
MAX_STAGES = 16
#: Streaming multiprocessors of the SXM boards.
_SMS = 132
_TILES_M = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Config:
    """Choices of a Hopper GEMM with packed weights.

    tile_m: rows of A of a tile, a multiple of 8; of C it is tile_m×128.
    stages: depth of the operand pipeline, in steps of 128 of K.
    splits: parts of K that are summed after the kernel, in their order.
    pairs:  of consumers, 1 or 2; two take steps of K in turn, so that one multiplies while the other waits, and add
            their sums at the end of a piece.
    """

    tile_m: int = 16
    stages: int = 8
    splits: int = 1
    pairs: int = 1


def check_weights(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`."""
    check_choices(kernel, config)
    step = TMA_ROW_BYTES * 8 // format_named(problem.out_format).element.bits
    if problem.n % step:
        rule = f"is not a multiple of {step}: TMA stores rows of whole 16 bytes of {problem.out_format}"
        raise UnsupportedError(kernel, {"n": problem.n}, rule, f"pad n to {math.ceil(problem.n / step) * step}")
    block = format_named(problem.b_format).block
    if block is not None and problem.k % block:
        rule = f"is not a multiple of {block}, the block of {problem.b_format}"
        raise UnsupportedError(kernel, {"k": problem.k}, rule, f"pad k to {math.ceil(problem.k / block) * block}")
    if config.pairs not in MAX_TILE_M:
        raise UnsupportedError(kernel, {"pairs": config.pairs}, "of consumers are not 1 or 2", "change pairs")
    most = MAX_TILE_M[config.pairs][_activation_bits(problem)]
    if config.tile_m % 8 or not 8 <= config.tile_m <= most:
        rule = f"is not a multiple of 8 from 8 to {most}, beyond which accumulators spill"
        raise UnsupportedError(kernel, {"tile_m": config.tile_m, "pairs": config.pairs}, rule, "change tile_m")
    steps = ceil_div(problem.k, TILE_K)
    if not 1 <= config.splits <= min(MAX_SPLITS, steps):
        rule = f"is not from 1 to {min(MAX_SPLITS, steps)}: K has {steps} steps of {TILE_K}"
        raise UnsupportedError(kernel, {"splits": config.splits}, rule, "change splits")
    needed, available = shared_memory_bytes(problem, config), _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if config.stages < 1 or needed > available:
        rule = f"needs {needed} bytes of shared memory; a block has {available} and takes at least one stage"
        raise UnsupportedError(kernel, {"tile_m": config.tile_m, "stages": config.stages}, rule, "change stages")


def candidates_weights(kernel: str, problem: GemmProblem) -> list[Config]:
    """Every admitted config of the search space, quickest by a rough estimate first; none has parts without a K step.

    Raises the UnsupportedError of the smallest config where none is admitted, for then the problem itself is at fault.
    """
    found = []
    for tile_m in _TILES_M:
        for splits in filter(functools.partial(_fills_parts, ceil_div(problem.k, TILE_K)), range(1, MAX_SPLITS + 1)):
            for pairs in MAX_TILE_M:
                stages = _stages_that_fit(problem, Config(tile_m, 1, splits, pairs))
                for config in (Config(tile_m, n, splits, pairs) for n in (stages, max(stages // 2, 1))):
                    if is_admitted(check_weights, kernel, problem, config):
                        found.append(config)
    if not found:
        check_weights(kernel, problem, Config(tile_m=8, stages=1, splits=1))
    return sorted(dict.fromkeys(found), key=lambda config: _guessed_place(problem, config))


def _guessed_place(problem: GemmProblem, config: Config) -> tuple[float, int]:
    return _estimated_cycles(problem, config), -config.stages


def _fills_parts(k_steps: int, splits: int) -> bool:
    """Whether every part of K has a step: five steps in four parts are two, two, one and none."""
    return ceil_div(k_steps, ceil_div(k_steps, splits)) == splits


def piece(index: Any, pieces: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """Tile in M, tile in N and part of K of the piece of work number `index`; Python, NumPy or traced integers.

    Tiles that share weights follow each other: the L2 has them for the second.
    """
    rest = index // pieces[0]
    return index % pieces[0], rest // pieces[2], rest % pieces[2]


def steps_of_part(part: Any, splits: int, k_steps: int) -> tuple[Any, Any]:
    """First K step of a part of K, and how many it has; a last part may have fewer, or none."""
    most = ceil_div(k_steps, splits)
    left = k_steps - part * most
    return part * most, (left > 0) * (left - (left - most) * (left > most))


def box_columns(a_format: str) -> int:
    """Columns of A in one swizzled box: of FP8 one wgmma's 32, for each has its own scales, of BF16 the widest 64."""
    return 32 if format_named(a_format).element.bits == 8 else 64


def shared_memory_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of a block: the stages, a staging tile a consumer of the first pair, and a sum of the others."""
    out_bits = 32 if config.splits > 1 else format_named(problem.out_format).element.bits
    elements = CONSUMERS * TILE_ROWS * config.tile_m
    sums = (config.pairs - 1) * elements * 4
    return config.stages * _stage_bytes(problem, config.tile_m) + elements * out_bits // 8 + sums


def _stage_bytes(problem: GemmProblem, tile_m: int) -> int:
    rows, words = tiles_shape(problem.b_format, (problem.n, problem.k))[2:]
    return CONSUMERS * rows * words * 4 + tile_m * TILE_K * _activation_bits(problem) // 8


def _activation_bits(problem: GemmProblem) -> int:
    return format_named(problem.a_format).element.bits


def _stages_that_fit(problem: GemmProblem, one_stage: Config) -> int:
    stage = _stage_bytes(problem, one_stage.tile_m)
    fixed = shared_memory_bytes(problem, one_stage) - stage
    return min(MAX_STAGES, (_mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES - fixed) // stage)


#: A multiprocessor's share of the memory's 4.19 TB/s at 1.7 GHz, and of the L2, both as measured for dense kernels.
_MEMORY_BYTES_PER_CYCLE, _L2_BYTES_PER_CYCLE = 18.5, 58
#: Not measured: of the same order as for dense kernels, to be fitted.
_CYCLES_PER_PIECE = 1500
_SPLIT_CYCLES = 4000  # a second kernel that adds the parts
#: Of a step, what is waited for barriers, words, wgmmas and fences; a second pair fills most of it, and has a sum to
#: hand over. Rough, from one pair beside two on an H200 (docs/performance/hopper_wgmma_w4a8.md).
_WAIT_CYCLES = {1: 160, 2: 60}
_HAND_OVER_CYCLES = {1: 0, 2: 500}
_LANES = 128
#: Instructions a weight, counted in the machine code of the loops, scales and barriers included.
_BF16_INSTRUCTIONS, _FP8_INSTRUCTIONS = 4.5, 2.7


def _estimated_cycles(problem: GemmProblem, config: Config) -> float:
    """Cycles of the busiest multiprocessor: K steps bound by bytes or by instructions, and the ends of pieces.

    A comes from the L2, and so do weights when another tile of rows has had them.
    """
    pieces = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, TILE_N) * config.splits
    steps = ceil_div(ceil_div(problem.k, TILE_K), config.splits)
    step = _WAIT_CYCLES[config.pairs] + max(
        _stage_bytes(problem, 0) / _MEMORY_BYTES_PER_CYCLE / ceil_div(problem.m, config.tile_m),
        _stage_bytes(problem, config.tile_m) / _L2_BYTES_PER_CYCLE,
        _step_instructions(problem, config) / _LANES,
    )
    reduction = _SPLIT_CYCLES if config.splits > 1 else 0
    return ceil_div(pieces, _SMS) * (steps * step + _CYCLES_PER_PIECE + _HAND_OVER_CYCLES[config.pairs]) + reduction


def _step_instructions(problem: GemmProblem, config: Config) -> float:
    """Thread instructions of a step; in FP8 each block's sum is added on its own."""
    weights = TILE_N * TILE_K
    if _activation_bits(problem) == 16:
        return _BF16_INSTRUCTIONS * weights
    block = format_named(problem.b_format).block or TILE_K
    return weights * (_FP8_INSTRUCTIONS + config.tile_m / block)
