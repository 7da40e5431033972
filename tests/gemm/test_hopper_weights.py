"""The Hopper kernels with packed weights: machine code for sm_90a, refusals. Their arithmetic: test_weight_widening."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.gemm.operands import quantized

import narrowgemm
from narrowgemm.aot import CompileCase, MachineCode, compile_many
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import _mosaic_gpu, oracle
from narrowgemm.gemm._hopper import REGISTERS
from narrowgemm.gemm._hopper_weights_space import Config
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

KERNELS = ("w4a8", "w4a16", "w6a8", "w6a16")
#: Kernel, formats of A, B and C, M, config: the widest tiles of A, which spill first, and the narrowest.
CASES: tuple[tuple[str, str, str, str, int, Config], ...] = (
    ("w4a8", "fp8_e4m3", "mxfp4", "bf16", 5, Config(8, 6)),
    ("w4a8", "fp8_e4m3", "mxfp4", "f16", 200, Config(64, 4)),
    ("w4a8", "fp8_e5m2", "nvfp4", "bf16", 200, Config(64, 4, 3)),
    ("w4a16", "bf16", "mxfp4", "bf16", 16, Config(16, 8, 5)),
    ("w4a16", "bf16", "nvfp4", "f32", 200, Config(128, 3)),
    ("w6a8", "fp8_e4m3", "mxfp6_e2m3", "bf16", 16, Config(16, 6)),
    ("w6a8", "fp8_e4m3", "mxfp6_e3m2", "f32", 200, Config(64, 3, 2)),
    ("w6a16", "bf16", "mxfp6_e2m3", "bf16", 200, Config(128, 3)),
    ("w6a16", "bf16", "mxfp6_e3m2", "bf16", 16, Config(8, 6, 2)),
    ("w4a8", "fp8_e4m3", "mxfp4", "bf16", 16, Config(16, 8, 1, 2)),
    ("w4a8", "fp8_e4m3", "nvfp4", "bf16", 32, Config(32, 6, 2, 2)),
    ("w6a8", "fp8_e4m3", "mxfp6_e2m3", "bf16", 32, Config(32, 6, 1, 2)),
    ("w4a16", "bf16", "nvfp4", "bf16", 64, Config(64, 4, 1, 2)),
    ("w6a16", "bf16", "mxfp6_e3m2", "f32", 64, Config(64, 4, 2, 2)),
)


@pytest.fixture(scope="module")
def codes() -> list[MachineCode]:
    """Machine code of every case; N and K are no multiples of a tile."""
    cases = [
        CompileCase(f"hopper_wgmma_{kernel}", "h200", GemmProblem(m, 1040, 1056, a, b, out), vars(config))
        for kernel, a, b, out, m, config in CASES
    ]
    outcomes = compile_many(cases)
    assert [outcome.reason for outcome in outcomes if outcome.reason] == []
    return [outcome.code for outcome in outcomes if outcome.code]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_machine_code_has_wgmma_from_registers_and_no_spills(codes: list[MachineCode], number: int) -> None:
    code, (_, a, b, *_) = codes[number], CASES[number]
    multiplies = code.count("QGMMA") if a != "bf16" else code.count("HGMMA")
    # A step of 128 of K is 4 multiplies in FP8, 8 in BF16 and, with two blocks of scales in each 32, in NVFP4.
    assert multiplies % (4 if a != "bf16" and b != "nvfp4" else 8) == 0
    assert multiplies > 0
    assert code.count("UTMASTG") > 0
    assert code.spill_bytes == 0
    assert code.count("LDL") == code.count("STL") == 0
    assert code.shared_memory_bytes is not None
    assert code.shared_memory_bytes <= 227 * 1024
    assert code.instruction_count < 2500


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_block_asks_for_no_more_registers_than_it_was_launched_with(codes: list[MachineCode], number: int) -> None:
    """`setmaxnreg` waits until the block's own pool has what is asked for: more than all of it never comes."""
    code, pairs = codes[number], CASES[number][-1].pairs
    consumer, producer = REGISTERS[2 * pairs]
    assert code.threads is not None
    assert code.registers is not None
    assert 128 * (2 * pairs * consumer + producer) <= code.threads * code.registers


@pytest.mark.parametrize(
    ("name", "b_format", "shape", "config"),
    [
        ("w4a8", "mxfp4", (1, 64, 32), Config(8, 2)),
        ("w4a8", "nvfp4", (19, 208, 528), Config(16, 2, 2)),
        ("w4a16", "mxfp4", (19, 208, 416), Config(8, 3)),
        ("w4a16", "nvfp4", (17, 80, 272), Config(16, 1, 3)),
        ("w6a8", "mxfp6_e2m3", (5, 272, 416), Config(8, 2, 3)),
        ("w6a16", "mxfp6_e3m2", (33, 144, 288), Config(32, 2)),
        ("w4a8", "mxfp4", (19, 208, 416), Config(16, 3, 1, 2)),
        ("w4a16", "nvfp4", (17, 272, 656), Config(8, 2, 2, 2)),
    ],
)
def test_copies_barriers_and_stores_give_the_product_without_races(
    name: str, b_format: str, shape: tuple[int, int, int], config: Config
) -> None:
    kernel = kernel_named(f"hopper_wgmma_{name}")
    m, n, k = shape
    problem = GemmProblem(m, n, k, kernel.a_formats[0], b_format, "f32")
    kernel.check(problem, config)
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(rows, k)).astype(np.float32) for rows in (m, n))
    qa, qb = quantized(a, problem.a_format), quantized(b, b_format)
    run = jax.jit(lambda a, b: kernel.matmul(a, b, config, "f32", interpret=True))
    error, _ = oracle.errors(np.asarray(run(qa, kernel.prepared(qb))), oracle.exact(qa, qb))
    assert error < 1e-6
    assert not _mosaic_gpu.races_found()


GOOD = GemmProblem(16, 512, 1024, "fp8_e4m3", "mxfp4")


@pytest.mark.parametrize(
    ("problem", "config", "named"),
    [
        (replace(GOOD, n=516), Config(), {"n": 516}),
        (replace(GOOD, k=1040), Config(), {"k": 1040}),
        (GOOD, Config(tile_m=12), {"tile_m": 12, "pairs": 1}),
        (GOOD, Config(tile_m=128), {"tile_m": 128, "pairs": 1}),
        (GOOD, Config(tile_m=64, pairs=2), {"tile_m": 64, "pairs": 2}),
        (GOOD, Config(pairs=3), {"pairs": 3}),
        (GOOD, Config(splits=9), {"splits": 9}),
        (GOOD, Config(tile_m=16, stages=40), {"tile_m": 16, "stages": 40}),
        (GOOD, Config(stages=0), {"stages": 0}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(problem: GemmProblem, config: Config, named: dict[str, int]) -> None:
    kernel = kernel_named("hopper_wgmma_w4a8")
    kernel.check(GOOD, Config())
    with pytest.raises(UnsupportedError) as refusal:
        kernel.check(problem, config)
    assert refusal.value.values == named


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(1, 64, 32), (16, 28672, 8192), (257, 768, 416), (4096, 4096, 4096)])
def test_candidates_are_admitted(name: str, shape: tuple[int, int, int]) -> None:
    kernel = kernel_named(f"hopper_wgmma_{name}")
    for b_format in kernel.b_formats:
        problem = GemmProblem(*shape, kernel.a_formats[0], b_format)
        found = kernel.candidates(problem)
        assert found
        for config in found:
            kernel.check(problem, config)


@pytest.mark.parametrize(("b", "named"), [("as they are", "b"), ("for BF16", "activation_bits of b")])
def test_weights_are_never_shuffled_on_the_way(b: str, named: str) -> None:
    q = narrowgemm.quantize(np.ones((64, 128), np.float32), "mxfp4")
    a = narrowgemm.quantize(np.ones((8, 128), np.float32), "fp8_e4m3")
    weights = q if b == "as they are" else narrowgemm.shuffle_weights(q, 16)
    with pytest.raises(UnsupportedError, match=r"shuffle.*8") as refusal:
        kernel_named("hopper_wgmma_w4a8").matmul(a, weights, Config(), "bf16")
    assert list(refusal.value.values) == [named]


def test_other_kernels_refuse_shuffled_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowgemm.gemm.api.check_device", lambda _: None)
    weights = narrowgemm.shuffle_weights(narrowgemm.quantize(np.ones((64, 128), np.float32), "mxfp4"), 8)
    a = narrowgemm.quantize(np.ones((8, 128), np.float32), "mxfp4")
    with pytest.raises(UnsupportedError, match="unshuffle_weights"):
        narrowgemm.gemm(a, weights, kernel="blackwell_tcgen05_mxfp4")
    with pytest.raises(ValueError, match="a is a ShuffledWeights"):
        narrowgemm.gemm(weights, jnp.ones((8, 128)), kernel="xla_dot_f32")
