"""The Blackwell kernels in GPU interpret mode, with race detection."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from tests.gemm.operands import quantized

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import reference
from narrowgemm.formats.quantize import as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _blackwell_plan, _blackwell_tcgen05, _mosaic_gpu
from narrowgemm.gemm._blackwell_plan import Config, plan
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

#: The interpreter has two SMs, and its hardware scheduler gives each block one tile: "static" makes a block do several.
SMALL = Config(tile_n=64, stages=2, ctas=1, schedule="static")
WIDE = dataclasses.replace(SMALL, tile_n=128)
THIN = dataclasses.replace(SMALL, tile_n=16)


def interpreted(kernel: str, problem: GemmProblem, config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Result of the interpreted kernel in float64, and the exact product of the operands that it was given."""
    random = np.random.default_rng(0)

    def operand(rows: int, format_name: str) -> tuple[Any, np.ndarray]:
        made = quantized(random.standard_normal((rows, problem.k)), format_name)
        return made, reference.dequantize(as_quantized(made))

    a, a_exact = operand(problem.m, problem.a_format)
    b, b_exact = operand(problem.n, problem.b_format)
    matmul = kernel_named(kernel).matmul
    out = jax.jit(lambda a, b: matmul(a, b, config, problem.out_format, interpret=True))(a, b)
    assert out.dtype == format_named(problem.out_format).element.dtype
    return np.asarray(out, np.float64), a_exact @ b_exact.T


@pytest.mark.parametrize(
    ("kernel", "problem", "config"),
    [
        pytest.param(
            "blackwell_tcgen05_bf16",
            GemmProblem(256, 128, 192, "bf16", "bf16", "f32"),
            SMALL,
            id="several tiles a block",
        ),
        pytest.param(
            "blackwell_tcgen05_bf16",
            GemmProblem(1, 72, 40, "bf16", "bf16", "bf16"),
            dataclasses.replace(SMALL, stages=4, schedule="dynamic"),
            id="edges smaller than a tile",
        ),
        pytest.param(
            "blackwell_tcgen05_bf16",
            GemmProblem(300, 136, 72, "bf16", "bf16", "f32"),
            dataclasses.replace(SMALL, accumulators=1, raster="m", raster_width=2),
            id="one accumulator",
        ),
        pytest.param(
            "blackwell_tcgen05_fp8",
            GemmProblem(130, 80, 272, "fp8_e4m3", "fp8_e5m2", "fp8_e4m3"),
            SMALL,
            id="mixed formats, FP8 out",
        ),
        pytest.param(
            "blackwell_tcgen05_mxfp8", GemmProblem(300, 136, 288, "mxfp8_e4m3", "mxfp8_e5m2", "f32"), WIDE, id="MXFP8"
        ),
        pytest.param(
            "blackwell_tcgen05_mxfp6", GemmProblem(140, 16, 320, "mxfp6_e2m3", "mxfp8_e4m3", "bf16"), THIN, id="MXFP6"
        ),
        pytest.param(
            "blackwell_tcgen05_mxfp6",
            GemmProblem(130, 272, 192, "mxfp8_e5m2", "mxfp6_e3m2", "f32"),
            WIDE,
            id="MXFP6, transposed",
        ),
        pytest.param("blackwell_tcgen05_mxfp4", GemmProblem(130, 72, 544, "mxfp4", "mxfp4", "f32"), WIDE, id="MXFP4"),
        pytest.param("blackwell_tcgen05_nvfp4", GemmProblem(40, 136, 544, "nvfp4", "nvfp4", "bf16"), WIDE, id="NVFP4"),
    ],
)
def test_interpreted_product_is_exact_up_to_the_store(kernel: str, problem: GemmProblem, config: Config) -> None:
    kernel_named(kernel).check(problem, config)
    got, exact = interpreted(kernel, problem, config)
    step = 2.0 ** -(format_named(problem.out_format).element.mantissa_bits + 1)
    np.testing.assert_allclose(got, exact, rtol=1.01 * step + 1e-6, atol=1e-3 if step > 1e-3 else 1e-5)
    assert not _mosaic_gpu.races_found()


def with_little_tensor_memory(monkeypatch: pytest.MonkeyPatch, **changes: int) -> tuple[np.ndarray, np.ndarray]:
    """A run whose two accumulators of 64 columns share half of them, as those of 256 do beside block scales."""
    monkeypatch.setattr(_blackwell_plan, "TENSOR_MEMORY_COLUMNS", 96)
    planned = plan("bf16", "f32", SMALL)
    assert (planned.stride, planned.store_n, planned.drain_pieces, planned.lag) == (32, 32, 1, 1)
    monkeypatch.setattr(_blackwell_tcgen05, "plan", lambda *_: dataclasses.replace(planned, **changes))
    return interpreted("blackwell_tcgen05_bf16", GemmProblem(128, 512, 64, "bf16", "bf16", "f32"), SMALL)


def test_accumulators_may_share_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    got, exact = with_little_tensor_memory(monkeypatch)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    assert not _mosaic_gpu.races_found()


def test_the_race_detector_sees_columns_shared_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with_little_tensor_memory(monkeypatch, lag=2)
    assert _mosaic_gpu.races_found()


def test_pairs_say_that_they_are_not_interpreted() -> None:
    with pytest.raises(UnsupportedError, match="JAX does not interpret"):
        interpreted("blackwell_tcgen05_bf16", GemmProblem(64, 64, 64, "bf16", "bf16"), Config(stages=3))


@pytest.mark.parametrize(
    ("kernel", "problem", "changes", "message"),
    [
        ("fp8", GemmProblem(64, 64, 4100, "fp8_e4m3", "fp8_e4m3"), {}, "k=4100 is not a multiple of 16.*pad k to 4112"),
        ("fp8", GemmProblem(64, 60, 4096, "fp8_e4m3", "fp8_e4m3"), {}, "n=60 is not a multiple of 8.*pad n to 64"),
        ("mxfp4", GemmProblem(64, 64, 4112, "mxfp4", "mxfp4"), {}, "k=4112 is not a multiple of 32.*pad k to 4128"),
        ("bf16", GemmProblem(64, 64, 64, "bf16", "bf16"), {"tile_n": 272}, "from 32 to 256.*use tile_n=256"),
        ("nvfp4", GemmProblem(64, 64, 64, "nvfp4", "nvfp4"), {"tile_n": 192}, "a tile of scales has 128 rows"),
        ("bf16", GemmProblem(64, 64, 64, "bf16", "bf16"), {"stages": 9}, "bytes of shared memory; a block has 232448"),
        ("mxfp6", GemmProblem(64, 64, 64, "mxfp8_e4m3", "mxfp8_e4m3"), {}, "are not one MXFP6 and one MXFP8"),
        (
            "mxfp6",
            GemmProblem(64, 64, 64, "mxfp6_e2m3", "mxfp6_e2m3"),
            {},
            "quantise one operand to MXFP6 and the other",
        ),
        (
            "mxfp6",
            GemmProblem(64, 64, 96, "mxfp6_e2m3", "mxfp8_e4m3"),
            {},
            "k=96 is not a multiple of 64.*pad k to 128",
        ),
        (
            "mxfp6",
            GemmProblem(80, 64, 64, "mxfp8_e4m3", "mxfp6_e2m3"),
            {"tile_n": 64},
            "a multiple of 32 that covers 80",
        ),
        (
            "mxfp6",
            GemmProblem(64, 16, 64, "mxfp6_e2m3", "mxfp8_e4m3", "fp8_e4m3"),
            {"tile_n": 16, "ctas": 1},
            "rows of 16 bytes of fp8_e4m3.*use tile_n=32",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_rule_and_remedy(
    kernel: str, problem: GemmProblem, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        kernel_named(f"blackwell_tcgen05_{kernel}").check(problem, Config(**changes))


@pytest.mark.parametrize(
    ("kernel_name", "a_format", "b_format"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8_e4m3", "fp8_e5m2"),
        ("mxfp8", "mxfp8_e4m3", "mxfp8_e4m3"),
        ("mxfp6", "mxfp8_e4m3", "mxfp6_e2m3"),
        ("mxfp6", "mxfp6_e3m2", "mxfp8_e4m3"),
        ("mxfp4", "mxfp4", "mxfp4"),
        ("nvfp4", "nvfp4", "nvfp4"),
    ],
)
@pytest.mark.parametrize("m", [1, 128, 4096])
def test_candidates_are_admitted_and_never_empty(kernel_name: str, a_format: str, b_format: str, m: int) -> None:
    kernel = kernel_named(f"blackwell_tcgen05_{kernel_name}")
    problem = GemmProblem(m, 4096, 4096, a_format, b_format)
    found = kernel.candidates(problem)
    assert len(set(found)) == len(found) > 0
    for config in found:
        kernel.check(problem, config)


def test_a_problem_without_a_candidate_says_why() -> None:
    with pytest.raises(UnsupportedError, match="pad k to 4112"):
        kernel_named("blackwell_tcgen05_fp8").candidates(GemmProblem(64, 64, 4100, "fp8_e4m3", "fp8_e4m3"))


def test_plan_fits_two_wide_accumulators_beside_the_scales() -> None:
    dense = plan("bf16", "bf16", Config(tile_n=256))
    assert (dense.stride, dense.lag, dense.drain_pieces) == (256, 2, 4)
    nvfp4 = plan("nvfp4", "bf16", Config(tile_n=256))
    assert (nvfp4.step_k, nvfp4.step_scales, nvfp4.stride, nvfp4.lag, nvfp4.drain_pieces) == (256, 16, 192, 1, 1)
    assert nvfp4.accumulator_columns + 3 * nvfp4.step_scales <= 512


def test_a_misspelt_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="ctas=4 is not one of"):
        Config(ctas=4)
