"""Every table in its four forms: SI in CSV, words in the others, nothing made up where nothing is known."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from narrowbench.report import frame as frames
from narrowbench.report import tables
from narrowbench.report.catalogue import TABLE_SUFFIXES, TABLES, tabulate
from narrowbench.report.load import Material
from narrowbench.report.select import Reading
from narrowbench.report.tab_compiled import table as tab_compiled
from narrowbench.report.tab_gemm import table as tab_gemm
from narrowbench.report.tab_provenance import table as tab_provenance
from narrowbench.report.tab_roofs import table as tab_roofs
from narrowbench.report.tab_space import table as tab_space
from narrowbench.report.tab_summary import table as tab_summary
from narrowbench.report.tab_tile_loads import table as tab_tile_loads
from narrowbench.report.tables import Column, Table
from narrowbench.store.rows import Row


@pytest.fixture(scope="module")
def stored(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frames") / "full.parquet"
    frames.write(frame, path)
    return path


def _records(table: Table) -> list[dict[str, object]]:
    return [dict(zip([column.name for column in table.columns], row, strict=True)) for row in table.rows]


@pytest.mark.parametrize("stem", TABLES)
def test_a_table_is_written_in_four_forms(stem: str, stored: Path, tmp_path: Path) -> None:
    paths = tabulate([stem], stored, tmp_path)
    assert {path.name for path in paths} == {f"{stem}{suffix}" for suffix in TABLE_SUFFIXES}
    with (tmp_path / f"{stem}.csv").open(encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert len(lines) > 1
    assert len({len(line) for line in lines}) == 1
    assert rf"\label{{{stem}}}" in (tmp_path / f"{stem}.tex").read_text(encoding="utf-8")


#: Tables that need no row of the record.
FROM_CONFIGURATION = ("tab_aims", "tab_formats", "tab_devices", "tab_claims", "tab_modelled", "tab_tile_loads")


@pytest.mark.parametrize("stem", [stem for stem in TABLES if stem not in FROM_CONFIGURATION])
def test_a_table_without_rows_has_its_head(stem: str, empty_frame: pd.DataFrame, tmp_path: Path) -> None:
    frames.write(empty_frame, tmp_path / "empty.parquet")
    tabulate([stem], tmp_path / "empty.parquet", tmp_path)
    with (tmp_path / f"{stem}.csv").open(encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 1


def test_an_unknown_table_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean tab_gemm"):
        tabulate(["tab_gem"], tmp_path / "never_read.parquet", tmp_path)


def test_missing_is_a_dash_for_people_and_empty_for_machines(tmp_path: Path) -> None:
    table = Table("t", [Column("name", "name"), tables.scaled("time_s", "time", "s", -6)], [["a", None], ["b", 2.5e-6]])
    tables.save(table, "tab_t", tmp_path)
    assert (tmp_path / "tab_t.csv").read_text() == "name,time_s\na,\nb,2.5e-06\n"
    assert "| a | – |" in (tmp_path / "tab_t.md").read_text()
    assert "| b | 2.50 |" in (tmp_path / "tab_t.md").read_text()
    assert "time (µs)" in (tmp_path / "tab_t.md").read_text()


def test_special_characters_stay_themselves() -> None:
    table = Table("50 % & more", [Column("kernel", "a_b")], [[r"x|y\z #1"]])
    assert r"50 \% \& more" in tables.latex(table, "tab_t")
    assert r"x|y\textbackslash{}z \#1" in tables.latex(table, "tab_t")
    assert r"x\|y" in tables.markdown(table)
    assert r"x|y\\z \#1" in tables.typst(table)


def test_gemm_lines_know_their_roof_and_their_baseline(frame: pd.DataFrame) -> None:
    records = _records(tab_gemm(Material(frame)))
    normal = [
        record
        for record in records
        if record["kernel"] == "hopper_wgmma_fp8" and record["m"] == 8192 and record["distribution"] == "normal"
    ]
    assert {record["mode"] for record in normal} == {"burst", "sustained"}
    for record in normal:
        assert record["baseline"] == "xla_dot_fp8_e4m3"
        assert isinstance(record["ratio"], Reading)
        assert record["ratio"].value == pytest.approx(1.03, rel=0.02)
        assert 0.7 < record["share_of_measured_roof"] < 1.0  # type: ignore[operator]
        assert isinstance(record["share_of_sheet_roof"], float)
    zeros = [record for record in records if record["distribution"] == "zeros"]
    assert zeros
    assert all(record["share_of_measured_roof"] <= 1.0 for record in zeros)  # type: ignore[operator]


def test_summary_counts_what_the_intervals_allow(frame: pd.DataFrame) -> None:
    ours = [record for record in _records(tab_summary(Material(frame))) if record["kernel"] == "hopper_wgmma_fp8"]
    assert ours
    for record in ours:
        assert record["compared"] == record["faster"] + record["no_difference"] + record["slower"]  # type: ignore[operator]
        assert record["geometric_mean_ratio"] == pytest.approx(1.03, rel=0.01)


def test_compiled_kernels_show_their_tensor_core_instructions(frame: pd.DataFrame) -> None:
    (record,) = _records(tab_compiled(Material(frame)))
    assert record["multiplies"] == "QGMMA.64x256x32.F32.E4M3.E4M3 ×4"
    assert record["loads"] == 2
    assert record["device"] == "NVIDIA H200 SXM"


def test_a_search_space_is_one_line_of_counts_and_extremes(frame: pd.DataFrame) -> None:
    (record,) = _records(tab_space(Material(frame)))
    assert (record["kernel"], record["device"], record["target"]) == ("hopper_wgmma_fp8", "NVIDIA H200 SXM", "sm_90a")
    counted = [record[name] for name in ("configs", "compiled", "refused", "failed", "spilling")]
    assert counted == [3, 2, 1, 0, 1]
    assert (record["most_registers"], record["fewest_multiplies"], record["most_multiplies"]) == (255, 5, 8)
    assert record["compile_s"] == pytest.approx(3.5)


def test_of_a_search_space_only_the_newest_code_counts(frame: pd.DataFrame) -> None:
    """An older space may have been larger, or in other parts: its configs are no longer what the kernel offers."""
    spaces = frame[frame.kind == "space"].assign(utc_time="2026-02-01T00:00:00Z", kernel_sha256="new")
    older = spaces.assign(utc_time="2026-01-01T00:00:00Z", kernel_sha256="old", registers=300)
    unknown = spaces.assign(utc_time="2025-01-01T00:00:00Z", kernel_sha256=None)
    (record,) = _records(tab_space(Material(pd.concat([older, spaces, unknown], ignore_index=True))))
    assert record == _records(tab_space(Material(spaces)))[0]
    assert (record["configs"], record["most_registers"]) == (3, 255)


def test_counted_loads_are_beside_modelled_ones(frame: pd.DataFrame) -> None:
    counted, *modelled = _records(tab_tile_loads(Material(frame)))
    assert (counted["device"], counted["evidence"]) == ("NVIDIA H200 SXM", "modelled and measured")
    assert (counted["a_tile_loads"], counted["b_tile_loads"]) == (32, 64)
    assert counted["l2_loads"] == pytest.approx((32 + 64) / 2)
    assert counted["counted_l2_read_bytes"] == 32 * 201_326_592
    assert counted["counted_l2_loads"] == pytest.approx(48)
    assert counted["counted_hbm_loads"] == pytest.approx(250e6 / 2 / 8192**2)
    assert {record["evidence"] for record in modelled} == {"modelled"}
    assert all(record["counted_hbm_loads"] is None for record in modelled)


def test_a_vendors_loads_are_counted_alone(make_counters_row: Callable[..., Row]) -> None:
    frame = frames.collect([make_counters_row("xla_dot_fp8_e4m3")], "record")
    counted = _records(tab_tile_loads(Material(frame)))[0]
    assert (counted["kernel"], counted["evidence"]) == ("xla_dot_fp8_e4m3", "measured")
    assert counted["tile"] is None
    assert counted["l2_loads"] is None
    assert counted["counted_l2_loads"] == pytest.approx(48)


def test_roofs_are_beside_the_data_sheet_where_there_is_one(frame: pd.DataFrame) -> None:
    records = _records(tab_roofs(Material(frame)))
    memory = next(r for r in records if r["device"] == "NVIDIA H200 SXM" and r["roof"] == "memory")
    assert memory["share"] == pytest.approx(4.2 / 4.8, rel=0.02)
    assert all(r["data_sheet"] is None for r in records if "cpu" in str(r["device"]))


def test_provenance_lists_every_version_that_differs(frame: pd.DataFrame) -> None:
    other = frame.copy()
    index = other.index[(other.device == "nvidia-h200") & (other.evidence == "measured")][0]
    other.loc[index, "versions"] = json.dumps({"jax": "0.99"})
    records = {(r["device"], r["evidence"]): r for r in _records(tab_provenance(Material(other)))}
    assert records["NVIDIA H200 SXM", "measured"]["versions"] == "driver synthetic, jax 0.11.2 and 0.99"
    assert records["NVIDIA H200 SXM", "measured"]["other"] == 1
    assert records["NVIDIA H200 SXM", "compiled"]["ok"] == 3
