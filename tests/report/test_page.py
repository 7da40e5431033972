"""The report is one page that needs no network."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from narrowbench.report import frame as frames
from narrowbench.report import page
from narrowbench.report.catalogue import LOCAL_FIGURES, LOCAL_TITLES
from narrowbench.report.explorer import _SHAPES, chart, fragment
from narrowbench.report.kernels import KERNELS
from narrowbench.report.load import Material

_VOID = {"meta", "img", "br", "hr", "link", "input"}


class _Outline(HTMLParser):
    """Counts elements and declarations, and fails where an element is closed that is not the innermost open one."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_decl(self, decl: str) -> None:
        self.found[decl] += 1


def _local(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(origin=pd.array(["local"] * len(frame), dtype="string"))


def _write(frame: pd.DataFrame, folder: Path) -> str:
    frames.write(frame, folder / "all.parquet")
    (folder / "figures").mkdir()
    for stem in LOCAL_FIGURES:
        (folder / "figures" / f"{stem}.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    page.write(folder / "all.parquet", folder / "index.html", folder / "figures")
    return (folder / "index.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing_from_elsewhere(frame: pd.DataFrame, tmp_path: Path) -> None:
    html = _write(frame, tmp_path)
    assert not re.findall(r"<script[^>]*src=", html)
    markup = re.sub(r"(?s)<script.*?</script>", "", html)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", markup)
    assert 'id="explorer"' in html
    assert html.count("data:image/svg+xml;base64,") == len(LOCAL_FIGURES)


def test_the_page_is_one_document(frame: pd.DataFrame, tmp_path: Path) -> None:
    outline = _Outline(_write(_local(frame), tmp_path))
    assert outline.open == []
    once = ("DOCTYPE html", "html", "head", "body", "title", "h1", "style")
    assert [outline.found[name] for name in once] == [1] * len(once)


def test_no_name_ends_the_script_that_holds_it(frame: pd.DataFrame) -> None:
    named = frame.assign(suite=frame.suite.where(frame.suite != "square", "</script><b>"))
    assert _Outline(fragment(Material(named))).found == {"div": 1, "script": 2}


def test_every_figure_has_a_heading_for_people(frame: pd.DataFrame, tmp_path: Path) -> None:
    headings = re.findall(r"<h2>(.*?)</h2>", _write(frame, tmp_path))
    assert set(LOCAL_TITLES.values()) < set(headings)
    assert not [heading for heading in headings if "_" in heading]


def test_rows_are_counted_by_their_evidence(frame: pd.DataFrame, tmp_path: Path) -> None:
    on_cpu, compiled = frame[frame.device == "synthetic-cpu"], frame[frame.evidence == "compiled"]
    html = _write(pd.concat([_local(on_cpu), _local(compiled), frame]), tmp_path)
    assert f"<li>{len(on_cpu)} rows measured on synthetic synthetic-cpu</li>" in html
    assert f"<li>{len(compiled)} rows compiled here, and not run, for NVIDIA H200 SXM</li>" in html
    measured = len(frame) - len(compiled)
    assert f"<li>rows of record: {measured} measured on 2 devices, {len(compiled)} compiled for 1 devices</li>" in html


def test_what_has_no_energy_is_listed_with_its_reason(frame: pd.DataFrame, tmp_path: Path) -> None:
    here = frame[frame.device == "synthetic-cpu"]
    count = (here["mode"] == "sustained").sum()
    cells = ("synthetic synthetic-cpu", "energy", "sustained", str(count), "synthetic: no meter")
    assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in _write(_local(here), tmp_path)


def test_the_page_says_what_gave_no_result_here(frame: pd.DataFrame, tmp_path: Path) -> None:
    assert "synthetic: k=100 is too odd" in _write(_local(frame), tmp_path)


def test_a_page_without_rows_says_so(empty_frame: pd.DataFrame, tmp_path: Path) -> None:
    assert "No measured GEMM yet." in _write(empty_frame, tmp_path)


def test_the_explorer_offers_every_device_mode_and_distribution(frame: pd.DataFrame) -> None:
    options = {
        parameter["name"]: parameter["bind"]["options"]
        for parameter in chart(Material(frame)).to_dict()["params"]
        if "options" in parameter.get("bind", {})
    }
    assert set(options["device"]) == {"NVIDIA H200 SXM", "synthetic synthetic-cpu"}
    assert options["mode"] == ["burst", "sustained"]
    assert options["data"][0] == "normal"


def test_every_marker_has_a_shape_in_the_explorer() -> None:
    assert {look.marker for look in KERNELS.values()} <= set(_SHAPES)
