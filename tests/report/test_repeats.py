"""A repeated measurement stands beside the first, and nowhere else."""

from collections.abc import Callable

import pytest

from narrowbench.report import frame as frames
from narrowbench.report import numbers
from narrowbench.report.load import Material
from narrowbench.report.select import repeated, timed
from narrowbench.report.tab_repeats import table
from narrowbench.store.rows import Row

Make = Callable[..., Row]


def _again(row: Row, joules: float, board: str = "another board") -> Row:
    """The row repeated on another board, every window at so many times its joules."""
    record = row.model_dump()
    record["case"]["repeat"] = 2
    record["provenance"] |= {"device_uuid_hash": board, "utc_time": "2030-01-02T00:00:00.000Z"}
    for window in (record["energy"] or {"windows": []})["windows"]:
        window["counter_j"] *= joules
    return Row.model_validate(record)


@pytest.fixture
def first(make_row: Make) -> Row:
    row = make_row("hopper_wgmma_fp8", mode="sustained")
    origin = row.provenance.model_copy(update={"device_uuid_hash": "one board", "utc_time": "2030-01-01T00:00:00.000Z"})
    return row.model_copy(update={"provenance": origin})


@pytest.mark.parametrize(
    ("joules", "board", "told"),
    [
        (1.0, "another board", "within intervals"),
        (1.08, "another board", "within sensors"),
        (1.2, "another board", "no"),
        (1.08, None, "no"),
    ],
    ids=["alike", "gain errors", "too far", "one sensor has one gain"],
)
def test_joules_agree_within_intervals_or_what_two_sensors_differ_by(
    first: Row, joules: float, board: str | None, told: str
) -> None:
    again = _again(first, joules, board or str(first.provenance.device_uuid_hash))
    made = table(Material(frames.collect([first, again], "record")))
    (row,) = (dict(zip([column.name for column in made.columns], row, strict=True)) for row in made.rows)
    assert (row["first_board"], row["board"]) == ("one bo", "anothe" if board else "one bo")
    assert (row["first_day"], row["day"]) == ("2030-01-01", "2030-01-02")
    assert row["energy_ratio"].value == pytest.approx(joules)
    assert row["time_ratio"].value == pytest.approx(1.0)
    assert row["agreement"] == told


def test_a_repetition_counts_nowhere_else_and_alone_is_no_pair(first: Row) -> None:
    both, alone = (frames.collect(rows, "record") for rows in ([first, _again(first, 1.0)], [_again(first, 1.0)]))
    assert list(timed(both).repeat.isna()) == [True]
    assert list(repeated(both).repeat) == [2]
    assert len(timed(alone)) == 0
    assert table(Material(alone)).rows == []


def test_a_case_that_another_suite_asked_for_is_the_same_case_and_one_sitting_is_no_repetition(first: Row) -> None:
    record = first.model_dump()
    record["case"]["suite"] = "another_suite"
    same_sitting = Row.model_validate(record)
    assert table(Material(frames.collect([first, same_sitting], "record"))).rows == []
    elsewhere = _again(same_sitting, 1.0)
    assert len(table(Material(frames.collect([first, elsewhere], "record"))).rows) == 1


def test_a_burst_has_no_joules_to_repeat(make_row: Make) -> None:
    row = make_row("hopper_wgmma_fp8", mode="burst")
    assert table(Material(frames.collect([row, _again(row, 1.0)], "record"))).rows == []


def test_the_text_counts_how_repetitions_agree(first: Row) -> None:
    rows = [first, _again(first, 1.0), _again(first, 1.08, "a third").model_copy()]
    rows[2] = rows[2].model_copy(update={"case": rows[2].case.model_copy(update={"repeat": 3})})
    found = numbers.numbers(Material(frames.collect(rows, "record")))
    told = {name: number.short for name, number in found.items() if name.startswith("repeats")}
    assert told == {
        "repeats": "2",
        "repeats/boards": "3",
        "repeats/days": "2",
        "repeats/within-intervals": "1",
        "repeats/within-sensors": "1",
    }
