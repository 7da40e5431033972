"""`tab_aims`: ratios over the best of several on the own board, cases by rows and bytes, and aims that nothing met."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from narrowbench.models.aims import Aim
from narrowbench.report import frame as frames
from narrowbench.report.load import Material
from narrowbench.report.tab_aims import table
from narrowbench.store.rows import Row

OVER = ("xla_dot_fp8_e4m3", "cublaslt_fp8_e4m3")


def _aim(**fields: Any) -> Aim:
    return Aim.model_validate({"says": "an aim", "kernels": ["hopper_wgmma_fp8"], "rows": [1, 65536]} | fields)


def _took(row: Row, time_s: float, board: str | None = None) -> Row:
    assert row.timing is not None
    samples = tuple(time_s * (1 + 1e-4 * number) for number in range(len(row.timing.samples_s)))
    return row.model_copy(
        update={
            "timing": row.timing.model_copy(update={"samples_s": samples}),
            "provenance": row.provenance.model_copy(update={"device_uuid_hash": board}),
        }
    )


def _only_row(frame: pd.DataFrame, aim: Aim) -> dict[str, Any]:
    material = Material(frame)
    material.__dict__["aims"] = (aim,)
    found = table(material)
    (row,) = found.rows
    return dict(zip([column.name for column in found.columns], row, strict=True))


@pytest.fixture
def two_boards(make_row: Callable[..., Row]) -> pd.DataFrame:
    """Ours on one board, at two shapes; a library on the same at the first, and quicker ones on another board."""
    first, second = (4096, 4096, 4096), (64, 8192, 8192)
    rows = [
        _took(make_row("hopper_wgmma_fp8", first), 1e-4, "a" * 64),
        _took(make_row("hopper_wgmma_fp8", second), 1e-4, "a" * 64),
        _took(make_row(OVER[0], first), 1.2e-4, "a" * 64),
        _took(make_row(OVER[1], first), 1.1e-4, "b" * 64),
        _took(make_row(OVER[0], second), 1.6e-4, "b" * 64),
        _took(make_row(OVER[1], second), 1.5e-4, "b" * 64),
    ]
    return frames.collect(rows, "record")


def test_each_case_is_held_against_the_best_of_its_own_board_or_else_of_another(two_boards: pd.DataFrame) -> None:
    row = _only_row(two_boards, _aim(over=OVER, mean=1.3, least=1.25))
    assert (row["cases"], row["compared"], row["on_one_board"]) == (2, 2, 1)
    assert row["mean"] == pytest.approx((1.2 * 1.5) ** 0.5, rel=1e-3)
    assert row["lowest"] == pytest.approx(1.2, rel=1e-3)
    assert (row["lowest_at"], row["verdict"]) == ("4096×4096×4096", "missed by 4.0 %")
    assert _only_row(two_boards, _aim(over=OVER, mean=1.3))["verdict"] == "met"


@pytest.mark.parametrize(
    ("limits", "cases"), [({"rows": [1, 64]}, 1), ({"rows": [65, 4095]}, 0), ({"weight_mb": [64, 128]}, 1)]
)
def test_rows_and_bytes_say_which_cases(two_boards: pd.DataFrame, limits: dict[str, Any], cases: int) -> None:
    row = _only_row(two_boards, _aim(over=OVER, mean=1.0, **limits))
    assert row["cases"] == cases
    assert row["verdict"] == ("met" if cases else "not measured")


def test_what_nobody_was_measured_beside_is_not_measured(two_boards: pd.DataFrame) -> None:
    row = _only_row(two_boards, _aim(over=["triton_persistent_fp8_e4m3"], mean=1.0))
    assert (row["cases"], row["compared"], row["verdict"]) == (2, None, "not measured")


def test_shares_of_the_roof_and_joules_of_one_board(frame: pd.DataFrame) -> None:
    share = _only_row(frame, _aim(quantity="roof", least=0.5))
    assert 0 < share["lowest"] <= share["mean"] <= 1
    joules = _only_row(frame, _aim(quantity="joules", mode="sustained", over=OVER, least=0.5))
    assert joules["compared"] == joules["on_one_board"] > 0
