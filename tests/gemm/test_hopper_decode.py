"""The Hopper decode kernel: arithmetic and races in the interpreter, machine code for sm_90a, refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from narrowgemm.aot import CompileCase, compile_many
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import Operand, quantize
from narrowgemm.gemm import _mosaic_gpu, oracle
from narrowgemm.gemm._hopper_decode_space import Config
from narrowgemm.gemm._hopper_parts import steps_of_part, tail_tiles
from narrowgemm.gemm.api import first_admitted
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

KERNEL = kernel_named("hopper_wgmma_fp8_decode")
SMALL = Config(tile_m=8, tile_n=128, tile_k=128, stages=2)
E4M3 = ("fp8_e4m3", "fp8_e4m3")


def _operands(problem: GemmProblem) -> tuple[Operand, Operand]:
    keys = jax.random.split(jax.random.key(problem.m * problem.n + problem.k))
    a, b = (jax.random.normal(key, (rows, problem.k)) for key, rows in zip(keys, (problem.m, problem.n), strict=True))
    return quantize(a, problem.a_format), quantize(b, problem.b_format)


def _product(problem: GemmProblem, config: Config, a: Operand, b: Operand) -> np.ndarray:
    KERNEL.check(problem, config)
    run = jax.jit(lambda a, b: KERNEL.matmul(a, b, config, problem.out_format, interpret=True))
    return np.asarray(run(a, b))


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (GemmProblem(1, 64, 128, *E4M3), SMALL),
        # More tiles than blocks, and tails in M, N and K.
        (GemmProblem(17, 592, 400, *E4M3, "f32"), replace(SMALL, tile_m=24)),
        (GemmProblem(3, 272, 336, "fp8_e4m3", "fp8_e5m2", "f16"), replace(SMALL, tile_k=256, stages=3)),
        (GemmProblem(5, 144, 656, "fp8_e5m2", "fp8_e4m3", "fp8_e4m3"), replace(SMALL, splits=2)),
        (GemmProblem(61, 272, 656, *E4M3, "fp8_e5m2"), Config(64, 256, 256, 2, 2)),
        (GemmProblem(2, 144, 1168, *E4M3), replace(SMALL, splits=4)),
        # One consumer: several waves, parts of K, and a last tile that two blocks divide behind whole ones.
        (GemmProblem(9, 336, 400, *E4M3, "f32"), replace(SMALL, tile_m=16, tile_n=64)),
        (GemmProblem(5, 144, 656, *E4M3), replace(SMALL, tile_n=64, splits=2)),
        (GemmProblem(9, 336, 1168, *E4M3), replace(SMALL, tile_m=16, tile_n=64, tile_k=512, stages=2)),
        (GemmProblem(9, 272, 656, *E4M3), replace(SMALL, tile_m=16, tile_n=64, tail_splits=2)),
        (GemmProblem(17, 304, 656, *E4M3, "f32"), replace(SMALL, tile_m=24, stages=3, tail_splits=2)),
        (GemmProblem(3, 48, 400, "fp8_e5m2", "fp8_e4m3", "f16"), replace(SMALL, tile_n=64, tail_splits=2)),
        # Two blocks that share A: with and without a last tile that they divide, and with a tile that lies beyond C.
        (GemmProblem(9, 336, 400, *E4M3, "f32"), replace(SMALL, tile_m=16, tile_n=64, cluster_n=2)),
        (GemmProblem(30, 272, 656, *E4M3), Config(32, 128, 256, 3, cluster_n=2)),
        (GemmProblem(17, 592, 656, *E4M3, "f32"), Config(32, 128, 128, 3, tail_splits=2, cluster_n=2)),
        (GemmProblem(9, 272, 656, *E4M3), Config(16, 64, 256, 2, tail_splits=2, cluster_n=2)),
    ],
)
def test_every_run_equals_the_oracle_without_races(problem: GemmProblem, config: Config) -> None:
    a, b = _operands(problem)
    got = _product(problem, config, a, b)
    error, _ = oracle.errors(got, oracle.exact(a, b))
    assert got.shape == (problem.m, problem.n)
    assert error <= oracle.tolerance(problem)
    assert not _mosaic_gpu.races_found()
    np.testing.assert_array_equal(got, _product(problem, config, a, b))


def test_parts_are_added_in_their_order() -> None:
    """2²⁶ − 2²⁶ + 1 is 1; where the 1 comes before or between the others it is rounded away."""
    ordered = jnp.repeat(jnp.asarray([2.0**13, -(2.0**13), 2.0**-13, 0.0]), 128)
    a = jnp.full((1, 512), 2.0**13).astype(jnp.float8_e5m2)
    b = jnp.where(jnp.arange(512) % 128 == 0, ordered, 0.0)[None].repeat(16, axis=0).astype(jnp.float8_e5m2)
    got = _product(GemmProblem(1, 16, 512, "fp8_e5m2", "fp8_e5m2", "f32"), replace(SMALL, splits=4), a, b)
    np.testing.assert_array_equal(got, 1.0)


def test_rows_beyond_m_never_reach_valid_rows() -> None:
    """The kernel multiplies a slice of a larger array whose other rows are NaN."""
    problem = GemmProblem(5, 128, 256, *E4M3, "f32")
    a, b = (operand.codes for operand in _operands(replace(problem, m=8)))
    poisoned = a.at[5:].set(jnp.nan)
    np.testing.assert_array_equal(
        _product(problem, SMALL, poisoned[:5], b), _product(replace(problem, m=8), SMALL, a, b)[:5]
    )


def test_an_fp8_result_saturates() -> None:
    a, b = (jnp.full((rows, 64), sign * 30.0, jnp.float8_e4m3fn) for rows, sign in ((8, 1), (64, -1)))
    got = _product(GemmProblem(8, 64, 64, *E4M3, "fp8_e4m3"), SMALL, a, b)
    np.testing.assert_array_equal(got.astype(np.float32), -448.0)


@pytest.mark.parametrize(("k_steps", "splits"), [(1, 1), (23, 2), (23, 8), (8, 8)])
def test_parts_cover_every_step_once_and_none_is_empty(k_steps: int, splits: int) -> None:
    parts = [steps_of_part(part, splits, k_steps) for part in range(splits)]
    assert all(steps >= 1 for _, steps in parts)
    assert [step for first, steps in parts for step in range(first, first + steps)] == list(range(k_steps))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("multiprocessors", [2, 114, 132])
def test_a_tail_is_one_tile_a_cluster_at_most_and_leaves_whole_waves(parts: int, multiprocessors: int) -> None:
    clusters = multiprocessors // parts
    for tiles in range(1, 5 * multiprocessors):
        tail = tail_tiles(tiles, parts, multiprocessors)
        assert 0 <= tail <= clusters
        assert tail == 0 or (tiles - tail) % (parts * clusters) == 0
        assert tail or tiles % (parts * clusters) == 0 or tiles % (parts * clusters) > clusters


GOOD = GemmProblem(16, 512, 1024, *E4M3)


@pytest.mark.parametrize(
    ("problem", "config", "named", "remedy"),
    [
        (replace(GOOD, m=129), Config(tile_m=136), {"m": 129}, "use hopper_wgmma_fp8"),
        (replace(GOOD, n=516), Config(), {"n": 516}, "pad n to 520"),
        (replace(GOOD, n=520, out_format="fp8_e4m3"), Config(), {"n": 520}, "pad n to 528"),
        (replace(GOOD, k=1032), Config(), {"k": 1032}, "pad k to 1040"),
        (GOOD, Config(tile_m=8), {"tile_m": 8}, "use tile_m=16"),
        (GOOD, Config(tile_m=20), {"tile_m": 20}, "use tile_m=16"),
        (GOOD, Config(tile_n=192), {"tile_n": 192}, "change tile_n"),
        (GOOD, Config(tile_k=64), {"tile_k": 64}, "change tile_k"),
        (GOOD, Config(splits=3), {"splits": 3}, "change splits"),
        (GOOD, Config(tile_k=256, splits=8), {"splits": 8}, "change splits"),
        (GOOD, Config(tail_splits=4), {"tail_splits": 4}, "change tail_splits"),
        (replace(GOOD, k=96), Config(tail_splits=2), {"tail_splits": 2}, "change tail_splits"),
        (GOOD, Config(splits=2, tail_splits=2), {"splits": 2, "tail_splits": 2}, "leave one of them at 1"),
        # No tile is left over, and more than one for each cluster of two.
        (replace(GOOD, n=132 * 128), Config(tail_splits=2), {"tail_splits": 2}, "use tail_splits=1"),
        (replace(GOOD, n=199 * 128), Config(tail_splits=2), {"tail_splits": 2}, "use tail_splits=1"),
        (GOOD, Config(cluster_n=3), {"cluster_n": 3}, "change cluster_n"),
        (GOOD, Config(splits=2, cluster_n=2), {"cluster_n": 2, "splits": 2}, "change cluster_n"),
        (replace(GOOD, m=24), Config(tile_m=24, cluster_n=2), {"cluster_n": 2, "tile_m": 24}, "change cluster_n"),
        (GOOD, Config(stages=1), {"stages": 1}, "change stages or a tile"),
        (GOOD, Config(stages=13), {"stages": 13}, "change stages or a tile"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    problem: GemmProblem, config: Config, named: dict[str, int], remedy: str
) -> None:
    KERNEL.check(GOOD, Config())
    with pytest.raises(UnsupportedError) as refusal:
        KERNEL.check(problem, config)
    assert named.items() <= refusal.value.values.items()
    assert refusal.value.remedy == remedy


def test_a_shape_that_no_config_does_is_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match=r"m=256 .*use hopper_wgmma_fp8"):
        first_admitted(KERNEL, replace(GOOD, m=256))


@pytest.mark.parametrize(
    "shape", [(1, 16, 16), (16, 28672, 8192), (128, 57344, 8192), (33, 5760, 2880), (64, 4096, 4096)]
)
def test_candidates_are_admitted(shape: tuple[int, int, int]) -> None:
    problem = GemmProblem(*shape, *E4M3)
    found = KERNEL.candidates(problem)
    assert len(set(found)) == len(found) > 2
    for config in found:
        KERNEL.check(problem, config)


@pytest.mark.parametrize(
    ("shape", "splits", "tile_n"),
    [
        ((64, 28672, 4096), 1, 128),
        ((16, 4096, 4096), 1, 64),
        ((128, 4096, 14336), 2, 64),
        ((16, 8192, 28672), 1, 128),
    ],
)
def test_the_first_guess_has_narrow_tiles_and_parts_of_k_where_tiles_are_few(
    shape: tuple[int, int, int], splits: int, tile_n: int
) -> None:
    first = KERNEL.candidates(GemmProblem(*shape, *E4M3))[0]
    assert (first.splits, first.tile_n) == (splits, tile_n)
    assert first.stages * (first.tile_m + first.tile_n) * first.tile_k > 100_000


@pytest.mark.parametrize("shape", [(16, 4096, 14336), (16, 28672, 4096), (16, 57344, 8192)])
def test_a_tail_is_divided_only_behind_a_whole_wave(shape: tuple[int, int, int]) -> None:
    found = KERNEL.candidates(GemmProblem(*shape, *E4M3))
    assert any(config.tail_splits > 1 for config in found) == (shape[1] > 132 * 64)


#: Shape, format of C, config: the widest tiles, which spill first, the narrowest, and every size of cluster.
COMPILED = (
    ((1, 1040, 4112), "bf16", Config(8, 128, 256, 5, 8)),
    ((16, 28672, 8192), "bf16", Config(16, 128, 128, 11)),
    ((64, 5760, 2880), "fp8_e4m3", Config(64, 128, 128, 6, 4)),
    ((128, 8192, 8192), "bf16", Config(128, 256, 128, 2, 2)),
    ((128, 1040, 1616), "f32", Config(128, 256, 128, 3)),
    # One consumer, alone, with parts of K, and with a tail; tails of two consumers.
    ((1, 4096, 14336), "bf16", Config(8, 64, 128, 20, 2)),
    ((128, 28672, 4096), "f32", Config(128, 64, 128, 4, 1, 2)),
    ((16, 57344, 8192), "fp8_e4m3", Config(16, 64, 256, 10)),
    ((128, 8192, 8192), "bf16", Config(128, 64, 512, 2)),
    ((64, 57344, 8192), "bf16", Config(64, 128, 128, 6, 1, 2)),
    # Two blocks that share A, alone and with a tail.
    ((128, 8192, 8192), "bf16", Config(128, 256, 128, 3, cluster_n=2)),
    ((64, 28672, 4096), "bf16", Config(64, 64, 256, 5, tail_splits=2, cluster_n=2)),
)


def test_machine_code_for_sm_90a_does_not_spill() -> None:
    cases = [
        CompileCase(KERNEL.name, "h200", GemmProblem(*shape, *E4M3, out), vars(config))
        for shape, out, config in COMPILED
    ]
    for case, outcome, (_, _, config) in zip(cases, compile_many(cases), COMPILED, strict=True):
        code = outcome.code
        assert code is not None, outcome.reason
        assert code.spill_bytes == code.count("LDL") == code.count("STL") == 0, case
        assert code.shared_memory_bytes is not None
        assert code.shared_memory_bytes <= _mosaic_gpu.SHARED_MEMORY_BYTES
        # Steps of 32 of K and of 64 rows of B.
        rows = config.tile_n // config.consumers
        assert code.count("QGMMA") % (config.tile_k // 32 * rows // 64) == 0
        assert code.count("QGMMA") > 0
        assert code.count("UTMALDG") >= 2 * config.tile_k // 128
        assert code.count("UTMASTG") > 0
        assert any("MULTICAST" in name for name in code.instructions) == (config.cluster_n > 1)
        # Values on their way to another block: two registers a store.
        stores = rows * config.tile_m // 256 if config.parts > 1 else 0
        assert code.count("STAS") == stores
