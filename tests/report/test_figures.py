"""Every figure is drawn, from full and from empty frames, and drawn twice it is the same bytes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from narrowbench.report import frame as frames
from narrowbench.report import local_energy_per_flop, local_ratio_to_baseline, style
from narrowbench.report.catalogue import FIGURE_SUFFIXES, FIGURES, LOCAL_FIGURES, draw
from narrowbench.report.fig_throughput_by_shape import throughput_by_shape
from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.shapes import shape_panels
from narrowbench.store.rows import Row

FROM_PROFILES = ("fig_devices_roofline", "fig_kernel_time_check", "fig_three_roofs", "fig_energy_roofline")
FROM_RESULTS = [stem for stem in FIGURES if stem not in FROM_PROFILES]


@pytest.fixture(scope="module")
def stored(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Frames on disk: `full` with both origins, and `empty`."""
    folder = tmp_path_factory.mktemp("frames")
    local = [row for row in rows if row.provenance.device == "synthetic-cpu"]
    full = frames.join([frames.collect(rows, "record"), frames.collect(local, "local")])
    paths = {name: folder / f"{name}.parquet" for name in ("full", "empty")}
    frames.write(full, paths["full"])
    frames.write(frames.collect([], "record"), paths["empty"])
    return paths


@pytest.mark.parametrize("stem", [*FIGURES, "local_roofline"])
def test_a_figure_is_drawn_from_rows_of_every_kind(stem: str, stored: dict[str, Path], tmp_path: Path) -> None:
    paths = draw([stem], stored["full"], tmp_path)
    assert [path.name for path in paths] == [f"{stem}{suffix}" for suffix in FIGURE_SUFFIXES]
    assert all(path.stat().st_size > 1000 for path in paths)


@pytest.mark.parametrize("stem", FROM_RESULTS + list(LOCAL_FIGURES))
def test_a_figure_without_rows_says_so(
    stem: str, stored: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    really = style.empty_figure

    def listen(why: str) -> Figure:
        said.append(why)
        return really(why)

    monkeypatch.setattr(style, "empty_figure", listen)
    draw([stem], stored["empty"], tmp_path)
    assert len(said) == 1
    assert said[0].endswith(".")


def test_alone_in_another_process_a_figure_is_the_same_bytes(stored: dict[str, Path], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    draw(["fig_energy_per_flop", "fig_accuracy_by_format"], stored["full"], here)
    code = (
        "import sys; from pathlib import Path; from narrowbench.report.catalogue import draw; "
        "draw(['fig_accuracy_by_format'], Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, str(stored["full"]), str(there)]
    subprocess.run(command, check=True, env=environment)
    for path in sorted(there.iterdir()):
        assert path.read_bytes() == (here / path.name).read_bytes(), path.name


def test_figures_shared_among_processes_are_the_same_bytes(stored: dict[str, Path], tmp_path: Path) -> None:
    stems = ["fig_energy_model_check", "fig_window_length", "fig_energy_per_flop"]
    alone = draw(stems, stored["full"], tmp_path / "alone")
    shared = draw(stems, stored["full"], tmp_path / "shared", processes=2)
    assert {path.name: path.read_bytes() for path in shared} == {path.name: path.read_bytes() for path in alone}


def test_an_unknown_figure_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean fig_roofline"):
        draw(["fig_rooflin"], tmp_path / "never_read.parquet", tmp_path)


def test_the_paper_never_shows_this_machine(frame: pd.DataFrame) -> None:
    local = frame.assign(origin=pd.array(["local"] * len(frame), dtype="string"))
    with style.house():
        figure = throughput_by_shape(Material(local), "record")
    assert "No measured GEMM" in figure.axes[0].texts[0].get_text()


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (local_energy_per_flop, "no energy: synthetic: no meter"),
        (local_ratio_to_baseline, "no ratio: baselines alone were measured (xla_dot_bf16, xla_dot_f32)"),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_figure_says_why_this_machine_is_absent(
    module: ModuleType, told: str, is_alone: bool, frame: pd.DataFrame
) -> None:
    own = frame[frame.device == "synthetic-cpu"]
    own = own.assign(origin=pd.array(["local"] * len(own), dtype="string"))
    with style.house():
        figure = module.figure(Material(own if is_alone else pd.concat([own, frame], ignore_index=True)))
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "synthetic synthetic-cpu (this machine)" in texts
    assert told in texts


def test_each_kernel_has_one_legend_key_however_many_panels(frame: pd.DataFrame) -> None:
    with style.house():
        figure = throughput_by_shape(Material(frame), "record")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == in_legend_order(frame[frame.evidence == "measured"].kernel.dropna().unique())
    assert len(figure.axes) > len(figure.legends) == 1


def test_panels_hold_every_line_once_and_squares_before_layers(frame: pd.DataFrame) -> None:
    lines = frame[(frame.kind == "gemm") & (frame.evidence == "measured") & (frame.status == "ok")]
    panels = shape_panels(lines)
    assert sum(len(panel.lines) for panel in panels) == len(lines)
    assert [panel.suite for panel in panels if panel.place.device == "nvidia-h200"][:2] == ["square", "square"]


def test_a_comparison_stands_in_the_suite_that_has_its_shape(make_row: Callable[..., Row]) -> None:
    alone, elsewhere = make_row(suite="square"), make_row(suite="a_suite")
    paired = make_row("xla_dot_fp8_e4m3", suite="interleaved")
    lines = frames.collect([alone, elsewhere, paired], "record")
    kernels = {panel.suite: set(panel.lines.kernel) for panel in shape_panels(lines)}
    assert kernels == {"square": {alone.case.kernel, paired.case.kernel}, "a_suite": {elsewhere.case.kernel}}
    assert [panel.suite for panel in shape_panels(frames.collect([paired], "record"))] == ["interleaved"]
