"""Numbers have names, and the paper's text has no others."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from narrowbench.config import ROOT
from narrowbench.report import frame as frames
from narrowbench.report import numbers
from narrowbench.report.load import Material
from narrowbench.store.rows import Row

SOURCE = ROOT / "paper" / "narrowgemm.typ"
H200 = "nvidia-h200/sustained/hopper_wgmma_fp8/8192x8192x8192"


@pytest.fixture(scope="module")
def found(frame: pd.DataFrame) -> dict[str, numbers.Number]:
    return numbers.numbers(Material(frame))


def test_a_number_has_a_short_form_and_one_with_interval(found: dict[str, numbers.Number]) -> None:
    rate = found[f"{H200}/rate"]
    assert re.fullmatch(r"[\d,.]+ TFLOP/s", rate.short)
    assert re.fullmatch(r"[\d,.]+ \[[\d,.]+, [\d,.]+\] TFLOP/s", rate.full)
    assert found[f"{H200}/energy"].short.endswith(" pJ/FLOP")
    assert found[f"{H200}/speed-up/baseline"].short == "xla_dot_fp8_e4m3"


def test_fp8_is_held_against_bf16_in_speed_and_in_joules(found: dict[str, numbers.Number]) -> None:
    for what in ("speed-up", "saving"):
        value = float(found[f"nvidia-h200/sustained/8192x8192x8192/fp8-over-bf16/{what}"].short)
        assert value == pytest.approx(1500 / 800, rel=0.03)


def test_other_data_is_held_against_normal_data(found: dict[str, numbers.Number]) -> None:
    zeros = found["nvidia-h200/sustained/xla_dot_bf16/8192x8192x8192/zeros-over-normal"]
    assert float(zeros.short) == pytest.approx(1 / 0.85, rel=0.03)


def test_counted_loads_are_of_a_byte_of_the_operands(found: dict[str, numbers.Number]) -> None:
    counted = "nvidia-h200/counted/hopper_wgmma_fp8/8192x8192x8192/128x256/blocks-1"
    assert found[f"{counted}/l2-loads"].short == "48.0"
    assert found[f"{counted}/memory-loads"].short == "1.86"


def test_only_the_record_gives_numbers(frame: pd.DataFrame) -> None:
    local = frame.assign(origin=pd.array(["local"] * len(frame), dtype="string"))
    names = numbers.numbers(Material(local))
    assert not [name for name in names if name.startswith("nvidia-h200/")]
    assert "claims/total" in names


def test_versions_that_differ_are_no_number(make_row: Callable[..., Row]) -> None:
    rows = [make_row(seed=seed) for seed in (1, 2)]
    other = rows[1].provenance.model_copy(update={"versions": {"jax": "0.99", "driver": "synthetic"}})
    lines = frames.collect([rows[0], rows[1].model_copy(update={"provenance": other})], "record")
    names = numbers.numbers(Material(lines))
    assert "nvidia-h200/version/driver" in names
    assert "nvidia-h200/version/jax" not in names


def test_the_module_is_typst_that_lists_every_number(frame: pd.DataFrame, tmp_path: Path) -> None:
    numbers.write(Material(frame), tmp_path / "numbers.typ")
    text = (tmp_path / "numbers.typ").read_text(encoding="utf-8")
    assert f'"{H200}/rate": (' in text
    assert '(slug: "nvidia-h200", name: "NVIDIA H200 SXM"),' in text


def _typed_figures(source: str) -> list[str]:
    """Figures with a unit in typst source that no macro put there; lengths of the layout are none."""
    unit = r"(?:%|percent\b|[kMGTP]?(?:FLOP|B)(?:/s)?\b|pJ|J\b|W\b|[kMG]?Hz|[µm]?s\b|times\b)"
    text = re.sub(r"//.*|#(?:let|set|show)[^\[\n]*|width: \d+%", "", source)
    return re.findall(rf"\d[\d.,]*[ \u00a0]?{unit}", text)


def test_the_text_of_the_paper_types_no_figure() -> None:
    assert _typed_figures(SOURCE.read_text(encoding="utf-8")) == []


def test_a_typed_figure_would_be_found() -> None:
    source = "#set text(size: 9pt)\nreaches 1,539 TFLOP/s, 78 % of the peak, 1.2 times #num(x)"
    assert _typed_figures(source) == ["1,539 TFLOP/s", "78 %", "1.2 times"]
