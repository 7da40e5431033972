"""Three roofs over sustained cases, the energy model where the record can carry it, and ranges for absent devices."""

from collections.abc import Callable
from itertools import product

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from narrowbench.models.energy import FLOP, HBM, L2, P0, EnergyModel
from narrowbench.models.energy import Coefficient as Given
from narrowbench.models.prediction import halves
from narrowbench.models.samples import energy_samples, memory_samples
from narrowbench.report import fig_energy_model_check, fig_energy_roofline, fig_three_roofs, style
from narrowbench.report import frame as frames
from narrowbench.report.absent import absent_devices
from narrowbench.report.energy_model import energy_fit
from narrowbench.report.held_roofs import held_places, held_points
from narrowbench.report.load import Material
from narrowbench.report.select import Place
from narrowbench.store.rows import Row

H200 = Place("record", "nvidia-h200")
TRUE = {"fp8_e4m3 × fp8_e4m3, normal": 3e-13, "bf16 × bf16, normal": 6e-13}
SHARED = {HBM: 5e-11, L2: 1e-11, P0: 120.0}


def test_the_lowest_roof_is_named_at_each_case(rows: list[Row]) -> None:
    """Synthetic cases draw 690 of 700 W at 1.4 GHz and reach 95 % of a rate below the sheet's: power binds."""
    points = held_points(Material(frames.collect(rows, "record")), H200)
    square = [point for point in points if point.line.m == 8192]
    assert {point.binding for point in square} == {"power"}
    for point in square:
        power = float(point.line.flop_per_s) * 700 / 690
        assert point.roofs.power_flop_per_s == pytest.approx(power, rel=0.03)
    fp8 = next(point for point in square if point.key == "fp8")
    assert fp8.roofs.arithmetic_flop_per_s == pytest.approx(1978.9e12 * 1.4 / 1.83, rel=1e-3)


def test_with_power_to_spare_the_memory_binds_a_decode_case(frame: pd.DataFrame) -> None:
    spare = frame.assign(power_limit_w=frame.power_limit_w * 2)
    points = held_points(Material(spare), H200)
    assert {point.binding for point in points if point.line.m == 1} == {"memory"}
    assert {point.binding for point in points if point.line.m == 8192} == {"arithmetic"}


def test_a_device_without_a_meter_has_no_third_roof(frame: pd.DataFrame) -> None:
    assert held_places(Material(frame)) == [H200]


@pytest.mark.parametrize("module", [fig_three_roofs, fig_energy_roofline])
def test_what_was_not_measured_is_hatched_and_says_modelled(module: object, frame: pd.DataFrame) -> None:
    with style.house():
        drawn = module.figure(Material(frame))  # type: ignore[attr-defined]
    ranges = drawn.axes[-1]
    bars = [patch for patch in ranges.patches if isinstance(patch, Rectangle)]
    assert len(bars) > 20
    assert all(bar.get_hatch() and bar.get_facecolor()[3] == 0 for bar in bars)
    assert "modelled" in ranges.get_xlabel()
    names = [label.get_text() for label in ranges.get_yticklabels()]
    assert len(names) == len(absent_devices(Material(frame)))
    assert not any("H200" in name for name in names)


def test_a_record_too_small_for_the_energy_model_says_so(make_row: Callable[..., Row]) -> None:
    fit = energy_fit(Material(frames.collect([make_row(mode="sustained")], "record")), H200)
    assert fit.model is None
    assert fit.why_not == "too few runs: 1 of 4 that 3 coefficients need"


@pytest.fixture(scope="module")
def grown(make_row: Callable[..., Row], rows: list[Row]) -> Material:
    """Cases of many shapes and tiles whose joules are those of a known model, and reads of memory."""
    cases = [
        _tiled(make_row(kernel, (m, n, k), mode="sustained"), tile_n)
        for (kernel, tile_n), m, (n, k) in product(
            (("hopper_wgmma_fp8", 256), ("hopper_wgmma_bf16", 128)),
            (1, 64, 512, 4096),
            ((4096, 4096), (28672, 8192), (2048, 1024)),
        )
    ]
    roofs = [row for row in rows if row.case.kind == "roof" and row.provenance.device == "nvidia-h200"]
    frame = frames.collect([*cases, *roofs], "record")
    material = Material(frame)
    given = SHARED | {FLOP + group: value for group, value in TRUE.items()}
    model = EnergyModel({key: Given(value, None) for key, value in given.items()})
    samples = energy_samples(frame, material.profiles) + memory_samples(frame, material.profiles)
    joules = {sample.time_s: model.energy_j(sample) for sample in samples}
    return Material(frame.assign(**_columns(frame, joules)))


def _tiled(row: Row, tile_n: int) -> Row:
    assert row.config is not None
    return row.model_copy(update={"config": {**row.config, "tile_n": tile_n}})


def _columns(frame: pd.DataFrame, joules: dict[float, float]) -> dict[str, pd.Series]:
    energy = frame.time_s.map(joules).astype("float64")
    per_flop = energy / frame.flop.astype("float64")
    idle = pd.Series(SHARED[P0], frame.index).where(energy.notna())
    return {"energy_j": energy, "idle_w": idle} | {f"j_per_flop{end}": per_flop for end in ("", "_low", "_high")}


def _texts(drawn: Figure) -> list[str]:
    return [text.get_text() for axes in drawn.axes for text in axes.texts]


def test_a_small_record_says_how_many_runs_it_has_and_how_many_are_needed(make_row: Callable[..., Row]) -> None:
    with style.house():
        drawn = fig_energy_model_check.figure(Material(frames.collect([make_row(mode="sustained")], "record")))
    said = [" ".join(text.split()) for text in _texts(drawn)]
    assert said == ["Too few runs: 1 of 4 that 3 coefficients need.", "No coefficients yet."]


def test_the_check_shows_the_runs_that_the_fit_did_not_see_and_its_coefficients(grown: Material) -> None:
    fit = energy_fit(grown, H200)
    assert fit.model is not None
    with style.house():
        left, right = fig_energy_model_check.figure(grown).axes
    points = [line for line in left.lines if line.get_linestyle() == "None"]
    measured = sorted(x for line in points for x in line.get_xdata())
    assert measured == sorted(sample.energy_j for sample in fit.tested)
    for line in points:
        assert list(line.get_ydata()) == pytest.approx(list(line.get_xdata()), rel=0.02)
    assert any("median absolute error" in text.get_text() for text in left.texts)
    names = [label.get_text() for label in right.get_yticklabels()]
    assert names == ["bf16 × bf16, normal", "fp8 e4m3 × fp8 e4m3, normal"]
    middles = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"]
    assert middles == pytest.approx([0.6, 0.3], rel=0.02)
    assert "P_0 120 [" in right.get_xlabel()


def test_data_have_coefficients_of_their_own(grown: Material) -> None:
    """A large shape of the half that is fitted again, on zeros, whose arithmetic costs half as much."""
    fitted, _ = halves(energy_samples(grown.frame, grown.profiles))
    large = max((sample for sample in fitted if sample.kernel == "hopper_wgmma_fp8"), key=lambda sample: sample.flop)
    lines = grown.frame
    again = lines[(lines.kernel == large.kernel) & (lines.flop == large.flop)]
    saved_j = TRUE["fp8_e4m3 × fp8_e4m3, normal"] / 2 * large.flop
    zeros = again.assign(distribution="zeros", energy_j=again.energy_j - saved_j)
    fit = energy_fit(Material(pd.concat([lines, zeros], ignore_index=True)), H200)
    assert fit.model is not None, fit.why_not
    assert fit.model.coefficients[FLOP + "fp8_e4m3 × fp8_e4m3, zeros"].value == pytest.approx(1.5e-13, rel=0.1)


def test_a_grown_record_gives_the_energy_model_back(grown: Material) -> None:
    fit = energy_fit(grown, H200)
    assert fit.model is not None, fit.why_not
    found = {key: coefficient.value for key, coefficient in fit.model.coefficients.items()}
    assert found == pytest.approx({**SHARED, **{FLOP + group: value for group, value in TRUE.items()}}, rel=0.05)
    assert fit.check is not None
    assert fit.check.median_absolute < 0.01


def test_constant_power_is_the_idle_power_that_was_read_even_where_all_ran_at_the_limit(grown: Material) -> None:
    """Joules of the limit times time: a free P_0 would be the limit, and arithmetic and bytes would cost nothing."""
    capped = grown.frame.assign(energy_j=(700 * grown.frame.time_s).where(grown.frame.energy_j.notna()))
    fit = energy_fit(Material(capped), H200)
    assert fit.model is not None, fit.why_not
    constant = fit.model.coefficients[P0]
    assert (constant.value, constant.interval and constant.interval.low) == (120, 120)
    assert fit.model.coefficients[FLOP + "fp8_e4m3 × fp8_e4m3, normal"].value > 1e-13


def test_without_a_reading_of_idle_power_there_is_no_model(grown: Material) -> None:
    fit = energy_fit(Material(grown.frame.assign(idle_w=float("nan"))), H200)
    assert fit.model is None
    assert "was not read" in fit.why_not


def test_the_energy_roofline_is_drawn_once_the_model_is_there(grown: Material) -> None:
    with style.house():
        axes = fig_energy_roofline.figure(grown).axes[0]
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert len(dotted) == 2
    assert any("energy model (modelled), fitted on" in text.get_text() for text in axes.texts)
