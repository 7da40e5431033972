"""Right kernels pass, and every planted fault is found and told: before anything is timed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from narrowbench.measure import accuracy
from narrowbench.measure.accuracy import WrongResultError, check
from narrowbench.measure.epilogues import drawn
from narrowgemm.formats.quantize import QuantizedArray, dequantize
from narrowgemm.gemm.epilogue import Epilogue, apply
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

PROBLEM = GemmProblem(48, 40, 64, "bf16", "bf16", "f32")


def _dot(out_dtype: Any = jnp.float32) -> Callable[[QuantizedArray, QuantizedArray], jax.Array]:
    def launch(a: QuantizedArray, b: QuantizedArray) -> jax.Array:
        product = lax.dot_general(dequantize(a), dequantize(b), (((1,), (1,)), ((), ())), precision="highest")
        if jnp.dtype(out_dtype).itemsize == 1:
            largest = float(jnp.finfo(out_dtype).max)
            product = jnp.clip(product, -largest, largest)
        return product.astype(out_dtype)

    return launch


def _spoilt(spoil: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    return lambda a, b: spoil(_dot()(a, b))


@pytest.mark.parametrize(
    ("problem", "out_dtype", "format_error"),
    [
        (PROBLEM, jnp.float32, 0.0023),
        (GemmProblem(33, 24, 128, "fp8_e4m3", "fp8_e4m3", "bf16"), jnp.bfloat16, 0.036),
        (GemmProblem(16, 24, 64, "mxfp4", "mxfp8_e4m3", "bf16"), jnp.bfloat16, 0.14),
        (GemmProblem(16, 24, 64, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3"), jnp.float8_e4m3fn, 0.036),
    ],
)
def test_a_right_kernel_passes_with_both_errors(problem: GemmProblem, out_dtype: Any, format_error: float) -> None:
    found = check(_dot(out_dtype), problem, "normal", 0).accuracy
    assert found.kernel_error <= found.tolerance
    assert found.format_error == pytest.approx(format_error, rel=0.35)
    assert found.checked_rows == problem.m
    assert found.poisoned


@pytest.mark.parametrize("distribution", ["uniform", "heavy_tailed", "normal_outliers", "small_integers", "zeros"])
def test_a_right_kernel_passes_on_any_data(distribution: str) -> None:
    assert check(_dot(jnp.bfloat16), GemmProblem(48, 40, 256, "bf16", "bf16"), distribution, 1).accuracy.poisoned


def test_rows_are_compared_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check(_dot(), PROBLEM, "normal", 0).accuracy
    monkeypatch.setattr(accuracy, "_CHUNK_ELEMENTS", 7 * PROBLEM.n)
    parts = check(_dot(), PROBLEM, "normal", 0).accuracy
    assert parts.kernel_error == pytest.approx(whole.kernel_error)
    assert parts.kernel_error_max == pytest.approx(whole.kernel_error_max)
    wrong_at_the_end = _spoilt(lambda c: c.at[-1, -1].add(10.0))
    with pytest.raises(WrongResultError):
        check(wrong_at_the_end, PROBLEM, "normal", 0)


def test_a_result_that_is_wrong_throughout_is_told_by_its_error() -> None:
    with pytest.raises(WrongResultError, match=r"relative error 0.01 .* is above the tolerance"):
        check(_spoilt(lambda c: c * 1.01), PROBLEM, "normal", 0)


def test_one_wrong_element_is_found_though_the_whole_is_within_the_tolerance() -> None:
    problem = GemmProblem(512, 512, 64, "bf16", "bf16")

    def launch(a: QuantizedArray, b: QuantizedArray) -> jax.Array:
        return _dot(jnp.bfloat16)(a, b).at[200, 300].add(4.0)

    with pytest.raises(WrongResultError, match="some of C is wrong"):
        check(launch, problem, "normal", 0)


def test_nan_is_told_with_its_place() -> None:
    with pytest.raises(
        WrongResultError, match=r"2 of 1920 .* 2 came out NaN or infinite, the first at row 3, column 5"
    ):
        check(_spoilt(lambda c: c.at[3, 5:7].set(jnp.nan)), PROBLEM, "normal", 0)


def test_elements_that_were_left_unwritten_are_told_apart_from_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of JAX writes all of its output, so the runs over NaN and over zeros are made up here."""

    def forgets_a_row(self: accuracy._Poisoned, value: float) -> tuple[jax.Array, bool]:
        out = _dot()(*self._operands)
        return out.at[47].set(value), True

    monkeypatch.setattr(accuracy._Poisoned, "__call__", forgets_a_row)
    with pytest.raises(WrongResultError, match=r"40 of 1920 .* 40 were left unwritten, the first at row 47, column 0"):
        check(_dot(), PROBLEM, "normal", 0)


def test_the_poison_is_where_the_output_will_be() -> None:
    a = b = jnp.ones((8, 16))
    run = accuracy._Poisoned(lambda a, b: a @ b.T, GemmProblem(8, 8, 16, "f32", "f32", "f32"), a, b)
    out, is_poisoned = run(float("nan"))
    assert is_poisoned
    assert bool((out == 16).all())


@pytest.mark.parametrize("spoil", [lambda c: c.astype(jnp.bfloat16), lambda c: c[:-1]])
def test_another_dtype_or_shape_is_refused(spoil: Callable[[jax.Array], jax.Array]) -> None:
    with pytest.raises(WrongResultError, match=r"the result is (bfloat16\(48, 40\)|float32\(47, 40\)), not float32"):
        check(_spoilt(spoil), PROBLEM, "normal", 0)


def test_what_the_compiler_made_of_it_is_told() -> None:
    checked = check(_dot(), PROBLEM, "normal", 0)
    assert any("dot(" in call for call in checked.hlo.calls)
    assert checked.compile_s > 0


EPILOGUE_PROBLEM = GemmProblem(48, 32, 64, "bf16", "bf16", "f32")


@pytest.mark.parametrize("name", ["scales_bias_gelu", "rowscale_silu_residual", "relu", "columnscale"])
def test_a_right_epilogue_passes_with_the_error_of_its_product(name: str) -> None:
    given = drawn(name, EPILOGUE_PROBLEM, 0, "check", 0)
    assert given is not None
    assert given.name == name
    found = check(lambda a, b, e: apply(_dot()(a, b), e), EPILOGUE_PROBLEM, "normal", 0, epilogue=given).accuracy
    assert found.kernel_error <= found.tolerance < 1e-5
    assert found.poisoned


@pytest.mark.parametrize(
    "changes",
    [{"activation": "silu"}, {"bias": None}, {"row_scale": None}, {"column_scale": None}, {"activation": None}],
)
def test_a_part_of_an_epilogue_that_is_left_out_or_another_is_found(changes: dict[str, Any]) -> None:
    given = drawn("scales_bias_gelu", EPILOGUE_PROBLEM, 0, "check", 0)
    assert given is not None

    def launch(a: QuantizedArray, b: QuantizedArray, epilogue: Epilogue) -> jax.Array:
        return apply(_dot()(a, b), replace(epilogue, **changes))

    with pytest.raises(WrongResultError, match="is above the tolerance"):
        check(launch, EPILOGUE_PROBLEM, "normal", 0, epilogue=given)


def test_an_fp8_result_with_an_epilogue_is_held_to_its_own_rounding() -> None:
    problem = GemmProblem(48, 32, 64, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3")
    given = drawn("scales_bias_gelu_outscale", problem, 0, "check", 0)
    kernel = kernel_named("xla_dot_fp8_e4m3")
    assert kernel.matmul_epilogue is not None

    def launch(a: QuantizedArray, b: QuantizedArray, epilogue: Epilogue) -> jax.Array:
        assert kernel.matmul_epilogue is not None
        out: jax.Array = kernel.matmul_epilogue(a, b, None, "fp8_e4m3", epilogue)
        return out

    found = check(launch, problem, "normal", 0, epilogue=given).accuracy
    assert 0.01 < found.kernel_error < 0.03
