"""Ratios to the right baseline, and points that must lie below their roofs."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from narrowbench.models.roofline import AboveRoofError
from narrowbench.report import frame as frames
from narrowbench.report.ratios import board_spread, energy_savings, speed_ups, why_no_ratio
from narrowbench.report.roofs import MEMORY, check, measured_roofs
from narrowbench.report.select import Place, once, timed
from narrowbench.store.rows import Row

Make = Callable[..., Row]
#: Seconds of the same case, and where.
BOARDS = [(1.0e-3, "here"), (1.1e-3, "there"), (1.05e-3, "elsewhere")]


def _frame(*rows: Row) -> pd.DataFrame:
    return frames.collect(rows, "record")


def test_a_ratio_is_of_medians_and_above_one_when_ours_is_faster(make_row: Make) -> None:
    ours, theirs = make_row("hopper_wgmma_fp8"), make_row("xla_dot_fp8_e4m3", seed=2)
    assert ours.timing is not None
    assert theirs.timing is not None
    (found,) = speed_ups(_frame(ours, theirs))
    expected = np.median(theirs.timing.samples_s) / np.median(ours.timing.samples_s)
    assert found.ratio.value == pytest.approx(expected)
    assert found.ratio.interval.low < expected < found.ratio.interval.high


@pytest.mark.parametrize("change", [{"mode": "sustained"}, {"distribution": "zeros"}, {"shape": (4096, 8192, 8192)}])
def test_other_work_is_no_baseline(make_row: Make, change: dict[str, object]) -> None:
    assert speed_ups(_frame(make_row("hopper_wgmma_fp8"), make_row("xla_dot_fp8_e4m3", **change))) == []


def test_a_widened_dot_is_no_fp8_baseline(make_row: Make) -> None:
    widened = make_row("xla_dot_fp8_e4m3", compile={"hlo_calls": ["gemm_fusion"], "upcast": True})
    assert speed_ups(_frame(make_row("hopper_wgmma_fp8"), widened)) == []


def test_narrow_weights_are_held_against_the_format_of_their_activations(make_row: Make) -> None:
    lines = _frame(make_row("hopper_wgmma_w4a8"), make_row("xla_dot_fp8_e4m3"), make_row("xla_dot_bf16"))
    (found,) = speed_ups(lines)
    assert found.baseline.kernel == "xla_dot_fp8_e4m3"


def _as_fast(row: Row, seconds: float) -> Row:
    assert row.timing is not None
    samples_s = [seconds * (1 + 1e-3 * number) for number in range(len(row.timing.samples_s))]
    return row.model_copy(update={"timing": row.timing.model_copy(update={"samples_s": samples_s})})


@pytest.mark.parametrize(
    ("fastest", "times_s"),
    [
        ("xla_dot_fp8_e4m3", [1.0e-3, 1.1e-3, 1.2e-3, 1.3e-3]),
        ("cublaslt_fp8_e4m3", [1.0e-3, 0.9e-3, 1.2e-3, 1.3e-3]),
        ("torch_scaled_mm_fp8_e4m3", [1.0e-3, 0.9e-3, 0.8e-3, 1.3e-3]),
        ("triton_persistent_fp8_e4m3", [1.0e-3, 0.9e-3, 0.8e-3, 0.7e-3]),
    ],
)
def test_the_baseline_is_the_fastest_of_all_libraries_case_by_case(
    fastest: str, times_s: list[float], make_row: Make
) -> None:
    names = ("xla_dot_fp8_e4m3", "cublaslt_fp8_e4m3", "torch_scaled_mm_fp8_e4m3", "triton_persistent_fp8_e4m3")
    theirs = [_as_fast(make_row(name), time_s) for name, time_s in zip(names, times_s, strict=True)]
    in_bf16 = _as_fast(make_row("cublaslt_bf16"), 1e-4)
    (found,) = speed_ups(_frame(make_row("hopper_wgmma_fp8"), *theirs, in_bf16))
    assert found.baseline.kernel == fastest


def test_too_few_samples_give_no_ratio(make_row: Make) -> None:
    row = make_row("hopper_wgmma_fp8")
    assert row.timing is not None
    few = row.timing.model_copy(update={"samples_s": [1e-3] * 5, "launches_per_sample": [1] * 5})
    assert speed_ups(_frame(row.model_copy(update={"timing": few}), make_row("xla_dot_fp8_e4m3"))) == []


def test_what_is_no_ratio_has_its_reason(make_row: Make) -> None:
    ours, theirs = make_row("hopper_wgmma_fp8"), make_row("xla_dot_fp8_e4m3")
    assert ours.timing is not None
    few = ours.timing.model_copy(update={"samples_s": [1e-3] * 5, "launches_per_sample": [1] * 5})
    assert why_no_ratio(_frame(theirs)).endswith("(xla_dot_fp8_e4m3), and no kernel of ours beside them")
    assert "no baseline was measured for the same work" in why_no_ratio(_frame(ours))
    assert "fewer than the" in why_no_ratio(_frame(ours.model_copy(update={"timing": few}), theirs))


def _on_board(row: Row, board: str) -> Row:
    return row.model_copy(update={"provenance": row.provenance.model_copy(update={"device_uuid_hash": board})})


def test_a_baseline_of_the_same_board_goes_before_a_faster_one_of_another(make_row: Make) -> None:
    ours = _on_board(_as_fast(make_row("hopper_wgmma_fp8"), 1.0e-3), "here")
    here = _on_board(_as_fast(make_row("xla_dot_fp8_e4m3"), 1.2e-3), "here")
    there = _on_board(_as_fast(make_row("cublaslt_fp8_e4m3"), 1.1e-3), "there")
    (found,) = speed_ups(_frame(ours, here, there))
    assert (found.baseline.kernel, found.is_same_board, found.pairing) == (here.case.kernel, True, "apart")
    (found,) = speed_ups(_frame(ours, there))
    assert (found.baseline.kernel, found.is_same_board, found.pairing) == (there.case.kernel, False, "two boards")


@pytest.mark.parametrize(("seconds", "is_told"), [(1.05e-3, False), (1.15e-3, True), (0.95e-3, False), (0.85e-3, True)])
def test_two_boards_differ_by_more_than_the_interval_says(make_row: Make, seconds: float, is_told: bool) -> None:
    again = [_on_board(_as_fast(make_row("xla_dot_fp8_e4m3"), time_s), board) for time_s, board in BOARDS]
    spread = board_spread(_frame(*again))
    ours_twice = [_on_board(_as_fast(make_row("hopper_wgmma_fp8"), time_s), board) for time_s, board in BOARDS]
    assert spread == pytest.approx(1.1)
    assert board_spread(_frame(*ours_twice)) == 1.0
    ours = _on_board(_as_fast(make_row("hopper_wgmma_fp8"), 1.0e-3), "here")
    (elsewhere,) = speed_ups(_frame(ours, _on_board(_as_fast(make_row("xla_dot_fp8_e4m3"), seconds), "there")))
    assert elsewhere.differs(1.0)
    assert elsewhere.differs(spread) == is_told
    (same,) = speed_ups(_frame(ours, _on_board(_as_fast(make_row("xla_dot_fp8_e4m3"), seconds), "here")))
    assert same.differs(spread)


def test_nothing_is_known_of_boards_where_there_is_one(make_row: Make) -> None:
    once_more = [_on_board(_as_fast(make_row("xla_dot_fp8_e4m3"), time_s), "here") for time_s in (1.0e-3, 1.2e-3)]
    assert board_spread(_frame(*once_more)) == board_spread(_frame(*once_more)[:0]) == 1.0


def test_samples_taken_in_turn_are_compared_as_pairs(make_row: Make) -> None:
    rows = [make_row("hopper_wgmma_fp8"), make_row("xla_dot_fp8_e4m3")]
    drift = [1.0 + 0.05 * number for number in range(12)]
    times = [[1e-3 * step * factor for step in drift] for factor in (1.0, 1.02)]
    together = [
        row.model_copy(update={"timing": row.timing.model_copy(update={"samples_s": samples, "session": "s"})})
        for row, samples in zip(rows, times, strict=True)
        if row.timing is not None
    ]
    (found,) = speed_ups(_frame(*together))
    assert found.is_paired
    assert found.ratio.value == pytest.approx(1.02)
    assert found.ratio.interval.half_width < 1e-9
    apart = [
        row.model_copy(update={"timing": row.timing.model_copy(update={"session": None})})
        for row in together
        if row.timing
    ]
    (found,) = speed_ups(_frame(*apart))
    assert not found.is_paired
    assert found.ratio.interval.half_width > 0.01


def _timed_again(row: Row, **changes: object) -> Row:
    assert row.timing is not None
    return row.model_copy(update={"timing": row.timing.model_copy(update=changes)})


def test_samples_taken_in_turn_are_no_pairs_with_those_of_a_row_of_its_own(make_row: Make) -> None:
    in_turn = _timed_again(make_row("hopper_wgmma_fp8"), session="s")
    (found,) = speed_ups(_frame(in_turn, _timed_again(make_row("xla_dot_fp8_e4m3"), session=None)))
    assert not found.is_paired


def test_work_that_several_suites_have_is_shown_once_and_by_pairs_where_there_are_any(make_row: Make) -> None:
    rows = [make_row("hopper_wgmma_fp8", seed=seed) for seed in (1, 2, 3)]
    suites = {"interleaved": "s", "square": None, "gpu": None}
    told = [
        _timed_again(row, session=session).model_copy(
            update={
                "case": row.case.model_copy(update={"suite": suite}),
                "provenance": row.provenance.model_copy(update={"utc_time": f"2026-01-0{day}T00:00:00.000Z"}),
            }
        )
        for day, (row, (suite, session)) in enumerate(zip(rows, suites.items(), strict=True), start=1)
    ]
    assert once(_frame(*told)).suite.tolist() == ["interleaved"]
    assert once(_frame(*told[1:])).suite.tolist() == ["gpu"]
    others = _timed_again(make_row("xla_dot_fp8_e4m3"), session="s")
    assert sorted(once(_frame(*told, others)).kernel) == ["hopper_wgmma_fp8", "xla_dot_fp8_e4m3"]


def test_savings_are_in_joules(make_row: Make) -> None:
    rows = [make_row(kernel, mode="sustained") for kernel in ("hopper_wgmma_fp8", "xla_dot_fp8_e4m3")]
    (found,) = energy_savings(timed(_frame(*rows)))
    assert found.ratio.value == pytest.approx(found.baseline.energy_j / found.line.energy_j)


def test_synthetic_points_lie_below_their_roofs(frame: pd.DataFrame) -> None:
    check(frame)


def test_a_point_above_its_roof_stops_and_is_named(frame: pd.DataFrame) -> None:
    wrong = frame.copy()
    lines = timed(wrong)
    index = lines.index[(lines.kernel == "hopper_wgmma_fp8") & (lines.m == 8192) & (lines["mode"] == "burst")][0]
    for name in ("flop_per_s", "flop_per_s_low", "flop_per_s_high"):
        wrong.loc[index, name] *= 1.4
    with pytest.raises(AboveRoofError, match=r"nvidia-h200: hopper_wgmma_fp8 m=8192 .* burst"):
        check(wrong)


def test_a_point_between_a_roofs_median_and_its_fast_samples_is_not_above_it(frame: pd.DataFrame) -> None:
    """On a busy host half of a roof's samples are slower than its median by chance alone."""
    busy = frame.copy()
    lines = timed(busy)
    index = lines.index[(lines.kernel == "hopper_wgmma_fp8") & (lines.m == 8192) & (lines["mode"] == "burst")][0]
    for name in ("flop_per_s", "flop_per_s_low", "flop_per_s_high"):
        busy.loc[index, name] *= 1.2
    is_roof = (busy.kind == "roof") & (busy.roof_format == "fp8_e4m3")
    busy.loc[is_roof, "time_p5_s"] = busy.loc[is_roof, "time_s"] / 1.3
    check(busy)


def test_a_gemm_on_zeros_is_a_roof_itself(frame: pd.DataFrame) -> None:
    place = Place("record", "nvidia-h200")
    lines = timed(frame)
    index = lines.index[(lines.kernel == "hopper_wgmma_fp8") & (lines.m == 8192) & (lines["mode"] == "burst")][0]
    on_zeros = frame.copy()
    on_zeros.loc[index, "distribution"] = "zeros"
    for name in ("flop_per_s", "flop_per_s_low", "flop_per_s_high"):
        on_zeros.loc[index, name] *= 2.0
    check(on_zeros)
    rate = float(on_zeros.loc[index, "flop_per_s"])
    assert measured_roofs(on_zeros, place, "burst", "zeros")["fp8"].value == rate
    assert measured_roofs(on_zeros, place, "burst", "normal") == measured_roofs(frame, place, "burst", "normal")


def test_a_mode_without_roofs_has_those_of_a_burst(frame: pd.DataFrame) -> None:
    place = Place("record", "nvidia-h200")
    burst = measured_roofs(frame, place, "burst")
    without = frame[~((frame.kind == "roof") & (frame["mode"] == "sustained"))]
    assert measured_roofs(without, place, "sustained") == burst
    assert measured_roofs(without, place, "sustained", held_only=True) == {}
    assert set(burst) == {MEMORY, "bf16", "fp8"}
    zeros = measured_roofs(frame, place, "burst", "zeros")
    assert zeros["fp8"].value > burst["fp8"].value
