"""The dense Hopper kernels: arithmetic and races in the interpreter, machine code for sm_90a, refusals."""

from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.gemm.operands import drawn

from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _mosaic_gpu, oracle
from narrowgemm.gemm._hopper_space import Config
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

SMALL = Config(tile_m=128, tile_n=128, stages=2)


def _operands(m: int, n: int, k: int, a_format: str, b_format: str) -> tuple[object, object]:
    return drawn(a_format, m, k, seed=m * n + k), drawn(b_format, n, k, seed=m * n + k + 1)


def _check(kernel: str, problem: GemmProblem, config: Config) -> None:
    a, b = _operands(problem.m, problem.n, problem.k, problem.a_format, problem.b_format)
    chosen = kernel_named(kernel)
    chosen.check(problem, config)
    got = jax.jit(lambda a, b: chosen.matmul(a, b, config, problem.out_format, interpret=True))(a, b)
    error, _ = oracle.errors(np.asarray(got), oracle.exact(a, b))
    assert got.shape == (problem.m, problem.n)
    assert error <= oracle.tolerance(problem)
    assert not _mosaic_gpu.races_found()


@pytest.mark.parametrize(
    ("m", "n", "k", "config"),
    [
        (1, 64, 128, replace(SMALL, tile_m=64, split="n")),
        (17, 96, 144, replace(SMALL, tile_m=64, split="n")),
        (257, 272, 400, SMALL),
        (201, 272, 144, replace(SMALL, cluster_m=2)),
        (201, 272, 144, replace(SMALL, cluster_n=2)),
        (300, 272, 400, replace(SMALL, split=None)),
        (200, 352, 272, replace(SMALL, tile_m=64, tile_n=168, split=None, cluster_m=2)),
        # An odd number of staged stores a tile, whose last part overlaps the one before.
        (200, 352, 144, replace(SMALL, tile_n=168)),
    ],
)
def test_fp8_equals_the_oracle_without_races(m: int, n: int, k: int, config: Config) -> None:
    _check("hopper_wgmma_fp8", GemmProblem(m, n, k, "fp8_e4m3", "fp8_e4m3"), config)


@pytest.mark.parametrize("formats", [("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3")])
def test_fp8_formats_mix(formats: tuple[str, str]) -> None:
    _check("hopper_wgmma_fp8", GemmProblem(130, 144, 160, *formats, "fp8_e4m3"), SMALL)


@pytest.mark.parametrize("out_format", ["f32", "f16", "fp8_e5m2"])
def test_bf16_stores_every_format(out_format: str) -> None:
    _check("hopper_wgmma_bf16", GemmProblem(130, 144, 72, "bf16", "bf16", out_format), SMALL)


@pytest.mark.parametrize(("tiles", "width"), [(9, 8), (10, 16), (12, 8), (13, 16)])
def test_every_tile_is_written_when_the_raster_width_does_not_divide(tiles: int, width: int) -> None:
    config = replace(SMALL, tile_m=64, tile_n=64, split="n", raster="n", raster_width=width)
    _check("hopper_wgmma_bf16", GemmProblem(64, 64 * tiles, 64, "bf16", "bf16"), config)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in matmul")  # 1e38 · 1e38 in NumPy
@pytest.mark.parametrize("poison", [np.nan, 1e38])
def test_rows_beyond_m_never_reach_valid_rows(poison: float) -> None:
    """The kernel multiplies a slice of a larger array whose other rows are poisoned, in the same tile."""
    a, b = _operands(128, 64, 64, "bf16", "bf16")
    poisoned = a.at[70:].set(poison)
    chosen = kernel_named("hopper_wgmma_bf16")
    run = jax.jit(lambda a, b: chosen.matmul(a, b, SMALL, "f32", interpret=True))
    np.testing.assert_array_equal(run(poisoned, b)[:70], run(a, b)[:70])
    np.testing.assert_array_equal(run(poisoned[:70], b), run(a, b)[:70])


def test_an_fp8_result_saturates() -> None:
    a = jnp.full((64, 64), 30.0, jnp.bfloat16)
    got = kernel_named("hopper_wgmma_bf16").matmul(a, -a, SMALL, "fp8_e4m3", interpret=True)
    np.testing.assert_array_equal(np.asarray(got, np.float32), -448.0)


@pytest.mark.parametrize(
    ("problem", "config", "named"),
    [
        (GemmProblem(64, 64, 100, "fp8_e4m3", "fp8_e4m3"), SMALL, {"k": 100}),
        (GemmProblem(64, 258, 128, "fp8_e4m3", "fp8_e4m3"), SMALL, {"n": 258}),
        (GemmProblem(64, 264, 128, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3"), SMALL, {"n": 264}),
        (GemmProblem(64, 64, 128, "fp8_e4m3", "fp8_e4m3"), Config(tile_m=96), {"tile_m": 96}),
        (GemmProblem(64, 64, 128, "fp8_e4m3", "fp8_e4m3"), Config(tile_m=256, tile_n=256), {"tile_n": 256}),
        (GemmProblem(64, 64, 128, "fp8_e4m3", "fp8_e4m3"), Config(stages=5), {"stages": 5}),
        (GemmProblem(64, 64, 128, "fp8_e4m3", "fp8_e4m3"), Config(cluster_m=2, cluster_n=2), {"cluster_m": 2}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(problem: GemmProblem, config: Config, named: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        kernel_named("hopper_wgmma_fp8").check(problem, config)
    assert named.items() <= refusal.value.values.items()
    assert refusal.value.remedy


@pytest.mark.parametrize("shape", [(1, 2048, 2048), (257, 8192, 8192), (8192, 8192, 8192), (16, 48, 96)])
def test_candidates_are_admitted(shape: tuple[int, int, int]) -> None:
    problem = GemmProblem(*shape, "fp8_e4m3", "fp8_e4m3")
    chosen = kernel_named("hopper_wgmma_fp8")
    candidates = chosen.candidates(problem)
    assert len(set(candidates)) == len(candidates) > 20
    for config in candidates:
        chosen.check(problem, config)


def test_machine_code_for_sm_90a_does_not_spill() -> None:
    fp8, bf16 = ("hopper_wgmma_fp8", "fp8_e4m3"), ("hopper_wgmma_bf16", "bf16")
    cases = [
        aot.CompileCase(name, "h200", GemmProblem(*shape, fmt, fmt), asdict(config))
        for (name, fmt), shape, config in (
            (fp8, (8192, 8192, 8192), Config(128, 256, 4, "m", cluster_m=2)),
            (fp8, (257, 1040, 1616), Config(128, 168, 5, "m")),
            (fp8, (4096, 4096, 4096), Config(128, 128, 6, None, cluster_n=2)),
            (bf16, (8192, 8192, 8192), Config(256, 128, 4, "m", cluster_n=2)),
        )
    ]
    for case, outcome in zip(cases, aot.compile_many(cases), strict=True):
        assert outcome.code is not None, outcome.reason
        assert outcome.code.spill_bytes == 0
        assert outcome.code.shared_memory_bytes <= _mosaic_gpu.SHARED_MEMORY_BYTES
        tensor_core = "QGMMA" if case.kernel.endswith("fp8") else "HGMMA"
        assert outcome.code.count(tensor_core) >= 4
        assert outcome.code.count("UTMALDG") >= 2
