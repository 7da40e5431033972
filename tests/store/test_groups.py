"""Many products as the schema knows them: rows of each group, bytes, and that other cases stay as they were."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from narrowbench.store.groups import Groups
from narrowbench.store.rows import GemmCase, Row
from narrowgemm.problem import GemmProblem

_CASE: dict[str, Any] = {
    "kernel": "xla_dot_bf16",
    "suite": "moe",
    "m": 40,
    "n": 16,
    "k": 32,
    "a_format": "bf16",
    "b_format": "bf16",
    "out_format": "bf16",
    "distribution": "normal",
    "seed": 0,
    "mode": "burst",
    "cache": "rotated",
}


def case(m: int, kind: str, count: int, **changes: Any) -> GemmCase:
    return GemmCase.model_validate(_CASE | {"m": m, "groups": {"count": count, "kind": kind}} | changes)


@given(
    count=st.integers(1, 300),
    m=st.integers(1, 2000),
    seed=st.integers(-(2**63), 2**63 - 1),
    kind=st.sampled_from(["equal", "ragged"]),
)
def test_every_row_is_in_one_group(count: int, m: int, seed: int, kind: Any) -> None:
    groups = Groups(count=count, kind=kind)
    sizes = groups.sizes(m, seed)
    assert len(sizes) == count
    assert sum(sizes) == m
    assert min(sizes) >= 0
    assert groups.multiplied(m, seed) == np.count_nonzero(sizes)
    if kind == "equal":
        assert max(sizes) - min(sizes) <= 1


def test_ragged_sizes_are_those_of_the_seed_on_every_machine() -> None:
    ragged = Groups(count=32, kind="ragged")
    assert ragged.sizes(256, 0)[:12] == (3, 5, 11, 11, 15, 4, 6, 14, 2, 8, 4, 9)
    assert ragged.sizes(256, 1) != ragged.sizes(256, 0)
    assert Groups(count=8, kind="ragged").sizes(3, 0).count(0) >= 5


def test_popularities_vary_by_half_their_mean() -> None:
    """Many rows tell the popularities, of which a gamma variate of shape 4 has a deviation of half its mean."""
    sizes = np.array([Groups(count=32, kind="ragged").sizes(32_000, seed) for seed in range(40)])
    assert sizes.std() / sizes.mean() == pytest.approx(0.5, abs=0.05)


def test_a_batch_has_products_of_the_same_rows() -> None:
    assert case(40, "batched", 4).groups.sizes(40, 0) == (10, 10, 10, 10)  # type: ignore[union-attr]
    with pytest.raises(ValidationError, match="m=40 is not a multiple of 3"):
        case(40, "batched", 3)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean ragged"):
        case(40, "raged", 4)


@pytest.mark.parametrize("kind", ["batched", "equal", "ragged"])
def test_traffic_has_the_operand_of_each_group_with_rows_once(kind: str) -> None:
    found = case(40, kind, 20)
    multiplied = sum(size > 0 for size in found.groups.sizes(40, 0))  # type: ignore[union-attr]
    assert (multiplied < 20) == (kind == "ragged")
    assert found.least_bytes == 2 * (40 * 32 + multiplied * 16 * 32 + 40 * 16)
    assert found.problem.flop == 2 * 40 * 16 * 32


def test_a_case_of_one_product_is_written_and_named_as_before_there_were_groups(make_row: Callable[..., Row]) -> None:
    row = make_row()
    assert "groups" not in row.model_dump_json()
    assert row.key.endswith('"window_s":null,"repeat":null}')
    assert isinstance(row.case, GemmCase)
    assert row.case.least_bytes == GemmProblem(128, 128, 128, "f32", "f32", "f32").bytes
    old = Row.model_validate_json(row.model_dump_json().replace('"schema_version":"1.8"', '"schema_version":"1.6"'))
    assert old.key == row.key


def test_cases_with_groups_have_keys_of_their_own_and_are_read_again(make_row: Callable[..., Row]) -> None:
    row = make_row()
    cases = [row.case, *(case(40, kind, count) for kind in ("batched", "equal", "ragged") for count in (4, 8))]
    rows = [row.model_copy(update={"case": each}) for each in cases]
    assert len({each.key for each in rows}) == len(rows)
    for each in rows:
        assert Row.model_validate_json(each.model_dump_json()) == each
