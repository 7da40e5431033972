"""The paper builds from whatever the record holds, the same bytes in any folder, and names what is missing."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from narrowbench.config import ROOT
from narrowbench.errors import PaperError
from narrowbench.report import frame as frames
from narrowbench.report import paper
from narrowbench.report.catalogue import FIGURES, TABLES, tabulate


def _folder(root: Path, frame: pd.DataFrame) -> Path:
    """A checkout's paper with tables and numbers of a frame, and one small picture for every figure."""
    (root / "paper").mkdir(parents=True)
    (root / "figures").mkdir()
    for name in ("narrowgemm.typ", "references.bib"):
        shutil.copy(ROOT / "paper" / name, root / "paper" / name)
    frames.write(frame, root / "frame.parquet")
    tabulate(TABLES, root / "frame.parquet", root / "paper" / "tables", root / "paper" / "numbers.typ")
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="100"><rect width="200" height="100"/></svg>'
    for stem in FIGURES:
        (root / "figures" / f"{stem}.svg").write_text(picture)
    return root / "paper" / "narrowgemm.pdf"


def test_two_folders_give_the_same_bytes(frame: pd.DataFrame, tmp_path: Path) -> None:
    pdfs = [_folder(tmp_path / name, frame) for name in ("one", "another place")]
    for pdf in pdfs:
        paper.typeset(pdf)
    first, second = (pdf.read_bytes() for pdf in pdfs)
    assert first.startswith(b"%PDF")
    assert first == second


def test_an_empty_record_still_gives_a_paper(empty_frame: pd.DataFrame, tmp_path: Path) -> None:
    pdf = _folder(tmp_path / "checkout", empty_frame)
    paper.typeset(pdf)
    assert pdf.stat().st_size > 10_000


def test_a_missing_number_stops_the_build_and_is_named(empty_frame: pd.DataFrame, tmp_path: Path) -> None:
    pdf = _folder(tmp_path / "checkout", empty_frame)
    module = pdf.with_name("numbers.typ")
    module.write_text(module.read_text(encoding="utf-8").replace('"protocol/burst/train"', '"protocol/burst/gone"'))
    with pytest.raises(PaperError, match="no number «protocol/burst/train»"):
        paper.typeset(pdf)


def test_the_paper_shows_every_figure_and_table_but_the_longest() -> None:
    source = (ROOT / "paper" / "narrowgemm.typ").read_text(encoding="utf-8")
    assert [stem for stem in FIGURES if f'wide-figure("{stem}"' not in source] == []
    assert [stem for stem in TABLES if f'"{stem}"' not in source] == ["tab_gemm"]


def test_no_semicolon_of_the_text_is_swallowed_as_the_end_of_code() -> None:
    source = (ROOT / "paper" / "narrowgemm.typ").read_text(encoding="utf-8")
    assert re.findall(r'#(?:num|full|raw)\((?:[^()"]|"[^"]*"|\([^()]*\))*\);', source) == []
