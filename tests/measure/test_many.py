"""Batches and groups as cases: right ones pass, planted faults in any group are found, and jobs give rows of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from narrowbench.config import Campaign, Protocol, load_suite
from narrowbench.errors import ConfigError
from narrowbench.measure import many, runner, turns
from narrowbench.measure.accuracy import WrongResultError, check_on
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.named import kernel_sha256, names
from narrowbench.measure.tuning import tuning_cases
from narrowbench.store import jsonl
from narrowbench.store.groups import Groups
from narrowbench.store.rows import GemmCase, Row
from narrowgemm.gemm.api import chosen_products
from narrowgemm.gemm.registry import kernel_names, products_of
from narrowgemm.problem import GemmProblem

PROBLEM = GemmProblem(44, 24, 64, "bf16", "bf16", "f32")
KINDS: tuple[Any, ...] = ("batched", "equal", "ragged")


def _launch(kind: Any, problem: GemmProblem = PROBLEM) -> Callable[..., jax.Array]:
    groups = Groups(count=4, kind=kind)
    products, config = chosen_products(groups.many, problem, 4, f"xla_dot_{problem.a_format}")
    return many._launch_of(products, config, problem)


def _check(launch: Callable[..., Any], kind: Any, problem: GemmProblem = PROBLEM, distribution: str = "normal") -> Any:
    drawn = many.drawn_groups(problem, Groups(count=4, kind=kind), distribution, 0)
    return check_on(launch, problem, drawn, drawn.operands)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ["bf16", "fp8_e4m3"])
@pytest.mark.parametrize("distribution", ["normal", "zeros"])
def test_right_products_pass_with_both_errors_on_every_row(kind: Any, fmt: str, distribution: str) -> None:
    problem = replace(PROBLEM, a_format=fmt, b_format=fmt)
    found = _check(_launch(kind, problem), kind, problem, distribution).accuracy
    assert found.kernel_error <= found.tolerance
    assert found.format_error == pytest.approx({"bf16": 0.0023, "fp8_e4m3": 0.036}[fmt], rel=0.35)
    assert found.checked_rows == problem.m
    assert found.poisoned


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [0, 20, PROBLEM.m - 1])
def test_one_wrong_element_of_any_group_is_found(kind: Any, row: int) -> None:
    right = _launch(kind)
    with pytest.raises(WrongResultError):
        _check(lambda *operands: right(*operands).at[row, -1].add(100.0), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_take_each_others_operand_are_found(kind: Any) -> None:
    right = _launch(kind)

    def swapped(a: Any, b: Any, *sizes: Any) -> jax.Array:
        return right(a, jax.tree.map(lambda leaf: leaf[jnp.array([0, 1, 3, 2])], b), *sizes)

    with pytest.raises(WrongResultError, match="relative error"):
        _check(swapped, kind)


def test_a_group_that_ends_a_row_late_is_found() -> None:
    right = _launch("ragged")
    with pytest.raises(WrongResultError):
        _check(lambda a, b, sizes: right(a, b, sizes.at[1].add(1).at[2].add(-1)), "ragged")


def test_rows_that_were_left_unwritten_are_told() -> None:
    right = _launch("equal")
    with pytest.raises(WrongResultError, match="24 came out NaN"):
        _check(lambda *operands: right(*operands).at[7].set(jnp.nan), "equal")


def test_groups_are_compared_in_parts_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _check(_launch("ragged"), "ragged").accuracy
    monkeypatch.setattr(many, "_MOST_COMPARED", 3)
    parts = _check(_launch("ragged"), "ragged").accuracy
    assert parts.kernel_error == pytest.approx(whole.kernel_error)
    assert parts.kernel_error_max == pytest.approx(whole.kernel_error_max)


@pytest.fixture
def run(cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path) -> Callable[..., runner.JobReport]:
    def once(kernel: str = "xla_dot_f32", **changes: Any) -> runner.JobReport:
        entry = {"kernels": [kernel], "suites": ["smoke_groups"], "modes": ["burst"], "out_formats": ["f32"]} | changes
        planned = Campaign.model_validate(campaign.model_dump() | {"plan": {"cpu": [entry]}})
        return runner.run_job(cpu, kernel, "smoke_groups", planned, protocol, tmp_path / "rows.jsonl")

    return once


def _rows(tmp_path: Path) -> list[Row]:
    return jsonl.read([tmp_path / "rows.jsonl"])


def test_a_job_measures_batches_and_groups_once(run: Callable[..., runner.JobReport], tmp_path: Path) -> None:
    assert run().done == {"ok": 2}
    assert run() == runner.JobReport({}, 2, ())
    for row, shape in zip(_rows(tmp_path), load_suite("smoke_groups").shapes, strict=True):
        assert isinstance(row.case, GemmCase)
        assert row.case.groups == shape.groups
        assert row.timing is not None
        assert row.timing.rotation_bytes == row.timing.rotation_sets * 4 * 64 * (shape.m + 4 * 64)
        assert row.accuracy is not None
        assert row.accuracy.poisoned
        assert row.compile is not None
        assert row.compile.hlo_calls
        assert row.provenance.kernel_sha256 == kernel_sha256("xla_dot_f32", row.case.many)


@pytest.mark.parametrize(
    ("kernel", "changes", "reason"),
    [
        ("xla_scaled_dot_mxfp8", {}, "is not what it does in one launch; use one of"),
        ("cublaslt_bf16", {}, "is not what it does in one launch; use one of"),
        ("xla_dot_f32", {"epilogues": ["bias"]}, "is nothing that many products in one launch have"),
        ("xla_dot_f32", {"distributions": ["normal_k_ordered"]}, "is an order of one product's operands"),
        ("hopper_wgmma_fp8", {}, "hopper"),
    ],
)
def test_what_cannot_be_done_is_a_row_with_the_reason(
    kernel: str, changes: Any, reason: str, run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    assert run(kernel, **changes).done == {"unsupported": 2}
    assert all(reason in (row.reason or "") for row in _rows(tmp_path))


def test_kernels_take_turns_on_groups(cpu: LocalDevice, protocol: Protocol, tmp_path: Path) -> None:
    out, kernels = tmp_path / "rows.jsonl", ("xla_dot_f32", "xla_dot_bf16")
    shape = runner.shape_given((64, 64, 64), Groups(count=4, kind="ragged"))
    runner.run_compare(cpu, kernels, [shape], ("burst",), protocol, out, "f32")
    (line,) = turns.ratios(_rows(tmp_path), kernels, shape)
    assert line.startswith("burst: time of xla_dot_bf16 over xla_dot_f32: ")
    assert list(turns.ratios(_rows(tmp_path), kernels, runner.shape_given((64, 64, 64)))) == []
    with pytest.raises(ConfigError, match="m=64 is not a multiple of 3"):
        runner.shape_given((64, 64, 64), Groups(count=3, kind="batched"))


def test_an_edit_of_what_does_many_products_counts_for_those_alone() -> None:
    for kernel in names():
        alone = kernel_sha256(kernel)
        for way in ("batched", "grouped"):
            able = kernel in kernel_names() and products_of(kernel, way) is not None  # type: ignore[arg-type]
            assert (kernel_sha256(kernel, way) != alone) == able  # type: ignore[arg-type]


def test_a_suite_with_groups_is_not_tuned_as_single_products() -> None:
    with pytest.raises(ConfigError, match="suite moe has groups"):
        tuning_cases("xla_dot_bf16", "moe")
