"""Energy by data, by length of the window, and of one format over another: what is shown, and what is left out."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from narrowbench.report import fig_energy_by_data, fig_window_length, style, tab_energy_parts
from narrowbench.report import frame as frames
from narrowbench.report.load import Material
from narrowbench.report.numbers import numbers
from narrowbench.report.select import BOARD, Reading, timed_anywhere
from narrowbench.report.tab_energy_ratios import table
from narrowbench.report.tables import MISSING
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


def _roof(make_row: Make, quantity: str, work: int, **case: object) -> Row:
    record = make_row("hopper_wgmma_fp8", mode="sustained").model_dump()
    record["case"] = {"kind": "roof", "quantity": quantity, "work": work, "mode": "sustained"} | case
    return Row.model_validate(record | {"accuracy": None, "compile": None, "config": None})


def test_bytes_come_from_the_farthest_memory_on_and_a_board_that_waits_has_power_alone(make_row: Make) -> None:
    quantities = ("active_idle", "shared_read", "read", "cache_read", "flop")
    made_up = {"flop": {"format": "bf16", "distribution": "zeros"}}
    rows = [_roof(make_row, name, 1 if name == "active_idle" else 2000, **made_up.get(name, {})) for name in quantities]
    found = tab_energy_parts.table(Material(frames.collect(rows, "record")))
    names = [column.name for column in found.columns]
    lines = [dict(zip(names, row, strict=True)) for row in found.rows]
    assert [line["what"].split(",")[0] for line in lines] == [
        "memory",
        "last-level cache",
        "shared memory",
        "nothing",
    ]
    energy, timing = rows[1].energy, rows[1].timing
    assert energy is not None
    assert timing is not None
    joules = np.median([w.counter_j / w.launches for w in energy.windows if w.counter_j is not None])
    assert lines[2]["j_per_byte"].value == pytest.approx(joules / 2000)
    assert lines[2]["j_per_byte"].interval.low < lines[2]["j_per_byte"].value
    assert lines[2]["j_per_byte_net"] < lines[2]["j_per_byte"].value
    assert lines[2]["bytes_per_s"].value == pytest.approx(2000 / np.median(timing.samples_s))
    assert [lines[3][name] for name in ("bytes_per_s", "j_per_byte", "j_per_byte_net")] == [None] * 3
    assert lines[3]["mean_power_w"] > lines[3]["idle_w"] > 0


def test_a_board_without_hash_and_a_case_without_idle_power_have_no_figure_there(make_row: Make) -> None:
    record = _roof(make_row, "active_idle", 1).model_dump()
    record["provenance"]["device_uuid_hash"] = None
    record["energy"] |= {"idle_w": None, "idle_reason": "not read"}
    material = Material(frames.collect([make_row(mode="sustained"), Row.model_validate(record)], "record"))
    found = tab_energy_parts.table(material)
    (row,) = found.rows
    cells = {column.name: column.cell(value) for column, value in zip(found.columns, row, strict=True)}
    assert cells["board"] == cells["idle_w"] == MISSING
    names = [name for name in numbers(material) if "/energy-part/" in name]
    assert [name.split("/")[1:] for name in names] == [["energy-part", "active_idle"]]


def _on_board(row: Row, board: str, repeat: int | None = None) -> Row:
    record = row.model_dump()
    record["case"]["repeat"] = repeat
    record["provenance"]["device_uuid_hash"] = board
    return Row.model_validate(record)


def test_data_are_of_one_board_and_faint_where_only_another_has_them(make_row: Make) -> None:
    def row(data: str, board: str, repeat: int | None = None, kernel: str = "hopper_wgmma_fp8") -> Row:
        return _on_board(make_row(kernel, mode="sustained", distribution=data), board, repeat)

    rows = [
        *(row(data, "first") for data in ("normal", "uniform")),
        *(row(data, "second", 2) for data in ("normal", "zeros", "text")),
        row("normal", "first", kernel="hopper_wgmma_w4a8"),
    ]
    lines = fig_energy_by_data._widest(timed_anywhere(frames.collect(rows, "record")))
    found = {line.distribution: (line[BOARD], line.elsewhere) for _, line in lines.iterrows()}
    assert found == {
        "normal": ("second", False),
        "zeros": ("second", False),
        "text": ("second", False),
        "uniform": ("first", True),
    }
    with style.house():
        axes = fig_energy_by_data.figure(Material(frames.collect(rows, "record"))).axes
    marks = {(round(line.get_xdata()[0]), line.get_alpha()) for line in axes[0].lines if len(line.get_xdata()) == 1}
    assert (1, fig_energy_by_data._FAINT) in marks
