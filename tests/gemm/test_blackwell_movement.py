"""Blackwell's data movement, pairs of blocks included, followed in NumPy with the kernels' own index functions.

JAX interprets no pair of blocks. Here each block copies, multiplies, takes out and stores the parts that
`_blackwell_movement` names: what lies outside an array reads as zero and is not written, a copy for a pair gives each
block its half, an MMA of a pair multiplies each block's rows of A by the rows of B of both (PTX ISA, tcgen05.mma with
cta_group::2), and a tile is multiplied as early, and the one before it taken out as late, as the barriers allow.
Elements are small integers, so that every sum is exact.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _blackwell_movement as movement
from narrowgemm.gemm import blackwell_tcgen05_mxfp6
from narrowgemm.gemm._blackwell_plan import (
    BLOCK_M,
    SCALE_TILE_BLOCKS,
    SCALE_TILE_ROWS,
    STAGE_K_BYTES,
    TENSOR_MEMORY_COLUMNS,
    Config,
    Plan,
    plan,
)
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

PAIR = Config(tile_n=256, ctas=2, stages=3)
ONE = Config(tile_n=128, ctas=1, stages=3)


@dataclasses.dataclass
class Arrays:
    """What a kernel copies from: rows × columns as they travel × elements in one of those, and tiles of scales."""

    a: np.ndarray
    b: np.ndarray
    a_scales: np.ndarray | None
    b_scales: np.ndarray | None


def operand(rows: int, k: int, format_name: str, random: np.random.Generator) -> tuple[np.ndarray, Any, np.ndarray]:
    """An operand as it travels, its scales as tiles, and its values."""
    spec = format_named(format_name)
    codes = random.integers(-3, 4, (rows, k)).astype(np.float64)
    together = 2 if spec.element.bits == 4 else 1
    travelling = codes.reshape(rows, k // together, together)
    if spec.block is None:
        return travelling, None, codes
    scales = 2.0 ** random.integers(-1, 2, (rows, k // spec.block))
    return travelling, tiled(scales, 8 * STAGE_K_BYTES // spec.element.bits // spec.block), codes * repeated(scales, k)


def repeated(scales: np.ndarray, k: int) -> np.ndarray:
    return np.repeat(scales, k // scales.shape[1], axis=1)


def tiled(scales: np.ndarray, step_blocks: int) -> np.ndarray:
    """Scales (rows, blocks) as tiles 128×4 of whole steps; zero where there are none."""
    rows, blocks = scales.shape
    padded = np.pad(scales, ((0, -rows % SCALE_TILE_ROWS), (0, -blocks % step_blocks)))
    return padded.reshape(-1, SCALE_TILE_ROWS, padded.shape[1] // SCALE_TILE_BLOCKS, SCALE_TILE_BLOCKS).swapaxes(1, 2)


def untiled(tiles: np.ndarray) -> np.ndarray:
    return tiles.swapaxes(1, 2).reshape(tiles.shape[0] * SCALE_TILE_ROWS, -1)


def read(array: np.ndarray, *parts: movement.Part) -> np.ndarray:
    """The part of an array, zero outside of it."""
    found = np.zeros((*(size for _, size in parts), *array.shape[len(parts) :]))
    inside = [slice(start, start + size) for start, size in parts]
    there = array[tuple(inside)]
    found[tuple(slice(0, extent) for extent in there.shape[: len(parts)])] = there
    return found


class Target:
    """An array that is written in parts, and how often each element was."""

    def __init__(self, *shape: int) -> None:
        self.values, self.times = np.full(shape, np.nan), np.zeros(shape, int)

    def write(self, values: np.ndarray, *parts: movement.Part) -> None:
        """What lies outside is dropped."""
        inside = tuple(slice(start, start + size) for start, size in parts)
        there = self.values[inside].shape
        self.values[inside] = values[tuple(slice(0, extent) for extent in there)]
        self.times[inside] += 1

    def written_once(self) -> np.ndarray:
        assert (self.times == 1).all()
        return self.values


@dataclasses.dataclass
class Cluster:
    """One or two blocks that make tiles together, and their tensor memory."""

    plan: Plan
    arrays: Arrays
    steps: int
    out: Target
    out_scales: Target | None
    transposed: bool = False

    def __post_init__(self) -> None:
        self.config = self.plan.config
        self.tensor_memory = np.full((self.config.ctas, BLOCK_M, self.plan.accumulator_columns), np.nan)

    def run(self, tiles: list[tuple[int, int]]) -> None:
        """Tiles in order: each is multiplied as soon as barriers allow, and taken out when the next one needs it."""
        waiting: deque[tuple[int, int]] = deque()
        arrived = 0
        for turn, (row, column) in enumerate(tiles):
            while arrived <= turn - self.plan.lag:
                taken_turn, number = waiting.popleft()
                self.take_out(taken_turn, number, *tiles[taken_turn])
                arrived += number + 1 == self.plan.drain_pieces
            self.multiply(turn, row, column)
            waiting += [(turn, number) for number in range(movement.pieces(self.plan))]
        for turn, number in waiting:
            self.take_out(turn, number, *tiles[turn])

    def multiply(self, turn: int, row: int, column: int) -> None:
        first = turn % self.config.accumulators * self.plan.stride
        product = sum(self.steps_of(row, column))
        self.tensor_memory[:, :, first : first + self.config.tile_n] = product

    def steps_of(self, row: int, column: int) -> Iterator[np.ndarray]:
        """Products of the K steps, a block's rows each: (blocks, 128, tile_n)."""
        ctas, arrays = self.config.ctas, self.arrays
        group = arrays.a.shape[2]
        for ki in range(self.steps):
            ks = movement.k_part(ki, self.plan.step_k // group)
            a = read(arrays.a, movement.a_rows(self.config, row), ks).reshape(ctas, BLOCK_M, -1)
            b = read(arrays.b, movement.b_rows(self.config, column), ks).reshape(ctas, self.config.block_n, -1)
            if arrays.a_scales is not None and arrays.b_scales is not None:
                blocks = movement.k_part(ki, self.plan.step_scales // SCALE_TILE_BLOCKS)
                a_tiles = read(arrays.a_scales, movement.a_scale_tiles(self.config, row), blocks)
                b_tiles = read(arrays.b_scales, movement.b_scale_tiles(self.plan, column), blocks)
                a = a * [repeated(untiled(half), self.plan.step_k) for half in np.split(a_tiles, ctas)]
                rows = untiled(b_tiles)[: self.config.tile_n]
                b = b * repeated(rows, self.plan.step_k).reshape(b.shape)
            yield a @ b.reshape(self.config.tile_n, -1).T

    def take_out(self, turn: int, number: int, row: int, column: int) -> None:
        slot = turn % self.config.accumulators
        first = movement.piece_taken(self.plan, slot, number)
        begin = slot * self.plan.stride + first
        for cta, memory in enumerate(self.tensor_memory):
            values = memory[:, begin : begin + self.plan.store_n]
            rows = movement.block_rows(self.config, row, cta)
            if self.transposed:
                self.out.write(values.T, movement.c_columns(self.plan, column, first, self.plan.store_n), rows)
                continue
            width = self.plan.store_n // self.out.values.shape[2]
            columns = movement.c_columns(self.plan, column, first, width)
            self.out.write(values.reshape(BLOCK_M, width, -1), rows, columns)
            if self.out_scales is not None:
                largest = np.abs(values).reshape(BLOCK_M, self.plan.store_scales, -1).max(axis=2)
                tile_row = movement.c_scale_row(self.config, row, cta), 1
                tiles = movement.c_scale_tiles(self.plan, column, first)
                self.out_scales.write(tiled(largest, self.plan.store_scales), tile_row, tiles)


def moved(
    planned: Plan, arrays: Arrays, clusters: int, out_format: str = "f32", transposed: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """C as the model stores it, and the largest element of each block of C where C has block scales."""
    config, result = planned.config, format_named(out_format)
    m, n = len(arrays.a), len(arrays.b)
    group = arrays.a.shape[2]
    tiles_m, tiles_n = ceil_div(m, config.tile_m), ceil_div(n, config.tile_n)
    steps = ceil_div(arrays.a.shape[1] * group, planned.step_k)
    together = 2 if result.element.bits == 4 else 1
    out = Target(n, m) if transposed else Target(m, n // together, together)
    out_scales = None
    if result.block:
        shape = tiles_m * config.ctas, tiles_n * config.tile_n // result.block // SCALE_TILE_BLOCKS
        out_scales = Target(*shape, SCALE_TILE_ROWS, SCALE_TILE_BLOCKS)
    positions = [config.position(index, tiles_m, tiles_n) for index in range(tiles_m * tiles_n)]
    for first in range(clusters):
        Cluster(planned, arrays, steps, out, out_scales, transposed).run(positions[first::clusters])
    c = out.written_once()
    return c if transposed else c.reshape(m, n), out_scales and untiled(out_scales.written_once())


def case(problem: GemmProblem) -> tuple[Arrays, np.ndarray]:
    random = np.random.default_rng(0)
    a, a_scales, a_values = operand(problem.m, problem.k, problem.a_format, random)
    b, b_scales, b_values = operand(problem.n, problem.k, problem.b_format, random)
    return Arrays(a, b, a_scales, b_scales), a_values @ b_values.T


WITH_TAILS = (300, 288, 288)
PROBLEMS = {
    "BF16": ((600, 520, 136), "bf16", "bf16"),
    "BF16, smaller than a tile": ((1, 24, 16), "bf16", "bf16"),
    "FP8": ((513, 400, 400), "fp8_e4m3", "f32"),
    "MXFP8": (WITH_TAILS, "mxfp8_e4m3", "bf16"),
    "MXFP4": ((300, 776, 544), "mxfp4", "f32"),
    "NVFP4": ((257, 264, 544), "nvfp4", "f32"),
    "FP8 to MXFP8": (WITH_TAILS, "fp8_e4m3", "mxfp8_e4m3"),
    "NVFP4 to NVFP4": ((520, 544, 288), "nvfp4", "nvfp4"),
}


@pytest.mark.parametrize(
    "config",
    [
        PAIR,
        ONE,
        dataclasses.replace(PAIR, tile_n=128, accumulators=1, raster="m", raster_width=2),
        dataclasses.replace(ONE, tile_n=256, raster_width=1),
    ],
    ids=["pair", "one block", "pair, one accumulator", "one block, 256 columns"],
)
@pytest.mark.parametrize(("shape", "format_name", "out_format"), PROBLEMS.values(), ids=PROBLEMS)
def test_every_element_of_c_is_the_product_and_is_stored_once(
    shape: tuple[int, int, int], format_name: str, out_format: str, config: Config
) -> None:
    arrays, exact = case(GemmProblem(*shape, format_name, format_name, "f32"))
    planned = plan(format_name, out_format, config)
    c, largest = moved(planned, arrays, 2, out_format)
    np.testing.assert_array_equal(c, exact)
    block = format_named(out_format).block
    if block:
        assert largest is not None
        expected = np.abs(exact).reshape(shape[0], -1, block).max(axis=2)
        np.testing.assert_array_equal(largest[: shape[0], : shape[1] // block], expected)


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("fp6_is_b", [False, True])
def test_the_kernel_that_widens_fp6_stores_every_element_once_transposed_or_not(ctas: int, fp6_is_b: bool) -> None:
    formats = ("mxfp8_e4m3", "mxfp6_e2m3")[:: 1 if fp6_is_b else -1]
    problem = GemmProblem(300, 272, 320, *formats, "bf16")
    planned = blackwell_tcgen05_mxfp6._plan(problem, dataclasses.replace(PAIR, ctas=ctas))
    arrays, exact = case(GemmProblem(problem.m, problem.n, problem.k, "mxfp8_e4m3", "mxfp8_e4m3", "f32"))
    if fp6_is_b:
        arrays = Arrays(arrays.b, arrays.a, arrays.b_scales, arrays.a_scales)
    c, _ = moved(planned, arrays, 2, transposed=fp6_is_b)
    np.testing.assert_array_equal(c, exact)


def test_a_blocks_own_copy_of_rows_is_its_half_of_the_pairs() -> None:
    start, size = movement.a_rows(PAIR, 3)
    halves = [movement.block_rows(PAIR, 3, cta) for cta in (0, 1)]
    assert halves == [(start, size // 2), (start + size // 2, size // 2)]


def columns_shared() -> tuple[Plan, Arrays, np.ndarray]:
    """A plan in which two accumulators of 256 columns and the scales exceed tensor memory."""
    planned = plan("mxfp8_e4m3", "f32", PAIR)
    assert planned.stride < PAIR.tile_n
    assert planned.accumulator_columns + 3 * planned.step_scales <= TENSOR_MEMORY_COLUMNS
    arrays, exact = case(GemmProblem(512, 1024, 128, "mxfp8_e4m3", "mxfp8_e4m3", "f32"))
    return planned, arrays, exact


def test_accumulators_that_share_columns_are_taken_out_in_time() -> None:
    planned, arrays, exact = columns_shared()
    np.testing.assert_array_equal(moved(planned, arrays, 1)[0], exact)


@pytest.mark.parametrize(
    "changes",
    [{"lag": 2}, {"drain_pieces": 1, "stride": 64}],
    ids=["a tile too early", "more shared than taken out"],
)
def test_the_model_sees_columns_that_are_shared_too_soon(changes: dict[str, int]) -> None:
    planned, arrays, exact = columns_shared()
    wrong = dataclasses.replace(planned, **changes)
    assert not np.array_equal(moved(wrong, arrays, 1)[0], exact)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("a_rows", lambda config, row: (row * BLOCK_M, config.tile_m)),
        ("b_rows", lambda config, column: (column * config.block_n, config.tile_n)),
        ("block_rows", lambda config, row, cta: ((row * config.ctas + 1 - cta) * BLOCK_M, BLOCK_M)),
        ("a_scale_tiles", lambda config, row: (row, config.ctas)),
        ("b_scale_tiles", lambda planned, column: (column, planned.b_scale_tiles)),
        ("c_columns", lambda planned, column, *rest: (column * planned.config.tile_n, rest[-1])),
    ],
)
def test_the_model_sees_a_wrong_index(
    function: str, wrong: Callable[..., movement.Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, arrays, exact = columns_shared()
    monkeypatch.setattr(movement, function, wrong)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(moved(planned, arrays, 1)[0], exact)
