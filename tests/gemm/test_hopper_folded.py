"""The Hopper kernels with folded weights: widening of FP4 under NumPy, machine code for sm_90a, interpreted, refusals.

Widening of FP6: test_folded_fp6_widening.
"""

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.gemm.operands import quantized
from tests.gemm.test_weight_widening import QUAD, ROW, THREAD, WORDS

import narrowgemm
from narrowgemm.aot import CompileCase, MachineCode, compile_many
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import reference
from narrowgemm.formats.fold import FOLDINGS, fold_weights
from narrowgemm.formats.spec import ELEMENTS
from narrowgemm.gemm import _mosaic_gpu, oracle
from narrowgemm.gemm._folded_widening import LookUps, fragments, table_of, widen
from narrowgemm.gemm._hopper import REGISTERS
from narrowgemm.gemm._hopper_folded_space import Config, place_of, store_rows, tile_count
from narrowgemm.gemm._hopper_parts import steps_of_part
from narrowgemm.gemm._words import WordOperations
from narrowgemm.gemm.registry import Kernel, kernel_named
from narrowgemm.problem import GemmProblem

KERNEL = kernel_named("hopper_wgmma_w4a8_folded")
FP4 = FOLDINGS["mxfp4"]


def kernel_of(b_format: str) -> Kernel:
    """The kernel that takes folded weights of a format."""
    return KERNEL if b_format == "mxfp4" else kernel_named("hopper_wgmma_w6a8_folded")


def _permute(low: Any, high: Any, selectors: Any) -> Any:
    """PTX ISA, `prmt`: byte s of the eight for each of the lowest four nibbles; its highest bit asks for a sign."""
    eight = np.uint64(high) << np.uint64(32) | np.uint64(low)
    chosen = [np.asarray(selectors, np.uint64) >> np.uint64(4 * i) & np.uint64(15) for i in range(4)]
    assert all((number < 8).all() for number in chosen)
    return sum(((eight >> number * np.uint64(8) & np.uint64(0xFF)) << np.uint64(8 * i)).astype(np.uint32)
               for i, number in enumerate(chosen))  # fmt: skip


def _multiply_add(word: Any, factor: int, addend: int) -> Any:
    return ((np.asarray(word, np.uint64) * np.uint64(factor) + np.uint64(addend)) & np.uint64(0xFFFFFFFF)).astype("u4")


def _upper(word: Any) -> Any:
    """FP16's product with one: the number itself, where it is finite."""
    half = np.asarray(word, np.uint32) >> np.uint32(16)
    assert np.isfinite(half.astype(np.uint16).view(np.float16)).all()
    return half | half << np.uint32(16)


LOOK_UPS = LookUps(_permute, _multiply_add, _upper)


def test_every_code_in_every_place_and_at_every_distance_is_widened() -> None:
    values = reference.decode(np.arange(16, dtype=np.uint8), ELEMENTS["e2m1"])
    for halvings in range(FP4.most + 1):
        for block in range(4):
            table = table_of(np.uint32(FP4.step * halvings << 8 * block), block, WORDS, LOOK_UPS)
            for f, i in np.ndindex(2, 4):
                codes = np.arange(16, dtype=np.uint32)
                word = (codes & 7) << (16 * f + 4 * i) | (codes >> 3) << (8 * i + 7 - 4 * f)
                found = widen(word, table, WORDS, LOOK_UPS)
                lanes = np.broadcast_to(found[f], 16).astype("<u4").view(ml_dtypes.float8_e5m2).reshape(16, 4)
                numbers = lanes[:, i].astype(np.float64)
                np.testing.assert_array_equal(numbers, values * 2.0 ** (FP4.exponent - halvings))
                np.testing.assert_array_equal(np.signbit(numbers), codes >= 8)
                assert not np.delete(lanes.astype(np.float64), i, axis=1).any()
                assert not np.any(found[1 - f])


def test_the_example_of_the_docstring() -> None:
    table = table_of(np.uint32(8), 0, WORDS, LOOK_UPS)
    assert tuple(map(int, table)) == (0x6A686400, 0x72706E6C)
    assert int(_permute(*table, np.uint32(0x2345))) == 0x686A6C6E


def folded_tiles(n: int, k: int) -> tuple[narrowgemm.FoldedWeights, np.ndarray]:
    """Random weights, folded, and their values."""
    random = np.random.default_rng(0)
    values = random.normal(size=(n, k)) * 2.0 ** np.repeat(random.integers(-10, 10, (n, k // 32)), 32, axis=1)
    q = narrowgemm.quantize(values.astype(np.float32), "mxfp4")
    return fold_weights(q), reference.dequantize(q)


def test_fragments_times_their_factors_are_the_weights() -> None:
    """The array that the tensor core sees, by PTX's figures of the fragments."""
    weights, exact = folded_tiles(64, 256)
    for tile in range(2):
        flat = np.asarray(weights.tiles)[0, tile].reshape(-1)
        codes = [flat[512 * plane + 4 * THREAD + j] for plane in range(2) for j in range(4)]
        scales = [flat[1024 + 2 * (THREAD // 4) + row] for row in range(2)]
        registers = itertools.chain(*fragments(codes, scales, WORDS, LOOK_UPS))
        seen = np.full((64, 128), np.nan)
        for index, register in enumerate(registers):
            block, half_k, half_row = index // 4, index // 2 % 2, index % 2
            lanes = register.astype("<u4").view(ml_dtypes.float8_e5m2).reshape(128, 4).astype(np.float64)
            for i in range(4):
                seen[ROW + 8 * half_row, 32 * block + 16 * half_k + 4 * QUAD + i] = lanes[:, i]
        factors = np.asarray(weights.factors).astype(np.float64)
        np.testing.assert_array_equal(seen * factors[:, None], exact[:, 128 * tile : 128 * tile + 128])


def test_widening_takes_few_operations_a_weight() -> None:
    """A masked word is ORed in the same three-input operation: of it the mask does not count."""
    count = 0

    def counted(*_: Any) -> int:
        nonlocal count
        count += 1
        return 0

    do = WordOperations(lambda *_: 0, counted, counted, counted, lambda _: 0, counted)
    assert len(list(fragments([0] * 8, [0] * 2, do, LookUps(counted, counted, counted)))) == 4
    assert (count + 8) / 64 <= 1.25  # and a mask of each word


E2M3, E3M2 = "mxfp6_e2m3", "mxfp6_e3m2"
#: Formats of A, B and C, M, config: the widest tile, which spills first, the narrowest, stores in one and in three.
CASES: tuple[tuple[str, str, str, int, Config], ...] = (
    ("fp8_e4m3", "mxfp4", "bf16", 5, Config(8, 12)),
    ("fp8_e4m3", "mxfp4", "bf16", 600, Config(256, 4)),
    ("fp8_e5m2", "mxfp4", "f32", 600, Config(256, 3)),
    ("fp8_e4m3", "mxfp4", "fp8_e4m3", 600, Config(192, 4)),
    ("fp8_e4m3", "mxfp4", "bf16", 64, Config(64, 8, 2)),
    ("fp8_e4m3", "mxfp4", "bf16", 600, Config(256, 4, 1, 2)),
    ("fp8_e4m3", "mxfp4", "f32", 64, Config(64, 4, 4)),
    ("fp8_e4m3", "mxfp4", "bf16", 64, Config(64, 8, 2, pairs=2)),
    ("fp8_e5m2", "mxfp4", "f32", 16, Config(16, 8, pairs=2)),
    ("fp8_e4m3", "mxfp4", "f32", 64, Config(64, 12, tile_n=64)),
    ("fp8_e4m3", "mxfp4", "bf16", 16, Config(16, 16, 2, pairs=2, tile_n=64)),
    ("fp8_e4m3", E2M3, "bf16", 5, Config(8, 12)),
    ("fp8_e4m3", E2M3, "bf16", 600, Config(256, 3, 1, 2)),
    ("fp8_e5m2", E2M3, "f32", 600, Config(256, 3)),
    ("fp8_e4m3", E2M3, "bf16", 64, Config(64, 6, 2)),
    ("fp8_e5m2", E3M2, "bf16", 5, Config(8, 12)),
    ("fp8_e4m3", E3M2, "f32", 600, Config(256, 3)),
    ("fp8_e4m3", E3M2, "fp8_e4m3", 600, Config(192, 4)),
    ("fp8_e4m3", E2M3, "bf16", 64, Config(64, 4, 2, pairs=2)),
    ("fp8_e4m3", E3M2, "f32", 64, Config(64, 4, pairs=2)),
    ("fp8_e4m3", E2M3, "bf16", 64, Config(64, 12, pairs=2, tile_n=64)),
    # A commit group for each block of K, where registers are fewest.
    ("fp8_e4m3", "mxfp4", "bf16", 600, Config(256, 4, 1, 2, groups=4)),
    ("fp8_e4m3", "mxfp4", "bf16", 64, Config(64, 8, 2, pairs=2, groups=4)),
    ("fp8_e4m3", E2M3, "bf16", 600, Config(256, 3, groups=4)),
    ("fp8_e4m3", E3M2, "f32", 600, Config(256, 3, groups=4)),
    ("fp8_e4m3", E2M3, "bf16", 64, Config(64, 4, 2, pairs=2, groups=4)),
)
#: Of a kernel whose last tiles are divided all code is there twice: N is of so many tiles of 64 that 40 are left.
TAILS: tuple[tuple[str, Config], ...] = (
    ("mxfp4", Config(64, 12, tile_n=64, tail_splits=2)),
    ("mxfp4", Config(16, 16, tile_n=64, pairs=2, groups=4, tail_splits=2)),
    (E2M3, Config(64, 4, pairs=2, tail_splits=2)),
)
#: What a case's weights are widened to.
WIDENED = {"mxfp4": "E5M2", E2M3: "E4M3", E3M2: "E5M2"}


@pytest.fixture(scope="module")
def codes() -> list[MachineCode]:
    """Machine code of every case; N and K are no multiples of a tile."""
    cases = [
        CompileCase(kernel_of(b).name, "h200", GemmProblem(m, 1040, 1056, a, b, out), vars(config))
        for a, b, out, m, config in CASES
    ]
    outcomes = compile_many(cases)
    assert [outcome.reason for outcome in outcomes if outcome.reason] == []
    return [outcome.code for outcome in outcomes if outcome.code]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_machine_code_multiplies_two_steps_a_turn_without_spills_or_more_waits(
    codes: list[MachineCode], number: int
) -> None:
    code, (a, b, _, _, config) = codes[number], CASES[number]
    of_a = "E4M3" if a == "fp8_e4m3" else "E5M2"
    assert code.count(f"QGMMA.64x{config.tile_m}x32.F32.{WIDENED[b]}.{of_a}") == code.count("QGMMA") == 8
    # One a step and one at the end of a tile; ptxas adds waits where it cannot keep a multiplication in flight.
    assert code.count("WARPGROUP.DEPBAR") == 3
    # A fence before each commit group.
    assert code.count("WARPGROUP.ARRIVE") >= 2 * config.groups
    assert code.count("UTMASTG") > 0
    assert code.spill_bytes == 0
    assert code.count("LDL") == code.count("STL") == 0
    assert code.shared_memory_bytes is not None
    assert code.shared_memory_bytes <= 227 * 1024
    assert code.instruction_count < 2500


def test_a_divided_tail_is_a_second_loop_without_spills() -> None:
    problems = [GemmProblem(16, 172 * config.tile_n, 1056, "fp8_e4m3", b, "bf16") for b, config in TAILS]
    cases = [
        CompileCase(kernel_of(b).name, "h200", problem, vars(config))
        for problem, (b, config) in zip(problems, TAILS, strict=True)
    ]
    for case, outcome in zip(cases, compile_many(cases), strict=True):
        assert outcome.code is not None, f"{case}: {outcome.reason}"
        assert outcome.code.count("QGMMA") == 16
        assert outcome.code.count("WARPGROUP.DEPBAR") == 6
        assert outcome.code.count("STAS") > 0
        assert outcome.code.spill_bytes == 0, case


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if case[-1].consumers > 1])
def test_a_block_asks_for_no_more_registers_than_it_was_launched_with(codes: list[MachineCode], number: int) -> None:
    """`setmaxnreg` waits until the block's own pool has what is asked for: more than all of it never comes."""
    code, consumers = codes[number], CASES[number][-1].consumers
    consumer, producer = REGISTERS[consumers]
    assert code.threads is not None
    assert code.registers is not None
    assert code.threads * code.registers >= 128 * (consumers * consumer + producer)


@pytest.mark.parametrize(
    ("shape", "config", "out", "fmt"),
    [
        ((1, 64, 32), Config(8, 2), "f32", "mxfp4"),
        ((33, 144, 288), Config(32, 2), "f32", "mxfp4"),
        ((19, 208, 416), Config(16, 2, 2), "f32", "mxfp4"),
        ((70, 272, 672), Config(72, 3, 4), "bf16", "mxfp4"),
        ((200, 144, 160), Config(192, 2), "fp8_e4m3", "mxfp4"),
        ((50, 400, 416), Config(32, 3, 1, 2), "bf16", "mxfp4"),
        # Two pairs: fewer steps than a round, several tiles a block, and parts of K of five and six steps.
        ((19, 336, 160), Config(8, 4, pairs=2), "f32", "mxfp4"),
        ((19, 208, 1408), Config(16, 4, 2, pairs=2), "bf16", "mxfp4"),
        # Tiles of one consumer, and of two in turn: several a block, and parts of K.
        ((9, 336, 416), Config(16, 3, tile_n=64), "f32", "mxfp4"),
        ((19, 208, 160), Config(8, 4, pairs=2, tile_n=64), "f32", "mxfp4"),
        ((19, 80, 1408), Config(24, 4, 2, pairs=2, tile_n=64), "bf16", E2M3),
        # A last tile that two blocks divide behind whole ones: one consumer, two in turn, two pairs, two of A's tiles.
        ((9, 272, 416), Config(16, 3, tile_n=64, tail_splits=2), "f32", "mxfp4"),
        ((19, 48, 1408), Config(24, 4, pairs=2, tile_n=64, tail_splits=2), "bf16", "mxfp4"),
        ((19, 304, 672), Config(24, 4, pairs=2, tail_splits=2), "f32", E3M2),
        ((33, 272, 416), Config(16, 2, tail_splits=2), "bf16", E2M3),
        ((33, 144, 288), Config(32, 2), "f32", E2M3),
        ((70, 272, 672), Config(72, 3, 4), "bf16", E2M3),
        ((19, 208, 416), Config(16, 2, 2), "f32", E3M2),
        ((50, 400, 416), Config(32, 3, 1, 2), "bf16", E3M2),
        ((19, 208, 1408), Config(16, 4, 2, pairs=2), "bf16", E3M2),
    ],
)
def test_copies_barriers_and_stores_give_the_product_without_races(
    shape: tuple[int, int, int], config: Config, out: str, fmt: str
) -> None:
    (m, n, k), kernel = shape, kernel_of(fmt)
    problem = GemmProblem(m, n, k, "fp8_e4m3", fmt, out)
    kernel.check(problem, config)
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(rows, k)).astype(np.float32) for rows in (m, n))
    qa, qb = quantized(a, "fp8_e4m3"), quantized(b * np.exp2(np.arange(n) % 9 - 4)[:, None].astype("f4"), fmt)
    run = jax.jit(lambda a, b: kernel.matmul(a, b, config, out, interpret=True))
    error, _ = oracle.errors(run(qa, kernel.prepared(qb)), oracle.exact(qa, qb))
    assert error < {"f32": 1e-6, "bf16": 2.0**-8, "fp8_e4m3": 2.0**-4}[out]
    assert not _mosaic_gpu.races_found()


@pytest.mark.parametrize("pairs", [1, 2])
def test_a_block_without_a_tile_ends_where_a_gpu_has_no_tail_to_divide(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three tiles on four multiprocessors: `check` knows of another number, by which there is a tail."""
    monkeypatch.setattr(_mosaic_gpu, "_INTERPRETED_CORES", 4)
    config = Config(8, 4, pairs=pairs, tile_n=64, tail_splits=2)
    KERNEL.check(GemmProblem(8, 192, 256, "fp8_e4m3", "mxfp4", "f32"), config)
    random = np.random.default_rng(0)
    a = quantized(random.normal(size=(8, 256)), "fp8_e4m3")
    b = quantized(random.normal(size=(192, 256)), "mxfp4")
    run = jax.jit(lambda a, b: KERNEL.matmul(a, b, config, "f32", interpret=True))
    error, _ = oracle.errors(run(a, KERNEL.prepared(b)), oracle.exact(a, b))
    assert error < 1e-6


@pytest.mark.parametrize(
    ("shape", "is_offered"), [((16, 4096, 4096), False), ((16, 57344, 8192), True), ((256, 4096, 4096), True)]
)
def test_a_tail_is_offered_only_behind_a_whole_wave(shape: tuple[int, int, int], is_offered: bool) -> None:
    problem = GemmProblem(*shape, "fp8_e4m3", "mxfp4")
    offered = [config for config in KERNEL.candidates(problem) if config.tail_splits > 1]
    assert all(tile_count(problem, config) > 132 for config in offered)
    assert bool(offered) == is_offered


@pytest.mark.parametrize(("scale", "of_a"), [(254, -40), (254, -100), (14, -3), (14, 60), (127, -100)])
def test_a_result_that_fp32_holds_is_right_however_far_its_factors_are(scale: int, of_a: int) -> None:
    random = np.random.default_rng(0)
    a = quantized(random.normal(size=(5, 64)), "fp8_e4m3")
    a = replace(a, tensor_scale=jnp.float32(2.0**of_a))
    b = quantized(random.normal(size=(64, 64)), "mxfp4")
    b = replace(b, scales=jnp.full_like(b.scales, jax.lax.bitcast_convert_type(jnp.uint8(scale), b.scales.dtype)))
    run = jax.jit(lambda a, b: KERNEL.matmul(a, b, Config(8, 2), "f32", interpret=True))
    error, _ = oracle.errors(run(a, KERNEL.prepared(b)), oracle.exact(a, b))
    assert error < 1e-6


@pytest.mark.parametrize("tiles", [(1, 5), (3, 7), (33, 4), (16, 16)])
@pytest.mark.parametrize("tile_m", [8, 128, 256])
def test_every_tile_is_taken_once_and_those_that_share_weights_follow_each_other(
    tiles: tuple[int, int], tile_m: int
) -> None:
    places = [place_of(index, tiles, tile_m) for index in range(tiles[0] * tiles[1])]
    assert sorted(places) == sorted(np.ndindex(tiles))
    # A band's tiles in N are walked one by one: within 2048 rows of A, weights are fetched once.
    changes = sum(one[1] != other[1] for one, other in itertools.pairwise(places))
    bands = -(-tiles[0] * tile_m // max(2048, tile_m))
    assert changes <= bands * tiles[1] - 1


@pytest.mark.parametrize(("k_steps", "splits"), [(1, 1), (7, 4), (10, 8), (64, 2)])
def test_parts_of_k_take_every_step_once(k_steps: int, splits: int) -> None:
    parts = [steps_of_part(part, splits, k_steps) for part in range(splits)]
    assert [first + i for first, steps in parts for i in range(steps)] == list(range(k_steps))
    assert min(steps for _, steps in parts) >= 1


@pytest.mark.parametrize("tile_m", range(8, 257, 8))
def test_a_tile_is_stored_in_whole_parts(tile_m: int) -> None:
    rows = store_rows(tile_m)
    assert tile_m % rows == 0
    assert rows % 8 == 0
    assert rows <= 64


GOOD = GemmProblem(16, 512, 1024, "fp8_e4m3", "mxfp4")


@pytest.mark.parametrize(
    ("problem", "config", "named"),
    [
        (replace(GOOD, n=516), Config(), {"n": 516}),
        (replace(GOOD, k=1040), Config(), {"k": 1040}),
        (GOOD, Config(tile_m=12), {"tile_m": 12}),
        (GOOD, Config(tile_m=264, stages=2), {"tile_m": 264}),
        (GOOD, Config(splits=3), {"splits": 3}),
        (replace(GOOD, k=512), Config(splits=8), {"splits": 8}),
        (GOOD, Config(tile_m=256, stages=6), {"tile_m": 256, "stages": 6}),
        (replace(GOOD, b_format=E2M3), Config(tile_m=256, stages=5), {"tile_m": 256, "stages": 5}),
        (GOOD, Config(stages=1), {"tile_m": 16, "stages": 1}),
        (GOOD, Config(cluster_n=3), {"cluster_n": 3, "splits": 1, "tail_splits": 1, "tile_m": 16}),
        (GOOD, Config(splits=2, cluster_n=2), {"cluster_n": 2, "splits": 2, "tail_splits": 1, "tile_m": 16}),
        (GOOD, Config(tile_m=24, cluster_n=2), {"cluster_n": 2, "splits": 1, "tail_splits": 1, "tile_m": 24}),
        (GOOD, Config(pairs=3), {"pairs": 3}),
        (GOOD, Config(groups=2), {"groups": 2}),
        (GOOD, Config(tail_splits=3), {"tail_splits": 3}),
        (GOOD, Config(splits=2, tail_splits=2), {"splits": 2, "tail_splits": 2}),
        (replace(GOOD, n=199 * 128), Config(tail_splits=2), {"splits": 1, "tail_splits": 2, "tiles": 199}),
        (GOOD, Config(tile_n=96), {"tile_n": 96}),
        (GOOD, Config(tile_m=72, stages=8, pairs=2), {"pairs": 2, "tile_m": 72, "cluster_n": 1, "stages": 8}),
        (GOOD, Config(stages=6, pairs=2), {"pairs": 2, "tile_m": 16, "cluster_n": 1, "stages": 6}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(problem: GemmProblem, config: Config, named: dict[str, int]) -> None:
    kernel = kernel_of(problem.b_format)
    kernel.check(replace(GOOD, b_format=problem.b_format), Config())
    with pytest.raises(UnsupportedError) as refusal:
        kernel.check(problem, config)
    assert refusal.value.values == named
