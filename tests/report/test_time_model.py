"""The time model is fitted where the record holds enough, and says in words what lacks where it does not."""

from collections.abc import Callable, Iterator
from itertools import product

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from narrowbench.models.kerneltime import Coefficients, predict_s
from narrowbench.models.samples import kernel_runs
from narrowbench.report import frame as frames
from narrowbench.report import style
from narrowbench.report.fig_kernel_time_check import figure
from narrowbench.report.load import Material
from narrowbench.report.tab_modelled import table
from narrowbench.report.tab_tile_loads import table as tile_loads
from narrowbench.report.time_model import NEEDED_RUNS, time_model
from narrowbench.store.rows import Row

TRUE = Coefficients(mma=0.8, memory=0.85, l2_bytes_per_cycle=80, tile_cycles=2000, start_s=4e-6)
KERNELS = ("hopper_wgmma_bf16", "hopper_wgmma_fp8")
SHAPES = [(m, n, k) for m in (64, 512, 2048, 8192) for n, k in ((4096, 4096), (28672, 8192), (2048, 1024))]


def _timed(row: Row, time_s: float) -> Row:
    assert row.timing is not None
    timing = row.timing.model_copy(update={"samples_s": (time_s,) * len(row.timing.samples_s)})
    return row.model_copy(update={"timing": timing})


@pytest.fixture(scope="module")
def grown(make_row: Callable[..., Row]) -> Material:
    """A record whose every launch takes the time of the model itself."""
    rows = [make_row(kernel, shape) for kernel in KERNELS for shape in SHAPES]
    first = Material(frames.collect([_timed(row, 1e-3) for row in rows], "record"))
    times = {(run.kernel, run.shape): predict_s(run, TRUE) for run in kernel_runs(first.frame, first.profiles)}
    timed = [
        _timed(row, times[kernel, shape]) for row, (kernel, shape) in zip(rows, product(KERNELS, SHAPES), strict=True)
    ]
    return Material(frames.collect(timed, "record"))


def _texts(material: Material) -> list[str]:
    with style.house():
        return [text.get_text() for axes in figure(material).axes for text in axes.texts]


def test_a_grown_record_fits_and_tests_the_model(grown: Material) -> None:
    model = time_model(grown)
    assert model.check is not None
    assert (len(model.fitted), len(model.tested)) == (12, 12)
    assert not {run.shape for run in model.fitted} & {run.shape for run in model.tested}
    assert model.check.median_absolute < 0.02
    assert any("median absolute error" in text and "bias" in text for text in _texts(grown))


def test_a_small_record_says_how_many_runs_it_has_and_how_many_are_needed(make_row: Callable[..., Row]) -> None:
    rows = [_timed(make_row(KERNELS[0], shape), 1e-3) for shape in SHAPES[:5]]
    small = Material(frames.collect(rows, "record"))
    model = time_model(small)
    assert (model.check, model.coefficients) == (None, Coefficients())
    said = " ".join(_texts(small)).replace("\n", " ")
    assert "5 runs of 5 shapes" in said
    assert f"3 in the half for fitting, which needs {NEEDED_RUNS}" in said
    assert "assumed, not fitted" in table(small).note


def test_kernels_that_never_ran_are_hollow_and_say_so(grown: Material) -> None:
    with style.house():
        drawn = figure(grown)
    by_label = {text.get_text(): handle for text, handle in _legend(drawn)}
    assert {label.endswith("(modelled)") for label in by_label} == {True, False}
    for label, handle in by_label.items():
        is_hollow = handle.get_markerfacecolor() == "none"
        assert is_hollow == label.startswith("blackwell_") == label.endswith("(modelled)")


def _legend(drawn: Figure) -> Iterator[tuple[Text, Line2D]]:
    legend = drawn.legends[0]
    return zip(legend.get_texts(), legend.get_lines(), strict=True)


def test_every_line_of_the_tables_is_modelled(grown: Material) -> None:
    for made in (table(grown), tile_loads(grown)):
        names = [column.name for column in made.columns]
        assert made.rows
        assert {row[names.index("evidence")] for row in made.rows} == {"modelled"}
    assert "Coefficients are fitted on 12 runs" in table(grown).note


def test_a_tile_of_an_operand_is_loaded_many_times(empty_frame: pd.DataFrame) -> None:
    made = tile_loads(Material(empty_frame))
    names = [column.name for column in made.columns]
    loads = [(row[names.index("a_tile_loads")], row[names.index("b_tile_loads")]) for row in made.rows]
    assert min(max(pair) for pair in loads) >= 16
