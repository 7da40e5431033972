"""Joules of ordered operands over those of the same operands as drawn, from rows made up by hand."""

from collections.abc import Callable

import pandas as pd
import pytest

from narrowbench.report import frame as frames
from narrowbench.report import load
from narrowbench.report.energy_model import energy_fit, metered_places
from narrowbench.report.fig_energy_by_data import figure
from narrowbench.report.tab_bit_order import table
from narrowbench.store.rows import Row, Toggles

TOGGLES = Toggles(a_along_k=3.0, a_along_rows=2.0, b_along_k=1.0, b_along_rows=None)
DRAWN = Toggles(a_along_k=3.5, a_along_rows=2.0, b_along_k=3.5, b_along_rows=4.0)


@pytest.fixture
def shown(make_row: Callable[..., Row]) -> Callable[..., list[list[str]]]:
    """The table's cells of a drawn row and one of ordered operands that spends as much less as is said."""

    def show(saved: float = 0.9, board: str = "one", **changes: object) -> list[list[str]]:
        drawn, ordered = _rows(make_row, saved, board, **changes)
        return table(load.Material(frames.collect([drawn, ordered], "record"))).shown

    return show


def _rows(make_row: Callable[..., Row], saved: float, board: str, base: str = "text") -> tuple[Row, Row]:
    drawn = _on(make_row(mode="sustained", distribution=base), "one")
    ordered = make_row(mode="sustained", distribution="text_k_ordered", toggles=TOGGLES, drawn_toggles=DRAWN)
    assert ordered.energy is not None
    windows = [w.model_copy(update={"counter_j": saved * (w.counter_j or 0.0)}) for w in ordered.energy.windows]
    energy = ordered.energy.model_copy(update={"windows": windows})
    return drawn, _on(ordered.model_copy(update={"energy": energy}), board)


def _on(row: Row, board: str) -> Row:
    return row.model_copy(update={"provenance": row.provenance.model_copy(update={"device_uuid_hash": board})})


def test_an_order_that_saves_has_a_ratio_below_one_beside_the_bits_that_change(
    shown: Callable[..., list[list[str]]],
) -> None:
    (cells,) = shown()
    assert cells[3:5] == ["text", "K, by B"]
    assert cells[7].startswith("0.900\u00a0[0.")
    assert cells[10:] == ["3.50", "2.00", "3.00", "–"], "mean of both operands; none where one is not known"


def test_joules_of_different_boards_are_shown_and_not_divided(shown: Callable[..., list[list[str]]]) -> None:
    (cells,) = shown(board="another")
    assert cells[7] == "–"
    assert cells[5] != "–"
    assert cells[6] != "–"


def test_the_same_board_goes_before_a_newer_one(make_row: Callable[..., Row]) -> None:
    drawn, ordered = _rows(make_row, 0.9, "one")
    later = drawn.provenance.model_copy(update={"device_uuid_hash": "another", "utc_time": "2027-01-02T03:04:05Z"})
    rows = [drawn, ordered, drawn.model_copy(update={"provenance": later})]
    (cells,) = table(load.Material(frames.collect(rows, "record"))).shown
    assert cells[7].startswith("0.900")


def test_ordered_operands_without_the_drawn_ones_say_that_there_is_nothing_yet(
    shown: Callable[..., list[list[str]]], empty_frame: pd.DataFrame
) -> None:
    assert shown(base="normal") == []
    assert "no joules of ordered operands yet" in table(load.Material(empty_frame)).note


def test_ordered_operands_are_no_further_data_of_figure_and_model(
    make_row: Callable[..., Row], rows: list[Row]
) -> None:
    ordered = make_row(mode="sustained", distribution="text_k_ordered")
    without, with_one = (load.Material(frames.collect(some, "record")) for some in (rows, [*rows, ordered]))
    place = metered_places(without)[0]
    assert energy_fit(with_one, place).samples == energy_fit(without, place).samples
    ticks = [
        [label.get_text() for axes in figure(material).axes for label in axes.get_xticklabels()]
        for material in (without, with_one)
    ]
    assert ticks[0] == ticks[1]
