"""The frame holds what the rows hold, in stated types, and survives Parquet."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pandera.errors
import pytest

from narrowbench.errors import StoreError
from narrowbench.report import frame as frames
from narrowbench.report.select import of_windows, timed
from narrowbench.store.rows import Row


def _only(frame: pd.DataFrame) -> pd.Series:
    assert len(frame) == 1
    return frame.iloc[0]


def test_a_line_has_rates_of_the_median_and_a_turned_interval(make_row: Callable[..., Row]) -> None:
    row = make_row(mode="sustained")
    assert row.timing is not None
    line = _only(frames.collect([row], "record"))
    flop = 2 * 8192**3
    assert line.flop == flop
    assert line.flop_per_s == pytest.approx(flop / np.median(row.timing.samples_s))
    assert line.flop_per_s_low == pytest.approx(flop / line.time_high_s)
    assert line.flop_per_s_low < line.flop_per_s < line.flop_per_s_high
    assert line.samples == 12
    assert list(line.samples_s) == row.timing.samples_s


def test_searches_of_the_tuner_are_no_results(
    make_row: Callable[..., Row], make_tuning_row: Callable[..., Row]
) -> None:
    assert set(frames.collect([make_tuning_row(), make_row(mode="burst")], "record").kind) == {"gemm"}


def test_joules_are_a_launch_by_the_named_reading(make_row: Callable[..., Row]) -> None:
    row = make_row(mode="sustained")
    assert row.energy is not None
    launches = row.energy.windows[0].launches
    expected = np.median([w.counter_j for w in row.energy.windows]) / launches
    line = _only(frames.collect([row], "record"))
    assert line.energy_j == pytest.approx(expected)
    assert line.j_per_flop == pytest.approx(expected / line.flop)
    assert line.energy_net_j == pytest.approx(expected - 75.0 * 5.0 / launches)
    integrated = row.model_copy(update={"energy": row.energy.model_copy(update={"source": "integrated"})})
    assert _only(frames.collect([integrated], "record")).energy_j == pytest.approx(1.01 * expected)


def test_windows_that_are_studied_are_kept_apart_with_every_reading(make_row: Callable[..., Row]) -> None:
    usual = make_row(mode="sustained")
    studied = usual.model_dump()
    studied["case"]["window_s"] = 0.5
    studied |= {"energy": None, "energy_reason": "synthetic: windows of 0.5 s are shorter than 5 s"}
    shown = {"window_s": 0.5, "launches": 100, "counter_j": 0.0, "integrated_j": None}
    studied["window_readings"] = [shown, shown | {"counter_j": 300.0, "integrated_j": 310.0}]
    frame = frames.collect([usual, Row.model_validate(studied)], "record")
    assert _only(timed(frame)).energy_j > 0
    line = _only(of_windows(frame))
    assert line.window_s == 0.5
    assert math.isnan(line.energy_j)
    assert (list(line.readings_s), list(line.readings_counter_j)) == ([0.5, 0.5], [0.0, 3.0])
    assert line.readings_integrated_j[1] == 3.1
    assert math.isnan(line.readings_integrated_j[0])


def test_nothing_stands_in_for_what_is_missing(make_row: Callable[..., Row]) -> None:
    row = make_row(mode="burst")
    assert row.timing is not None
    few = row.timing.model_copy(update={"samples_s": [1e-3] * 5, "launches_per_sample": [20] * 5})
    line = _only(frames.collect([row.model_copy(update={"timing": few})], "record"))
    assert line.time_s == 1e-3
    assert math.isnan(line.time_low_s)
    assert math.isnan(line.energy_j)
    assert line.energy_reason == "synthetic: no meter"
    assert pd.isna(line.registers)


def test_rows_of_every_kind_make_one_line_each(frame: pd.DataFrame, rows: list[Row]) -> None:
    spaces = [row.space for row in rows if row.space is not None]
    assert len(frame) == len(rows) + sum(len(space.configs) - 1 for space in spaces)
    assert set(frame.kind) == {"gemm", "roof", "compile", "counters", "space"}
    roofs = frame[frame.kind == "roof"]
    assert roofs[roofs.quantity == "read"].bytes_per_s.notna().all()
    assert roofs[roofs.quantity == "flop"].flop_per_s.notna().all()
    assert frame[frame.status == "unsupported"].time_s.isna().all()
    assert _only(frame[frame.kind == "compile"]).registers == 168
    configs = frame[frame.kind == "space"]
    assert list(configs.config) == ['{"stages": 4}', '{"stages": 4}', '{"stages": 9}']
    assert list(configs.status) == ["ok", "ok", "unsupported"]
    assert list(configs.reason.fillna("")) == ["", "", "synthetic"]
    counted = _only(frame[frame.kind == "counters"])
    assert (counted.hbm_read_bytes, counted.l2_hit_share) == (250e6, 0.85)
    assert counted.hbm_write_bytes == pytest.approx(134.2e6)
    assert math.isnan(counted.time_s)
    assert math.isnan(counted.tensor_share)


def test_order_does_not_depend_on_the_order_of_rows(frame: pd.DataFrame, rows: list[Row]) -> None:
    pd.testing.assert_frame_equal(frame, frames.collect(reversed(rows), "record"))


def test_parquet_gives_the_same_frame_back(frame: pd.DataFrame, empty_frame: pd.DataFrame, tmp_path: Path) -> None:
    for name, whole in {"full": frame, "empty": empty_frame}.items():
        path = tmp_path / f"{name}.parquet"
        frames.write(whole, path)
        back = frames.load(path)
        lists = [name for name in whole if name in ("samples_s", "windows_j") or name.startswith("readings")]
        pd.testing.assert_frame_equal(back.drop(columns=lists), whole.drop(columns=lists))
        for mine, theirs in zip(back.samples_s, whole.samples_s, strict=True):
            assert (mine is None) if theirs is None else np.array_equal(mine, theirs)


def test_joining_keeps_origins_apart(make_row: Callable[..., Row]) -> None:
    both = frames.join([frames.collect([make_row()], origin) for origin in ("record", "local")])
    assert sorted(both.origin) == ["local", "record"]


@pytest.mark.parametrize(("column", "value"), [("evidence", "guessed"), ("time_s", -1.0), ("device", None)])
def test_a_frame_that_breaks_the_schema_is_refused(
    make_row: Callable[..., Row], tmp_path: Path, column: str, value: object
) -> None:
    wrong = frames.collect([make_row()], "record")
    wrong[column] = pd.array([value], dtype=wrong[column].dtype)
    with pytest.raises(pandera.errors.SchemaErrors, match=column):
        frames.write(wrong, tmp_path / "wrong.parquet")
    wrong.to_parquet(tmp_path / "wrong.parquet")
    with pytest.raises(StoreError, match=rf"wrong\.parquet.*collect it again\n(?s:.*){column}"):
        frames.load(tmp_path / "wrong.parquet")


def test_a_frame_of_another_version_is_refused_with_the_column(make_row: Callable[..., Row], tmp_path: Path) -> None:
    old = frames.collect([make_row()], "record").drop(columns="session").assign(older=1)
    old.to_parquet(tmp_path / "old.parquet")
    with pytest.raises(StoreError, match=r"(?s)collect it again.*older|session"):
        frames.load(tmp_path / "old.parquet")


def test_reading_results_loads_no_jax() -> None:
    code = "import sys, narrowbench.report.frame; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
