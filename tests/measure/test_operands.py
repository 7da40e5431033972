"""Distributions, seeds and formats of operands."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from narrowbench.measure import operands, orders
from narrowbench.measure.orders import in_order
from narrowbench.models.toggles import ORDERED
from narrowbench.names import Distribution
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


def test_blocks_that_may_end_early_take_any_k() -> None:
    problem = GemmProblem(5, 7, 40, "fp8_e4m3_1x128", "fp8_e4m3_128x128")
    a, b = operands.operand_shapes(problem)
    assert (a.scales.shape, b.scales.shape) == ((5, 1), (1, 1))


def test_a_block_that_does_not_divide_k_is_unsupported_and_a_misspelt_distribution_an_error() -> None:
    problem = GemmProblem(16, 16, 40, "mxfp8_e4m3", "mxfp8_e4m3")
    a, b = operands.originals(problem, "normal", 0, "timing", 0)
    with pytest.raises(UnsupportedError, match=r"k=40 is no multiple of the format's block of 32; pad k to 64"):
        operands.quantised(problem, a, b)
    with pytest.raises(ValueError, match="did you mean normal"):
        operands.originals(problem, "nromal", 0, "timing", 0)


def test_campaigns_can_name_exactly_these_distributions() -> None:
    assert set(get_args(Distribution)) == set(operands.NAMES)


@pytest.mark.parametrize("name", [name for name in operands.NAMES if name not in operands.DISTRIBUTIONS])
@pytest.mark.parametrize("formats", [("fp8_e4m3", "fp8_e4m3"), ("bf16", "fp6_e2m3")])
def test_ordered_data_are_the_same_values_and_what_an_order_may_change_of_the_product(
    name: str, formats: tuple[str, str]
) -> None:
    problem = GemmProblem(40, 56, 300, *formats)
    base, order = ORDERED[name].base, ORDERED[name].order
    a, b = (np.asarray(x, np.float64) for x in operands.originals(problem, base, 0, "timing", 0))
    x, y = (np.asarray(x, np.float64) for x in operands.originals(problem, name, 0, "timing", 0))
    for drawn, ordered in ((a, x), (b, y)):
        assert (np.sort(drawn, axis=None) == np.sort(ordered, axis=None)).all()
        assert (drawn != ordered).any()
    if order == "k":
        np.testing.assert_allclose(x @ y.T, a @ b.T, rtol=1e-9, atol=1e-9)
    elif order == "rows":
        rows, columns = _places(x, a), _places(y, b)
        assert sorted(rows) == list(range(40))
        assert sorted(columns) == list(range(56))
        assert x @ y.T == pytest.approx((a @ b.T)[np.ix_(rows, columns)], rel=1e-9, abs=1e-9)
    else:
        assert (np.sort(x, axis=1) == np.sort(a, axis=1)).all(), "each row keeps its values"


def _places(rows: np.ndarray, among: np.ndarray) -> list[int]:
    """Where each row stands among others, every one of them once, should some be alike."""
    left = list(range(len(among)))
    return [left.pop(next(i for i, place in enumerate(left) if (among[place] == row).all())) for row in rows]


def test_an_order_of_k_is_made_of_b_alone() -> None:
    a, b = operands.originals(PROBLEM, "normal", 0, "timing", 0)
    other, _ = operands.originals(PROBLEM, "normal", 1, "timing", 0)
    ordered, of_b = in_order(a, b, "k", 32)
    ordered_other, again = in_order(other, b, "k", 32)
    assert (of_b == again).all()
    columns = [
        int(np.flatnonzero((np.asarray(a) == column[:, None]).all(axis=0))[0]) for column in np.asarray(ordered).T
    ]
    assert (np.asarray(other)[:, columns] == np.asarray(ordered_other)).all()


def test_orders_toggle_fewer_bits_where_they_say_so() -> None:
    problem = GemmProblem(256, 256, 512, "fp8_e4m3", "fp8_e4m3")

    def along(name: str) -> np.ndarray:
        a, b = operands.toggles(problem, operands.operand_sets(problem, name, 0, 1)[0])
        return np.array([a.along_k, b.along_k, a.along_rows, b.along_rows])

    drawn, by_k, by_rows, by_value = map(along, ("text", "text_k_ordered", "text_rows_ordered", "normal_sorted"))
    assert by_k[1] < 0.95 * drawn[1]
    assert by_k[0] < drawn[0], "A gains from an order that B alone decides, for its columns are alike"
    assert (by_rows[2:] < 0.95 * drawn[2:]).all()
    np.testing.assert_allclose(by_rows[:2], drawn[:2], atol=0.1)
    assert (by_value < 0.75 * along("normal")).all()


def test_a_chain_goes_on_with_the_nearest_that_is_left_and_each_lane_through_a_stretch_of_it() -> None:
    vectors = jnp.asarray([[1.0], [-1.875], [1.0], [-1.875], [1.0], [-1.875]])
    assert orders._chain(vectors).tolist() == [0, 2, 4, 1, 3, 5]
    assert orders._in_lanes(jnp.arange(6), 2).tolist() == [0, 3, 1, 4, 2, 5]
    assert orders._in_lanes(jnp.arange(5), 2).tolist() == [0, 3, 1, 4, 2]


def test_more_rows_than_can_be_held_against_each_other_are_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "_MOST_CHAINED", 47)
    with pytest.raises(UnsupportedError, match="more than 47"):
        orders.in_order(jnp.ones((4, 8)), jnp.ones((48, 8)), "rows", 8)


def test_a_kernel_of_ordered_data_is_checked_on_them_as_drawn() -> None:
    assert operands.check_distribution("text_k_ordered") == "text"
    assert operands.check_distribution("normal_sorted") == "normal"
