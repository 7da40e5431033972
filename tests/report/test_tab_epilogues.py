"""A fused epilogue is held against the baseline's same work, and plain products stay out."""

from collections.abc import Callable

import pytest

from narrowbench.report import frame as frames
from narrowbench.report.load import Material
from narrowbench.report.tab_epilogues import table
from narrowbench.store.rows import Row

Make = Callable[..., Row]


def test_each_epilogue_has_a_line_with_its_ratio_and_a_plain_product_none(
    make_row: Make, make_finished_row: Make
) -> None:
    ours, baseline = "hopper_wgmma_fp8", "xla_dot_fp8_e4m3"
    rows = [make_row(kernel) for kernel in (ours, baseline)]
    rows += [make_finished_row(kernel, "bias_relu") for kernel in (ours, baseline)]
    rows += [make_finished_row(ours), make_finished_row(baseline, slower=2.0)]
    made = table(Material(frames.collect(rows, "record")))
    names = [column.name for column in made.columns]
    found = {row[names.index("epilogue")]: row for row in made.rows}
    assert set(found) == {"bias_relu", "scales_bias_gelu"}
    ratios = {name: row[names.index("speed_up")].value for name, row in found.items()}
    assert ratios["scales_bias_gelu"] == pytest.approx(2 * ratios["bias_relu"])
    assert {row[names.index("baseline")] for row in made.rows} == {"xla_dot_fp8_e4m3"}


def test_a_kernel_without_a_baseline_for_its_epilogue_has_no_line(make_row: Make, make_finished_row: Make) -> None:
    rows = [make_finished_row("hopper_wgmma_fp8"), make_row("xla_dot_fp8_e4m3")]
    assert table(Material(frames.collect(rows, "record"))).rows == []
