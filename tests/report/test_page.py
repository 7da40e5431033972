"""The report is one page that needs no network."""

import re
from pathlib import Path

import pandas as pd

from narrowbench.report import frame as frames
from narrowbench.report import page
from narrowbench.report.catalogue import LOCAL_FIGURES
from narrowbench.report.explorer import _SHAPES, chart
from narrowbench.report.kernels import KERNELS
from narrowbench.report.load import Material


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


def test_the_page_says_what_gave_no_result_here(frame: pd.DataFrame, tmp_path: Path) -> None:
    here = frame.assign(origin=pd.array(["local"] * len(frame), dtype="string"))
    assert "synthetic: k=100 is too odd" in _write(here, tmp_path)


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
