"""The TPU kernels in TPU interpret mode, with race detection, and compiled where libtpu is installed."""

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from narrowgemm.aot import CompileCase, compile_many
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import dequantize, quantize
from narrowgemm.gemm import _mosaic_tpu, tpu_mxu_grouped
from narrowgemm.gemm._tpu_mxu import Config
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

SMALL = Config(64, 128, 128)


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("tpu_mxu_bf16", GemmProblem(100, 200, 384, "bf16", "bf16", "f32")),
        ("tpu_mxu_fp8", GemmProblem(64, 130, 256, "fp8_e4m3", "fp8_e5m2", "bf16")),
        ("tpu_mxu_int8", GemmProblem(100, 200, 384, "int8", "int8", "f32")),
        ("tpu_mxu_int8", GemmProblem(64, 130, 256, "int8", "int8", "bf16")),
    ],
)
def test_interpreted_product_is_exact_up_to_the_store(kernel: str, problem: GemmProblem) -> None:
    random = np.random.default_rng(0)
    a, b = (
        quantize(jnp.asarray(random.standard_normal((rows, problem.k)), jnp.float32), name)
        for rows, name in ((problem.m, problem.a_format), (problem.n, problem.b_format))
    )
    kernel_named(kernel).check(problem, SMALL)
    matmul = kernel_named(kernel).matmul
    out = jax.jit(lambda a, b: matmul(a, b, SMALL, problem.out_format, interpret=True))(a, b)
    exact = np.asarray(dequantize(a), np.float64) @ np.asarray(dequantize(b), np.float64).T
    step = 2.0**-8 if problem.out_format == "bf16" else 1e-6
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, rtol=1.01 * step, atol=2e-5)
    assert not _mosaic_tpu.races_found()


def test_int8_products_are_added_exactly_beyond_the_integers_of_fp32() -> None:
    random = np.random.default_rng(2)
    a, b = (random.integers(64, 128, (rows, 2048)).astype(np.int8) for rows in (40, 130))
    a[0], b[0] = -128, -128
    matmul = kernel_named("tpu_mxu_int8").matmul
    out = jax.jit(lambda a, b: matmul(a, b, SMALL, "f32", interpret=True))(a, b)
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    assert np.abs(exact).max() > 2**24
    np.testing.assert_array_equal(out, exact.astype(np.float32))
    assert not _mosaic_tpu.races_found()


def test_a_tensor_that_is_not_finite_makes_an_int8_product_nan() -> None:
    x = np.ones((32, 128), np.float32)
    a, b = quantize(x, "int8"), quantize(np.where(np.arange(128) == 3, np.inf, x), "int8")
    out = kernel_named("tpu_mxu_int8").matmul(a, b, SMALL, "f32", interpret=True)
    assert np.isnan(out).all()


def test_sums_that_may_leave_int32_are_refused() -> None:
    kernel = kernel_named("tpu_mxu_int8")
    kernel.check(GemmProblem(64, 64, 2**17 - 128, "int8", "int8"), Config(tile_k=128))
    too_long = GemmProblem(64, 64, 2**17, "int8", "int8")
    rule = "k=131072 is more than 131071 products, the most whose sum INT32 holds.*; split K"
    with pytest.raises(UnsupportedError, match=rule):
        kernel.check(too_long, Config())
    with pytest.raises(UnsupportedError, match=rule):
        kernel.candidates(too_long)
    with pytest.raises(UnsupportedError, match=r"tile_k=2048 is more than 1024 products.*; use tile_k=1024 or less"):
        kernel.check(GemmProblem(64, 64, 4096, "int8", "int8"), Config(tile_k=2048))
    fp8 = GemmProblem(64, 64, 2**17, "fp8_e4m3", "fp8_e4m3")
    kernel_named("tpu_mxu_fp8").check(fp8, Config(tile_k=2048))
    shapes: list[Any] = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((64, 2**17), (1, 128, 2**17))]
    with pytest.raises(UnsupportedError, match=rule):
        tpu_mxu_grouped.matmul(*shapes, jnp.ones(1, jnp.int32), SMALL, "f32")


@pytest.mark.parametrize(
    ("m", "sizes"),
    [
        pytest.param(300, (100, 0, 37, 163), id="tiles shared by groups, an empty group"),
        pytest.param(300, (10, 20, 0, 5), id="rows of no group"),
        pytest.param(128, (0, 0, 0, 0), id="no group has rows"),
        pytest.param(96, (1, 1, 1, 1), id="four groups in a tile"),
    ],
)
def test_each_group_of_rows_is_multiplied_by_its_own_operand(m: int, sizes: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    a = jnp.asarray(random.standard_normal((m, 256)), jnp.bfloat16)
    b = jnp.asarray(random.standard_normal((len(sizes), 72, 256)), jnp.bfloat16)
    matmul = jax.jit(lambda *operands: tpu_mxu_grouped.matmul(*operands, SMALL, "f32", interpret=True))
    out = matmul(a, b, jnp.asarray(sizes, jnp.int32))
    exact, start = np.zeros((m, 72)), 0
    for group, size in enumerate(sizes):
        rows = slice(start, start + size)
        exact[rows] = np.asarray(a, np.float64)[rows] @ np.asarray(b[group], np.float64).T
        start += size
    np.testing.assert_allclose(np.asarray(out), exact, rtol=1e-5, atol=2e-5)
    assert not _mosaic_tpu.races_found()


def test_groups_of_int8_rows_are_multiplied_exactly() -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((96, 256), (3, 72, 256)))
    matmul = jax.jit(lambda *operands: tpu_mxu_grouped.matmul(*operands, SMALL, "f32", interpret=True))
    out = matmul(a, b, jnp.asarray((50, 0, 46), jnp.int32))
    wide, of_group = a.astype(np.int64), b.astype(np.int64)
    exact = np.concatenate([wide[:50] @ of_group[0].T, wide[50:] @ of_group[2].T])
    assert np.abs(exact).max() <= 2**24
    np.testing.assert_array_equal(out, exact)
    assert not _mosaic_tpu.races_found()


def test_grouped_operands_that_do_not_fit_are_refused() -> None:
    operands: Any = jnp.zeros((64, 256)), jnp.zeros((2, 8, 128)), jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match=r"a \(64, 256\), b \(2, 8, 128\)"):
        tpu_mxu_grouped.matmul(*operands, SMALL, "f32")


@pytest.mark.parametrize(
    ("config", "k", "message"),
    [
        (Config(tile_n=200), 1024, "tile_n=200 is not a multiple of 128.*use tile_n=256"),
        (Config(tile_m=16), 1024, "tile_m=16 is not a multiple of 32"),
        (Config(tile_k=512), 1000, "is not a whole number of steps; pad k to 1024 and use tile_k=128"),
        (Config(4096, 4096, 1024), 1024, "bytes of VMEM, of 58720256; use smaller tiles"),
    ],
)
def test_what_cannot_be_done_is_refused_with_rule_and_remedy(config: Config, k: int, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        kernel_named("tpu_mxu_bf16").check(GemmProblem(64, 64, k, "bf16", "bf16"), config)


@pytest.mark.parametrize("m", [1, 300, 8192])
def test_candidates_are_admitted_and_fit_the_problem(m: int) -> None:
    kernel = kernel_named("tpu_mxu_fp8")
    problem = GemmProblem(m, 4096, 4096, "fp8_e4m3", "fp8_e4m3")
    found = kernel.candidates(problem)
    for config in found:
        kernel.check(problem, config)
    assert found[0].tile_m < 2 * max(m, 32)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `tpu` (libtpu)")
@pytest.mark.parametrize("target", ["tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x"])
def test_bundles_multiply_on_the_matrix_units(target: str) -> None:
    cases = [
        CompileCase(kernel, target, GemmProblem(500, 520, 1024, name, name), {"tile_k": 512})
        for kernel, name in (("tpu_mxu_bf16", "bf16"), ("tpu_mxu_fp8", "fp8_e4m3"), ("tpu_mxu_int8", "int8"))
    ]
    for outcome in compile_many(cases):
        assert outcome.code, outcome.reason
        assert sum(n for name, n in outcome.code.instructions.items() if name.startswith("vmatmul")) > 0
        assert outcome.code.count("dma.hbm_to_vmem") > 0
        assert outcome.code.instruction_count > 0
        if outcome.case.kernel == "tpu_mxu_int8":  # v7 has no multiply of INT8: BF16 holds its codes
            multiplies = [name for name in outcome.code.instructions if name.startswith("vmatmul")]
            element = ".bf16." if target == "tpu_v7x" else ".s8."
            assert all(element in name for name in multiplies)
