import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import narrowgemm
from narrowgemm.formats.spec import FORMATS
from narrowgemm.gemm import oracle
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

M, N, K = 6, 10, 96


def operands(name: str) -> tuple[narrowgemm.QuantizedArray, narrowgemm.QuantizedArray]:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(rows, K)).astype(np.float32) for rows in (M, N))
    return narrowgemm.quantize(a, name), narrowgemm.quantize(b, name)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_device_and_numpy_agree(name: str) -> None:
    a, b = operands(name)
    expected = oracle.exact(a, b)
    assert expected.shape == (M, N)
    np.testing.assert_allclose(oracle.exact_on_device(a, b), expected, rtol=1e-13, atol=1e-13)
    rows = np.array([4, 1])
    np.testing.assert_allclose(oracle.exact(a, b, rows), expected[rows], rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(oracle.exact_on_device(a, b, rows), expected[rows], rtol=1e-13, atol=1e-13)
    assert not jax.config.jax_enable_x64


def test_scales_below_fp32_are_not_lost_on_the_device() -> None:
    tiny = narrowgemm.quantize(np.full((2, 32), 2.0**-126, np.float32), "mxfp4")
    huge = narrowgemm.quantize(np.full((2, 32), 2.0**120, np.float32), "mxfp4")
    assert tiny.scales is not None
    assert float(np.asarray(tiny.scales).astype(np.float64)[0, 0]) == 2.0**-127
    np.testing.assert_array_equal(oracle.exact(tiny, huge), np.full((2, 2), 32 * 2.0**-6))
    np.testing.assert_array_equal(oracle.exact_on_device(tiny, huge), oracle.exact(tiny, huge))


def test_plain_arrays_are_their_own_values() -> None:
    a = jnp.asarray([[1.0, 2.0]], jnp.float8_e5m2)
    np.testing.assert_array_equal(oracle.exact(a, a), [[5.0]])


def test_errors_are_relative_to_the_exact_result() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 0.0]])
    out = np.array([[3.0, 4.5], [0.0, 0.0]], np.float32)
    assert oracle.errors(out, expected) == pytest.approx((0.1, 0.2))
    assert oracle.errors(expected.astype(np.float32), expected) == (0.0, 0.0)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_output_left_unwritten_cannot_pass(poison: float) -> None:
    expected = np.ones((2, 2))
    out = expected.astype(np.float32)
    out[1, 1] = poison
    assert oracle.errors(out, expected) == (math.inf, math.inf)


def test_nan_is_right_where_the_exact_result_is_nan() -> None:
    expected = np.array([[np.nan, 1.0, np.inf]])
    assert oracle.errors(expected.astype(np.float32), expected) == (0.0, 0.0)
    assert oracle.errors(np.ones((1, 3), np.float32), expected) == (math.inf, math.inf)


def test_zeros_must_stay_zeros() -> None:
    assert oracle.errors(np.zeros((2, 2), np.float32), np.zeros((2, 2))) == (0.0, 0.0)
    assert oracle.errors(np.full((2, 2), 1e-9, np.float32), np.zeros((2, 2))) == (math.inf, math.inf)


def test_an_fp8_output_is_compared_saturated() -> None:
    out = jnp.asarray([[448.0, -448.0]], jnp.float8_e4m3fn)
    assert oracle.errors(out, np.array([[1e6, -449.0]])) == (0.0, 0.0)


def test_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"out has shape \(2, 3\) and expected \(3, 2\)"):
        oracle.errors(np.zeros((2, 3), np.float32), np.zeros((3, 2)))


def test_coherence_tells_operands_of_one_sign_from_those_of_mean_zero() -> None:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(32, 1024)).astype(np.float32)
    assert oracle.coherence(np.abs(normal), np.abs(normal)) == 1.0
    assert oracle.coherence(normal, rng.normal(size=(32, 1024)).astype(np.float32)) == pytest.approx(1 / 32, rel=0.1)
    assert oracle.coherence(np.zeros_like(normal), normal) == 0.0


def test_the_tolerance_follows_output_and_accumulator(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = oracle.tolerance(GemmProblem(64, 64, 8192, "bf16", "bf16", "bf16"))
    assert bf16 == pytest.approx(2.0**-8, rel=0.01)
    fp8 = GemmProblem(64, 64, 8192, "fp8_e4m3", "fp8_e4m3", "f32")
    assert oracle.tolerance(fp8) < 2e-5
    h200 = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(oracle, "default_device", lambda: h200)
    assert 1.1e-3 < oracle.tolerance(fp8) < 1.2e-2
    assert oracle.tolerance(fp8, 1.0) > 0.1
    assert oracle.tolerance(GemmProblem(64, 64, 8192, "bf16", "bf16", "f32")) < 2e-5


def test_int8_is_allowed_nothing_but_its_last_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(oracle, "default_device", lambda: h200)
    for k in (128, 65536):
        limit = oracle.tolerance(GemmProblem(64, 64, k, "int8", "int8", "f32"), 1.0)
        assert 2.0**-24 < limit <= 4 * 2.0**-24


def hopper_fp8_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·Bᵀ as Hopper's FP8 tensor cores add: 32 products and the accumulator aligned, cut to 13 bits, and summed."""
    c = np.zeros((a.shape[0], b.shape[0]))
    for k in range(0, a.shape[1], 32):
        terms = np.concatenate([a[:, None, k : k + 32] * b[None, :, k : k + 32], c[..., None]], axis=-1)
        unit = 2.0 ** (np.frexp(np.abs(terms).max(axis=-1, keepdims=True))[1] - 14)
        c = (np.trunc(terms / unit) * unit).sum(axis=-1)
    return c


@pytest.mark.parametrize("one_sign", [False, True])
def test_the_tolerance_covers_a_model_of_hoppers_accumulator(one_sign: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(oracle, "default_device", lambda: h200)
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0 if one_sign else -1, 1, (16, 2048)) for _ in range(2))
    a, b = (jnp.asarray(x, jnp.float8_e4m3fn) for x in (a, b))
    expected = oracle.exact(a, b)
    error = oracle.errors(hopper_fp8_product(np.asarray(a, np.float64), np.asarray(b, np.float64)), expected)[0]
    limit = oracle.tolerance(GemmProblem(16, 16, 2048, "fp8_e4m3", "fp8_e4m3", "f32"), oracle.coherence(a, b))
    assert limit / 20 < error < limit


def test_blocks_of_128_end_the_tensor_cores_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of Hopper's accumulator a block at a time: within a tolerance that does not grow with K."""
    h200 = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(oracle, "default_device", lambda: h200)
    rng = np.random.default_rng(0)
    formats = ("fp8_e4m3_1x128", "fp8_e4m3_128x128")
    values = (rng.normal(size=(16, 4096)) * 2.0 ** rng.integers(-3, 4, (16, 4096)) for _ in range(2))
    a, b = (narrowgemm.quantize(x.astype(np.float32), name) for x, name in zip(values, formats, strict=True))
    left, right = (np.asarray(x.codes).astype(np.float64) for x in (a, b))
    total = np.zeros((16, 16), np.float32)
    for block in range(32):
        k = slice(128 * block, 128 * block + 128)
        factor = np.asarray(a.scales)[:, block, None] * np.asarray(b.scales)[0, block]
        total += factor * hopper_fp8_product(left[:, k], right[:, k]).astype(np.float32)
    error = oracle.errors(total, oracle.exact(a, b))[0]
    limit = oracle.tolerance(GemmProblem(16, 16, 4096, *formats, "f32"), oracle.coherence(a, b))
    assert limit / 20 < error < limit
    at_once = oracle.tolerance(GemmProblem(16, 16, 4096, "fp8_e4m3", "fp8_e4m3", "f32"))
    assert limit < at_once / 4
    long = oracle.tolerance(GemmProblem(16, 16, 65536, *formats, "f32"))
    assert limit < long < 1.01 * limit


@pytest.mark.parametrize("name", ["xla_dot_f32", "xla_dot_bf16", "xla_dot_fp8_e4m3"])
@pytest.mark.parametrize("out", ["f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2"])
def test_the_baselines_are_within_tolerance_and_a_missing_slice_of_k_is_not(name: str, out: str) -> None:
    kernel = kernel_named(name)
    a, b = operands(kernel.a_formats[0])
    problem = GemmProblem(M, N, K, a.format, b.format, out)
    expected = oracle.exact(a, b)
    limit = oracle.tolerance(problem, oracle.coherence(a, b))
    for config in kernel.candidates(problem):
        assert oracle.errors(kernel.matmul(a, b, config, out), expected)[0] <= limit
    cut = np.asarray(narrowgemm.dequantize(a)).copy()
    cut[:, -8:] = 0
    wrong = kernel.matmul(narrowgemm.quantize(cut, a.format), b, kernel.candidates(problem)[0], out)
    assert oracle.errors(wrong, expected)[0] > limit
