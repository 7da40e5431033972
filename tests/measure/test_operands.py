"""Distributions, seeds and formats of operands."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from narrowbench.config import Distribution
from narrowbench.measure import operands
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import dequantize
from narrowgemm.problem import GemmProblem

PROBLEM = GemmProblem(64, 48, 128, "fp8_e4m3", "fp8_e4m3")


def _values(distribution: str) -> np.ndarray:
    """Enough values to tell distributions apart; one shape for all, because each compiles on its own."""
    a, b = operands.originals(GemmProblem(400, 400, 500, "f32", "f32"), distribution, 0, "timing", 0)
    assert (a != b).any() or distribution in ("zeros", "ones")
    assert a.dtype == jnp.float32
    values = np.asarray(a)
    assert values.shape == (400, 500)
    assert np.isfinite(values).all()
    return values


def test_distributions_are_what_they_are_called() -> None:
    assert np.abs(_values("normal").mean()) < 0.01
    assert _values("normal").std() == pytest.approx(1, abs=0.01)
    uniform = _values("uniform")
    assert 0 <= uniform.min() < 0.001
    assert 0.999 < uniform.max() < 1
    assert set(np.unique(_values("small_integers"))) == set(range(-4, 5))
    assert not _values("zeros").any()
    assert (_values("ones") == 1).all()
    outliers = np.abs(_values("normal_outliers")) > 8
    assert 0.0003 < outliers.mean() < 0.0012
    tailed = np.abs(_values("heavy_tailed"))
    assert (tailed > 10).mean() == pytest.approx(0.00213, rel=0.3), "two-sided tail of Student's t, 3 degrees"
    assert np.mean(_values("text") ** 2) == pytest.approx(1, abs=0.1)


def test_every_seed_purpose_and_number_gives_other_values() -> None:
    draws = [
        operands.originals(PROBLEM, "normal", seed, purpose, number)[0]
        for seed in (0, 1)
        for purpose in ("timing", "check")
        for number in (0, 1)
    ]
    a, b = operands.originals(GemmProblem(8, 8, 8, "f32", "f32"), "normal", 0, "timing", 0)
    assert not (a == b).any()
    assert len({float(draw[0, 0]) for draw in draws}) == len(draws)
    again = operands.originals(PROBLEM, "normal", 0, "timing", 0)[0]
    assert (again == draws[0]).all()


@pytest.mark.parametrize("format_name", ["fp8_e4m3", "fp6_e2m3", "fp4_e2m1"])
def test_small_integers_are_exact_in_narrow_formats(format_name: str) -> None:
    problem = GemmProblem(16, 16, 64, format_name, format_name)
    a, b = operands.originals(problem, "small_integers", 0, "check", 0)
    qa, _ = operands.quantised(problem, a, b)
    relative = np.asarray(dequantize(qa)) - np.asarray(a)
    assert qa.format == format_name
    if format_name != "fp4_e2m1":
        assert np.abs(relative).max() <= 0.07 * 4


def test_sets_are_quantised_and_differ() -> None:
    first, second = operands.operand_sets(PROBLEM, "normal", 3, 2)
    assert first[0].format == "fp8_e4m3"
    assert (np.asarray(first[0].codes) != np.asarray(second[0].codes)).any()


def test_constant_data_are_not_what_a_kernel_is_checked_on() -> None:
    assert operands.check_distribution("zeros") == "normal"
    assert operands.check_distribution("ones") == "normal"
    assert operands.check_distribution("heavy_tailed") == "heavy_tailed"


def test_a_block_that_does_not_divide_k_is_unsupported_and_a_misspelt_distribution_an_error() -> None:
    problem = GemmProblem(16, 16, 40, "mxfp8_e4m3", "mxfp8_e4m3")
    a, b = operands.originals(problem, "normal", 0, "timing", 0)
    with pytest.raises(UnsupportedError, match=r"k=40 is no multiple of the format's block of 32; pad k to 64"):
        operands.quantised(problem, a, b)
    with pytest.raises(ValueError, match="did you mean normal"):
        operands.originals(problem, "nromal", 0, "timing", 0)


def test_campaigns_can_name_exactly_these_distributions() -> None:
    assert set(get_args(Distribution)) == set(operands.DISTRIBUTIONS)
