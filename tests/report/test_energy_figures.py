"""Energy by data, by length of the window, and of one format over another: what is shown, and what is left out."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from narrowbench.report import fig_energy_by_data, fig_window_length, style
from narrowbench.report import frame as frames
from narrowbench.report.load import Material
from narrowbench.report.select import Reading
from narrowbench.report.tab_energy_ratios import table
from narrowbench.store.rows import Row

Make = Callable[..., Row]


def _studied(row: Row, window_s: float, counter_j: Sequence[float | None], integrated_j: Sequence[float | None]) -> Row:
    """A row that studies windows of this length, each of ten launches."""
    record = row.model_dump()
    record["case"]["window_s"] = window_s
    record["window_readings"] = [
        {"window_s": window_s, "launches": 10, "counter_j": counted, "integrated_j": integrated}
        for counted, integrated in zip(counter_j, integrated_j, strict=True)
    ]
    return Row.model_validate(record)


@pytest.fixture
def studied(make_row: Make) -> list[Row]:
    row = make_row("hopper_wgmma_fp8", mode="sustained")
    return [
        _studied(row, 0.1, [0.0, 14.0, None], [None, None, None]),
        _studied(row, 5.0, [9.0, 11.0, 10.0], [10.0, None, 10.0]),
        _studied(row, 10.0, [20.0, 20.0, 20.0], [19.0, 20.0, 21.0]),
    ]


def _marks(axes: object) -> list[float]:
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]  # type: ignore[attr-defined]
    return [float(y) for line in marks for y in line.get_ydata()]


def test_every_window_stands_over_the_longest_and_over_integrated_power(studied: list[Row]) -> None:
    with style.house():
        figure = fig_window_length.figure(Material(frames.collect(studied, "record")))
    left, right = figure.axes
    assert _marks(left) == pytest.approx([0.0, 0.7, 0.45, 0.55, 0.5, 1.0, 1.0, 1.0])
    assert _marks(right) == pytest.approx([0.9, 1.0, 20 / 19, 1.0, 20 / 21])
    assert [label.get_text() for label in left.get_xticklabels()] == ["0.1", "5", "10"]
    (bound,) = (line.get_xdata()[0] for line in left.lines if line.get_linestyle() == ":")
    assert 0.1 < bound < 5.0
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["hopper_wgmma_fp8"]


def test_one_length_is_no_study_and_windows_of_the_protocol_are_none(studied: list[Row], make_row: Make) -> None:
    for rows in (studied[1:2], [make_row(mode="sustained")]):
        with style.house():
            (axes,) = fig_window_length.figure(Material(frames.collect(rows, "record"))).axes
        assert "No case was measured in windows of several lengths" in axes.texts[0].get_text()


def test_data_stand_in_order_from_zeros_on_and_energy_comes_first(frame: pd.DataFrame) -> None:
    with style.house():
        axes = fig_energy_by_data.figure(Material(frame)).axes
    assert [panel.get_ylabel() for panel in axes[:3]] == ["energy (pJ/FLOP)", "clock (GHz)", "throughput (TFLOP/s)"]
    assert "sustained, 8192×8192×8192" in axes[0].get_title(loc="left")
    names = [label.get_text() for label in axes[0].get_xticklabels()]
    assert names == ["zeros", "small integers", "uniform", "normal"]
    zeros = [y for line in axes[0].lines for x, y in zip(*line.get_data(), strict=True) if x < 0.5]
    normal = [y for line in axes[0].lines for x, y in zip(*line.get_data(), strict=True) if x > 2.5]
    assert max(zeros) < min(normal) * 2
    assert len(zeros) == len(normal) > 2


def _ratios(rows: Sequence[Row]) -> dict[tuple[object, object], list[object]]:
    found = table(Material(frames.collect(rows, "record")))
    at = [column.name for column in found.columns].index
    return {(row[at("formats")], row[at("base_formats")]): row for row in found.rows}  # type: ignore[misc]


def test_a_format_stands_over_each_wider_one_by_the_leanest_kernels(make_row: Make) -> None:
    kernels = ("xla_dot_bf16", "hopper_wgmma_bf16", "xla_dot_fp8_e4m3", "hopper_wgmma_fp8", "hopper_wgmma_w4a8")
    rows = {kernel: make_row(kernel, mode="sustained", seed=seed) for seed, kernel in enumerate(kernels)}
    found = _ratios(list(rows.values()))
    fp8, bf16 = "fp8_e4m3 × fp8_e4m3", "bf16 × bf16"
    assert set(found) == {(fp8, bf16), ("fp8_e4m3 × mxfp4", bf16), ("fp8_e4m3 × mxfp4", fp8)}
    row = found[fp8, bf16]
    assert row[1:4] == ["sustained", "8192×8192×8192", "normal"]
    assert (row[5], row[8]) == ("hopper_wgmma_fp8", "hopper_wgmma_bf16")

    def joules(kernel: str) -> float:
        energy = rows[kernel].energy
        assert energy is not None
        return float(np.median([w.counter_j / w.launches for w in energy.windows if w.counter_j is not None]))

    ratio = row[-1]
    assert isinstance(ratio, Reading)
    assert ratio.value == pytest.approx(joules("hopper_wgmma_fp8") / joules("hopper_wgmma_bf16"))
    assert ratio.interval is not None
    assert ratio.interval.low < ratio.value < ratio.interval.high < 1


@pytest.mark.parametrize("change", [{"distribution": "zeros"}, {"shape": (4096, 8192, 8192)}, {"mode": "burst"}])
def test_other_work_gives_no_ratio(make_row: Make, change: dict[str, object]) -> None:
    other = {"mode": "sustained"} | change
    assert _ratios([make_row("hopper_wgmma_fp8", mode="sustained"), make_row("xla_dot_bf16", **other)]) == {}


def test_a_widened_dot_is_no_base(make_row: Make) -> None:
    widened = make_row("xla_dot_bf16", mode="sustained", compile={"hlo_calls": ["gemm_fusion"], "upcast": True})
    assert _ratios([make_row("hopper_wgmma_fp8", mode="sustained"), widened]) == {}
