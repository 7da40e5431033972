"""Batches and groups of rows: Hopper's kernels interpreted, with races, and compiled; XLA's; what is refused."""

from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gemm.operands import drawn

import narrowgemm
from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats import reference
from narrowgemm.formats.quantize import as_quantized
from narrowgemm.formats.stack import as_stack, dequantized
from narrowgemm.gemm import _hopper_many, _mosaic_gpu, oracle
from narrowgemm.gemm._hopper_space import Config
from narrowgemm.gemm.registry import kernel_named, kernels_of_many, products_of
from narrowgemm.problem import GemmProblem

SMALL = Config(tile_m=128, tile_n=128, stages=2)
FP8, BF16 = "hopper_wgmma_fp8", "hopper_wgmma_bf16"


def operand(fmt: str, *shape: int) -> Any:
    return drawn(fmt, *shape, seed=sum(shape))


def exact_groups(a: Any, b: Any, sizes: Any) -> np.ndarray:
    """The product of each group in float64, zeros beyond the last."""
    rows, weights = reference.dequantize(as_quantized(a)), dequantized(as_stack("b", b))
    exact, start = np.zeros((rows.shape[0], weights.shape[1])), 0
    for group, size in enumerate(np.asarray(sizes)):
        exact[start : start + size] = rows[start : start + size] @ weights[group].T
        start += int(size)
    return exact


def assert_close(got: Any, exact: np.ndarray, problem: GemmProblem) -> None:
    """As the oracle holds a single product, each group of rows on its own where there are any."""
    error, largest = oracle.errors(np.asarray(got), exact)
    assert got.shape == exact.shape
    assert error <= oracle.tolerance(problem)
    assert largest < 1.0


@pytest.mark.parametrize(
    ("kernel", "shape", "fmt", "config"),
    [
        (FP8, (3, 70, 144, 272), "fp8_e4m3", SMALL),
        (FP8, (2, 130, 96, 144), "fp8_e5m2", replace(SMALL, split=None, cluster_n=2, tile_m=64, tile_n=64)),
        (BF16, (3, 70, 136, 72), "bf16", replace(SMALL, tile_m=64, split="n")),
    ],
)
def test_every_product_of_a_batch_has_its_operands_and_scales(
    kernel: str, shape: tuple[int, int, int, int], fmt: str, config: Config
) -> None:
    count, m, n, k = shape
    a, b = operand(fmt, count, m, k), operand(fmt, count, n, k)
    problem = GemmProblem(m, n, k, fmt, fmt)
    batched = products_of(kernel, "batched")
    assert batched is not None
    batched.check(problem, count, config)
    run = lambda a, b: batched.matmul(as_stack("a", a), as_stack("b", b), config, "bf16", interpret=True)  # noqa: E731
    got = jax.jit(run)(a, b)
    exact = np.einsum("gmk,gnk->gmn", dequantized(as_stack("a", a)), dequantized(as_stack("b", b)))
    assert not _mosaic_gpu.races_found()
    for product, expected in zip(got, exact, strict=True):
        assert_close(product, expected, problem)


def interpreted(kernel: str, config: Config, out_format: str = "bf16") -> Any:
    grouped = products_of(kernel, "grouped")
    assert grouped is not None

    def run(a: Any, b: Any, sizes: Any) -> Any:
        return grouped.matmul(as_quantized(a), as_stack("b", b), sizes, config, out_format, interpret=True)

    return jax.jit(run)


@pytest.mark.parametrize(
    ("m", "sizes", "kernel", "config", "out_format"),
    [
        pytest.param(300, (131, 0, 37, 132), FP8, SMALL, "bf16", id="two consumers, empty group"),
        pytest.param(200, (10, 20, 0, 5), FP8, replace(SMALL, split=None), "bf16", id="in turn, rows of no group"),
        pytest.param(130, (0, 0, 0), FP8, SMALL, "f32", id="no group has rows"),
        pytest.param(96, (1, 1, 2, 1, 63), FP8, replace(SMALL, tile_m=64, split="n"), "bf16", id="split along n"),
        pytest.param(260, (65, 129), FP8, replace(SMALL, tile_m=64, split="n", cluster_m=2), "bf16", id="share B"),
        pytest.param(150, (70, 80), BF16, replace(SMALL, cluster_n=2), "bf16", id="share A"),
        pytest.param(64, (0,) * 270 + (9, 0, 30), FP8, SMALL, "bf16", id="sizes in two copies"),
        # An odd number of staged stores a tile, whose last part overlaps the one before.
        pytest.param(200, (3, 150), BF16, replace(SMALL, tile_n=168), "bf16", id="odd stores"),
    ],
)
def test_each_group_of_rows_is_multiplied_by_its_own_operand_without_races(
    m: int, sizes: tuple[int, ...], kernel: str, config: Config, out_format: str
) -> None:
    fmt, n, k = ("fp8_e4m3" if kernel == FP8 else "bf16"), 200, 144
    a, b = operand(fmt, m, k), operand(fmt, len(sizes), n, k)
    problem = GemmProblem(m, n, k, fmt, fmt, out_format)
    grouped = products_of(kernel, "grouped")
    assert grouped is not None
    grouped.check(problem, len(sizes), config)
    got = interpreted(kernel, config, out_format)(a, b, jnp.asarray(sizes, jnp.int32))
    assert not _mosaic_gpu.races_found()
    rows = sum(sizes)
    np.testing.assert_array_equal(np.asarray(got[rows:], np.float32), 0)
    if rows:
        assert_close(got[:rows], exact_groups(a, b, sizes)[:rows], problem)


_RANDOM_M, _RANDOM_GROUPS = 150, 4
_random_run = interpreted(BF16, replace(SMALL, tile_m=64, tile_n=64, stages=3, split=None))


@given(cuts=st.lists(st.integers(0, _RANDOM_M), min_size=_RANDOM_GROUPS, max_size=_RANDOM_GROUPS))
@settings(max_examples=8)
def test_sizes_are_data_and_may_be_any_that_fit(cuts: list[int]) -> None:
    """One program for all of them; the groups lie between sorted cuts, the rows beyond the last belong to none."""
    sizes = np.diff([0, *sorted(cuts)])
    a, b = operand("bf16", _RANDOM_M, 64), operand("bf16", _RANDOM_GROUPS, 72, 64)
    got = np.asarray(_random_run(a, b, jnp.asarray(sizes, jnp.int32)), np.float64)
    np.testing.assert_allclose(got, exact_groups(a, b, sizes), rtol=2.0**-8, atol=1e-4)
    assert not _mosaic_gpu.races_found()


def test_machine_code_of_many_products_does_not_spill() -> None:
    problem = GemmProblem(4096, 4096, 7168, "fp8_e4m3", "fp8_e4m3")
    bf16 = GemmProblem(4096, 4096, 7168, "bf16", "bf16")
    cases = [
        aot.CompileCase(FP8, "h200", problem, asdict(Config(128, 256, 4, "m")), products="batched", count=8),
        aot.CompileCase(FP8, "h200", problem, None, products="grouped", count=256),
        aot.CompileCase(
            FP8, "h200", problem, asdict(Config(64, 256, 4, "n", cluster_n=2)), products="grouped", count=9
        ),
        aot.CompileCase(BF16, "h200", bf16, asdict(Config(128, 168, 4, "m")), products="grouped", count=300),
    ]
    for case, outcome in zip(cases, aot.compile_many(cases), strict=True):
        assert outcome.code is not None, outcome.reason
        assert outcome.code.spill_bytes == 0
        assert outcome.code.shared_memory_bytes is not None
        assert outcome.code.shared_memory_bytes <= _mosaic_gpu.SHARED_MEMORY_BYTES
        # Groups: a copy of 64 rows and one of each smaller power of two.
        assert outcome.code.count("UTMASTG") >= (4 if case.products == "batched" else 7)


@pytest.mark.parametrize("kernel", kernels_of_many("grouped"))
@pytest.mark.parametrize(("m", "count"), [(1, 8), (256, 256), (4096, 256), (32768, 8)])
def test_candidates_of_many_products_are_admitted(kernel: str, m: int, count: int) -> None:
    chosen = kernel_named(kernel)
    for products in filter(None, (products_of(kernel, "batched"), products_of(kernel, "grouped"))):
        problem = GemmProblem(m, 4096, 7168, chosen.a_formats[0], chosen.b_formats[0], "bf16")
        candidates = products.candidates(problem, count)
        assert candidates
        for config in candidates:
            products.check(problem, count, config)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile_m"),
    [(256, 4096, 7168, 64), (2048, 4096, 7168, 64), (8192, 4096, 7168, 128), (32768, 7168, 2048, 128)],
)
def test_first_guesses_for_groups_are_those_that_were_quickest(m: int, n: int, k: int, tile_m: int) -> None:
    """On an H200, 32 ragged groups: 64 rows a tile for few of them, and nowhere a cluster from 64 rows a group on."""
    grouped = products_of(FP8, "grouped")
    assert grouped is not None
    first = grouped.candidates(GemmProblem(m, n, k, "fp8_e4m3", "fp8_e4m3"), 32)[0]
    assert (first.tile_m, first.tile_n, first.cluster_m, first.cluster_n) == (tile_m, 256, 1, 1)


@pytest.mark.parametrize(("mean", "rows"), [(8, 64), (64, 64), (64, 128), (256, 64), (256, 128), (300, 256)])
def test_a_groups_tiles_are_those_of_sizes_that_spread_by_half_their_mean(mean: int, rows: int) -> None:
    sizes = np.random.default_rng(0).gamma(4, mean / 4, 200_000)
    assert _hopper_many._tiles_of_group(mean, rows) == pytest.approx(np.ceil(sizes / rows).mean(), rel=0.01)


@pytest.mark.parametrize("fmt", ["f32", "bf16", "fp8_e4m3"])
def test_xla_multiplies_batches_and_groups(fmt: str) -> None:
    kernel = f"xla_dot_{fmt}"
    make = (
        (lambda *shape: operand("bf16", *shape).astype(jnp.float32))
        if fmt == "f32"
        else (lambda *shape: operand(fmt, *shape))
    )
    a, b, sizes = make(3, 20, 64), make(3, 24, 64), jnp.asarray((5, 0, 12), jnp.int32)
    problem = GemmProblem(20, 24, 64, fmt, fmt)
    got = narrowgemm.gemm(a, b, kernel=kernel)
    exact = np.einsum("gmk,gnk->gmn", dequantized(as_stack("a", a)), dequantized(as_stack("b", b)))
    for product, expected in zip(got, exact, strict=True):
        assert_close(product, expected, problem)
    rows = make(20, 64)
    grouped = narrowgemm.gemm_grouped(rows, b, sizes, kernel=kernel)
    np.testing.assert_array_equal(np.asarray(grouped[17:], np.float32), 0)
    assert_close(grouped[:17], exact_groups(rows, b, sizes)[:17], problem)
    again = jax.jit(lambda a, b, s: narrowgemm.gemm_grouped(a, b, s, kernel=kernel))(rows, b, sizes)
    np.testing.assert_array_equal(np.asarray(again, np.float32), np.asarray(grouped, np.float32))


@pytest.mark.parametrize(
    ("arch", "fmt", "kernel"),
    [
        ("hopper", "fp8_e4m3", FP8),
        ("hopper", "bf16", BF16),
        ("tpu", "bf16", "tpu_mxu_bf16"),
        ("tpu", "int8", "tpu_mxu_int8"),
    ],
)
def test_a_devices_own_kernel_does_its_groups(
    arch: str, fmt: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrowgemm.gemm.api, "arch_of", lambda _: arch)
    problem = GemmProblem(4, 64, 128, fmt, fmt)
    assert narrowgemm.gemm.api._default_kernel(problem, many="grouped").name == kernel


def test_what_does_not_fit_is_refused() -> None:
    a, b, sizes = jnp.ones((8, 64)), jnp.ones((2, 16, 64)), jnp.ones(2, jnp.int32)
    with pytest.raises(ValueError, match="their K, the last axis, differ"):
        narrowgemm.gemm_grouped(a[:, :32], b, sizes)
    with pytest.raises(ValueError, match=r"sizes is int32\(3,\), not int32\(2,\)"):
        narrowgemm.gemm_grouped(a, b, jnp.ones(3, jnp.int32))
    with pytest.raises(ValueError, match="not an array of three axes"):
        narrowgemm.gemm_grouped(a, b[0], sizes)
    with pytest.raises(ValueError, match=r"a is .*not an array of three axes"):
        narrowgemm.gemm(a, b)
    with pytest.raises(ValueError, match="first or their last axes differ"):
        narrowgemm.gemm(jnp.ones((3, 8, 64)), b)
    with pytest.raises(UnsupportedError, match="apply it to the result"):
        narrowgemm.gemm(b, b, epilogue=narrowgemm.Epilogue(activation="relu"))
    with pytest.raises(UnsupportedError, match="is not what it does in one launch"):
        narrowgemm.gemm_grouped(
            jnp.ones((8, 64)).astype(jnp.float8_e4m3fn),
            b.astype(jnp.float8_e4m3fn),
            sizes,
            kernel="xla_scaled_dot_mxfp8",
        )


def test_stores_too_narrow_to_be_cut_by_rows_are_refused() -> None:
    grouped = products_of(FP8, "grouped")
    assert grouped is not None
    problem = GemmProblem(64, 64, 128, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3")
    narrow = Config(64, 64, 4, "n")
    kernel_named(FP8).check(problem, narrow)
    with pytest.raises(UnsupportedError, match="stores rows of 32 bytes"):
        grouped.check(problem, 2, narrow)
    with pytest.raises(UnsupportedError, match=r"needs .* bytes of shared memory"):
        grouped.check(replace(problem, out_format="bf16"), 4096, Config(128, 256, 4, "m"))


def test_sizes_that_do_not_fit_are_refused_where_they_can_be_seen():
    a, b = operand("bf16", 16, 32), operand("bf16", 2, 8, 32)
    run = lambda sizes: narrowgemm.gemm_grouped(a, b, sizes, kernel="xla_dot_bf16")  # noqa: E731 (what is tried)
    for sizes in ([9, 7], None, 3):
        with pytest.raises(ValueError, match=rf"sizes is a {type(sizes).__name__}, not int32\(2,\); pass an array"):
            run(sizes)
    for sizes in (np.array([9, -1], np.int32), np.array([9, 8], np.int32), np.array([2**31 - 1] * 2, np.int32)):
        with pytest.raises(ValueError, match=r"in all, where none may be negative and a has 16 rows"):
            run(sizes)
    seen, unseen = run(np.array([9, 7], np.int32)), run(jnp.array([9, 7], jnp.int32))
    np.testing.assert_array_equal(np.asarray(seen, np.float32), np.asarray(unseen, np.float32))


def test_a_stack_is_no_operand_of_one_product():
    stack = operand("fp8_e4m3", 3, 16, 32)
    sizes = jnp.array([4, 4, 4], jnp.int32)
    with pytest.raises(ValueError, match=r"a does not hold what it says: .*\(3, 16, 32\), not \(16, 32\)"):
        narrowgemm.gemm_grouped(stack, stack, sizes, kernel="xla_dot_fp8_e4m3")
    with pytest.raises(ValueError, match=r"a stack goes through jax\.vmap"):
        narrowgemm.gemm_quantized(stack, stack, "mxfp8_e4m3")
    twice = jax.tree.map(lambda leaf: leaf[None], stack)
    with pytest.raises(ValueError, match="a does not hold what it says"):
        narrowgemm.gemm(twice, twice, kernel="xla_dot_fp8_e4m3")
    cut = jax.tree.map(lambda leaf: leaf[:8] if leaf.ndim else leaf, operand("fp8_e4m3", 16, 32))
    with pytest.raises(ValueError, match=r"b does not hold what it says: .*\(8, 32\), not \(16, 32\)"):
        narrowgemm.gemm(operand("fp8_e4m3", 16, 32), cut, kernel="xla_dot_fp8_e4m3")


@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "fp4_e2m1", "fp8_e4m3_1x128", "nvfp4"])
def test_stacks_with_block_scales_or_packed_codes_are_unsupported(fmt):
    stack = operand(fmt, 2, 16, 128)
    with pytest.raises(UnsupportedError, match=f"a={fmt} is no format of a stack.*use one of .*fp8_e4m3"):
        narrowgemm.gemm(stack, stack)
