"""Many products in one launch have a table of their own, and stand nowhere else."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from narrowbench.models.roofline import AboveRoofError
from narrowbench.models.samples import energy_samples, kernel_runs
from narrowbench.report import frame as frames
from narrowbench.report import roofs
from narrowbench.report.load import Material
from narrowbench.report.select import grouped, of_windows, repeated, timed, usual
from narrowbench.report.tab_gemm import table as tab_gemm
from narrowbench.report.tab_groups import table
from narrowbench.report.tab_repeats import pairs
from narrowbench.store.groups import Groups
from narrowbench.store.rows import Row

Make = Callable[..., Row]
RAGGED: dict[str, Any] = {"count": 32, "kind": "ragged"}
GATE_UP = (8192, 4096, 7168)


def _collected(*rows: Row) -> pd.DataFrame:
    return frames.collect(rows, "record")


def _lines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    found = table(Material(frame))
    return [dict(zip([column.name for column in found.columns], row, strict=True)) for row in found.rows]


def test_a_line_counts_all_rows_and_the_operand_of_each_group_with_rows(make_row: Make) -> None:
    (line,) = (line for _, line in grouped(_collected(make_row(shape=GATE_UP, groups=RAGGED))).iterrows())
    m, n, k = GATE_UP
    multiplied = Groups.model_validate(RAGGED).multiplied(m, 0)
    assert (line.groups, line.groups_kind) == (32, "ragged")
    assert line.flop == 2 * m * n * k
    scales = 4 * (1 + multiplied)
    assert line.bytes == m * k + multiplied * n * k + 2 * m * n + scales
    assert line.bytes_per_s == pytest.approx(line.bytes / line.time_s)


def test_figures_and_tables_of_single_products_leave_groups_out(frame: pd.DataFrame) -> None:
    apart = frame.groups.notna()
    assert apart.sum() == 6
    for select in (timed, usual, of_windows, repeated):
        assert select(frame).groups.isna().all()
    assert grouped(frame).groups.notna().all()
    assert tab_gemm(Material(frame)).rows == tab_gemm(Material(frame[~apart])).rows


def test_repeated_groups_are_not_taken_for_repetitions_of_a_single_product(make_row: Make) -> None:
    first = make_row(mode="sustained", shape=GATE_UP)
    later = make_row(mode="sustained", shape=GATE_UP, groups=RAGGED)
    later = later.model_copy(
        update={
            "case": later.case.model_copy(update={"repeat": 2}),
            "provenance": later.provenance.model_copy(update={"utc_time": "2030-01-01T00:00:00Z"}),
        }
    )
    assert list(pairs(_collected(first, later))) == []


def test_models_of_single_products_are_not_fitted_to_groups(make_row: Make) -> None:
    both = [make_row(mode="sustained"), make_row(mode="sustained", groups=RAGGED)]
    material = Material(_collected(*both))
    assert len(kernel_runs(material.frame, material.profiles)) == 1
    assert len(energy_samples(material.frame, material.profiles)) == 1


def test_a_kernel_is_held_against_the_baseline_for_the_same_groups(frame: pd.DataFrame) -> None:
    lines = _lines(frame)
    assert [(line["kind"], line["rows"], line["n_k"]) for line in lines[::2]] == [
        ("equal", 8192, "4096×7168"),
        ("ragged", 8192, "4096×7168"),
        ("batched", 8192, "8192×8192"),
    ]
    assert [line["layer"] for line in lines[::2]] == ["deepseek-v3-expert-gate-up"] * 2 + [None]
    for baseline, ours in zip(lines[::2], lines[1::2], strict=True):
        assert baseline["ratio"] is None
        assert ours["baseline"] == baseline["kernel"] == "xla_dot_fp8_e4m3"
        assert ours["ratio"].value == pytest.approx(baseline["time_s"] / ours["time_s"])
        assert ours["ratio"].interval is not None


def test_a_single_product_is_no_baseline_for_groups(make_row: Make) -> None:
    frame = _collected(
        make_row("xla_dot_fp8_e4m3", GATE_UP),
        make_row("xla_dot_fp8_e4m3", GATE_UP, groups={"count": 16, "kind": "ragged"}),
        make_row("hopper_wgmma_fp8", GATE_UP, groups=RAGGED),
    )
    assert [line["ratio"] for line in _lines(frame)] == [None, None]


def test_a_ragged_dot_that_was_widened_is_no_baseline(make_row: Make) -> None:
    widened = make_row("xla_dot_fp8_e4m3", GATE_UP, groups=RAGGED)
    assert widened.compile is not None
    widened = widened.model_copy(update={"compile": widened.compile.model_copy(update={"upcast": True})})
    lines = _lines(_collected(widened, make_row(shape=GATE_UP, groups=RAGGED)))
    assert [line["ratio"] for line in lines] == [None, None]
    assert lines[0]["hlo_calls"]


def test_groups_above_a_roof_stop_the_collection(rows: list[Row], make_row: Make) -> None:
    here = [row for row in rows if row.provenance.device == "nvidia-h200"]
    roofs.check(_collected(*here))
    row = make_row(shape=(256, 4096, 7168), groups=RAGGED)
    assert row.timing is not None
    faster = row.timing.model_copy(update={"samples_s": [time_s / 2 for time_s in row.timing.samples_s]})
    with pytest.raises(AboveRoofError, match="the memory roof"):
        roofs.check(_collected(*here, row.model_copy(update={"timing": faster})))
