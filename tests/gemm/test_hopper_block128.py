"""FP8 in blocks of 128 on Hopper: arithmetic and races in the interpreter, machine code for sm_90a, refusals."""

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.gemm.operands import quantized

from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _mosaic_gpu, _wgmma_promote, api, oracle
from narrowgemm.gemm._hopper import REGISTERS
from narrowgemm.gemm._hopper_block128_space import Config, grain
from narrowgemm.gemm.registry import Kernel, kernel_named
from narrowgemm.problem import GemmProblem

SMALL = Config(tile_m=128, tile_n=128, stages=2)
THREE = Config(tile_m=192, tile_n=128, stages=2, consumers=3)
FORMATS = ("fp8_e4m3_1x128", "fp8_e4m3_128x128")


def _kernel() -> Kernel:
    return kernel_named("hopper_wgmma_fp8_block128")


def _operands(m: int, n: int, k: int) -> tuple[Any, Any]:
    """Blocks whose scales differ by powers of two up to 2^12, so that no scale can stand in for another."""
    rng = np.random.default_rng(m * n + k)
    return tuple(
        quantized(rng.normal(size=(rows, k)) * 2.0 ** rng.integers(-6, 7, (rows, k)), name)
        for rows, name in zip((m, n), FORMATS, strict=True)
    )


def _problem(m: int, n: int, k: int, out_format: str = "f32") -> GemmProblem:
    return GemmProblem(m, n, k, *FORMATS, out_format)


@pytest.mark.parametrize(
    ("shape", "config", "out_format"),
    [
        # Blocks that end early in K and in N, fewer steps than a round, and tiles in the second wave.
        ((257, 272, 144), replace(SMALL, stages=3, in_flight=2, round_k=4), "bf16"),
        # Every kind of loop: two groups of four steps, a round and a step that are left. Consumers side by side.
        (
            (70, 80, 1360),
            replace(SMALL, tile_m=64, split="n", part_n=64, stages=3, in_flight=2, round_k=2),
            "f32",
        ),
        # Parts that meet two blocks of B, the boundary at another place in each tile.
        ((130, 272, 272), replace(SMALL, tile_n=192, part_n=192, cluster_m=2), "f32"),
        ((70, 464, 272), replace(SMALL, tile_n=160, stages=3, part_n=80, in_flight=2, cluster_n=2), "f32"),
        # Consumers in turn, and a second group that ends early; several parts along N; several along M.
        ((130, 224, 656), replace(SMALL, tile_m=64, tile_n=112, split=None, part_n=112), "f16"),
        ((130, 272, 272), replace(SMALL, tile_n=256), "fp8_e4m3"),
        ((257, 144, 144), replace(SMALL, tile_m=256), "f32"),
        # Few columns: several parts along M of consumers side by side, two in flight, and of consumers in turn.
        ((300, 48, 272), replace(SMALL, tile_m=256, tile_n=64, stages=3, part_n=64, in_flight=2, cluster_m=2), "f32"),
        ((300, 48, 272), replace(SMALL, tile_n=64, split=None, part_n=64), "bf16"),
        # Three consumers: the last tile ends in the first one's rows, or in the second one's; each way to share tiles.
        ((240, 272, 656), replace(THREE, round_k=2), "bf16"),
        ((300, 144, 272), replace(THREE, cluster_n=2), "fp8_e4m3"),
        ((196, 144, 144), replace(THREE, cluster_m=2, tile_n=72, part_n=72, stages=3), "f32"),
        ((70, 400, 272), replace(THREE, tile_m=64, tile_n=240, split="n", part_n=80), "f32"),
        ((70, 592, 144), replace(THREE, tile_m=64, tile_n=64, stages=3, split=None, part_n=64, in_flight=2), "f32"),
    ],
)
def test_it_equals_the_oracle_without_races(shape: tuple[int, int, int], config: Config, out_format: str) -> None:
    problem, chosen = _problem(*shape, out_format), _kernel()
    a, b = _operands(*shape)
    chosen.check(problem, config)
    got = jax.jit(lambda a, b: chosen.matmul(a, b, config, out_format, interpret=True))(a, b)
    error, _ = oracle.errors(np.asarray(got), oracle.exact(a, b))
    assert got.shape == shape[:2]
    assert error <= oracle.tolerance(problem)
    assert not _mosaic_gpu.races_found()


def test_an_epilogue_comes_after_the_promoted_sum() -> None:
    chosen, shape = _kernel(), (70, 144, 272)
    a, b = _operands(*shape)
    bias = jnp.asarray(np.random.default_rng(1).normal(size=144), jnp.float32)
    given = api.Epilogue(bias=bias, activation="relu")
    assert chosen.matmul_epilogue is not None
    got = jax.jit(lambda a, b, e: chosen.matmul_epilogue(a, b, SMALL, "f32", e, interpret=True))(a, b, given)
    error, _ = oracle.errors(np.asarray(got), oracle.finished(oracle.exact(a, b), given))
    assert error < 1e-6
    assert not _mosaic_gpu.races_found()


def test_rows_beyond_m_never_reach_valid_rows() -> None:
    a, b = _operands(128, 64, 144)
    assert a.scales is not None
    run = jax.jit(lambda a, b: _kernel().matmul(a, b, SMALL, "f32", interpret=True))
    valid = run(a, b)[:70]
    for poison in (np.nan, 1e38):
        poisoned = replace(a, scales=a.scales.at[70:].set(poison))
        np.testing.assert_array_equal(run(poisoned, b)[:70], valid)


def test_a_partial_sum_begins_by_overwriting_its_accumulator() -> None:
    lines = _wgmma_promote._instructions(128, "e4m3", "e4m3").splitlines()
    flags = [line.split()[2] for line in lines if line.startswith("setp")]
    assert flags == ["0,", "1,", "1,", "1,"]
    assert sum("wgmma.mma_async" in line for line in lines) == 4


@pytest.mark.parametrize(
    ("problem", "config", "named"),
    [
        (_problem(64, 64, 100), SMALL, {"k": 100}),
        (_problem(64, 260, 128, "bf16"), SMALL, {"n": 260}),
        (_problem(64, 64, 128), replace(SMALL, part_n=96), {"part_n": 96}),
        (_problem(64, 64, 128), replace(SMALL, part_n=0), {"part_n": 0}),
        (_problem(64, 64, 128), replace(SMALL, in_flight=3), {"in_flight": 3}),
        (_problem(64, 64, 128), replace(SMALL, round_k=3), {"round_k": 3}),
        # 128 accumulators and two parts of 64; parts that could meet three blocks of B.
        (_problem(64, 64, 128), replace(SMALL, tile_n=256, in_flight=2), {"tile_n": 256}),
        (_problem(64, 64, 128), replace(SMALL, tile_n=176, part_n=176), {"part_n": 176}),
        (_problem(64, 64, 128), replace(SMALL, tile_n=256, round_k=2), {"round_k": 2}),
        (_problem(64, 64, 128), replace(SMALL, tile_n=224, part_n=112), {"part_n": 112}),
        (_problem(64, 64, 128), replace(SMALL, tile_n=256, part_n=64), {"part_n": 64}),
        # Stages of which one is waited for while parts of all others are in flight: it would never come.
        (_problem(64, 64, 128), replace(SMALL, stages=1), {"stages": 1}),
        (_problem(64, 64, 128), replace(SMALL, stages=2, in_flight=2), {"stages": 2}),
        (_problem(64, 64, 128), replace(SMALL, stages=9), {"stages": 9}),
        # Registers for four; rows that three cannot share; 96 accumulators and a part of 96 in 160 registers.
        (_problem(64, 64, 128), replace(SMALL, consumers=4), {"consumers": 4}),
        (_problem(64, 64, 128), replace(THREE, tile_m=194), {"tile_m": 194}),
        (_problem(64, 64, 128), replace(THREE, tile_m=64, tile_n=288, split="n", part_n=96), {"tile_n": 288}),
        (_problem(64, 64, 128), replace(THREE, tile_n=192, part_n=96), {"tile_n": 192}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(problem: GemmProblem, config: Config, named: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        _kernel().check(problem, config)
    assert named.items() <= refusal.value.values.items()
    assert refusal.value.remedy


def test_a_part_never_meets_more_than_two_blocks_of_b() -> None:
    for config in _kernel().candidates(_problem(4096, 7168, 2048)):
        for first in range(0, 128, grain(config)):
            assert (first + config.part_n - 1) // 128 <= (0 if config.part_n <= grain(config) else 1), config


@pytest.mark.parametrize(
    ("shape", "quickest"),
    [
        ((4096, 4096, 4096), Config(128, 256, 4, "m", 2, 1, part_n=128)),
        ((4096, 7168, 2048), Config(128, 256, 4, "m", 2, 1, part_n=128)),
        ((8192, 8192, 8192), Config(192, 128, 4, "m", 1, 2, part_n=128, consumers=3)),
    ],
)
def test_the_first_candidate_is_the_quickest_that_was_timed(shape: tuple[int, int, int], quickest: Config) -> None:
    """In bursts on an H200 (docs/performance/hopper_wgmma_fp8_block128.md)."""
    assert _kernel().candidates(_problem(*shape, "bf16"))[0] == quickest


def test_gemm_takes_it_on_hopper_for_its_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(api, "default_device", lambda: h200)
    assert api._default_kernel(_problem(64, 64, 128)).name == "hopper_wgmma_fp8_block128"


def test_machine_code_keeps_partial_sums_in_flight_and_does_not_spill() -> None:
    """Waits for wgmma: one a part of each place in the code, which is more where ptxas takes them one by one."""
    whole, ragged = _problem(8192, 8192, 8192, "bf16"), _problem(257, 1040, 1616, "bf16")
    # Parts in the code: of a round, and of the steps that are left of K.
    cases = [
        (whole, Config(128, 256, 4, "m", 2, 1, part_n=128), 2),
        (ragged, Config(128, 160, 5, "m", 1, 1, part_n=80, in_flight=2, round_k=1), 2),
        (ragged, Config(64, 128, 8, None, 1, 2, part_n=128, in_flight=2, round_k=4), 5),
        (ragged, Config(192, 128, 4, "m", 1, 2, part_n=128, consumers=3), 1),
    ]
    compiled = [aot.CompileCase(_kernel().name, "h200", problem, asdict(config)) for problem, config, _ in cases]
    for (_, config, parts), outcome in zip(cases, aot.compile_many(compiled), strict=True):
        assert outcome.code is not None, outcome.reason
        assert outcome.code.spill_bytes == 0, config
        assert outcome.code.shared_memory_bytes <= _mosaic_gpu.SHARED_MEMORY_BYTES
        assert outcome.code.count("QGMMA") == 4 * parts, config
        assert outcome.code.count("WARPGROUP.DEPBAR") == parts, config
        # `setmaxnreg` waits until the block's own pool has what is asked for: more than all of it never comes.
        consumer, producer = REGISTERS[config.consumers]
        assert outcome.code.threads is not None
        assert outcome.code.registers is not None
        asked = 128 * (config.consumers * consumer + producer)
        assert asked <= outcome.code.threads * outcome.code.registers, config
