import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tune import table
from narrowgemm.tune.table import Entry, Origin

KERNEL, DEVICE = "hopper_wgmma_fp8", "nvidia-h200"
ORIGIN = Origin("0.11.2", "2026-01-01", "5" * 64)


@pytest.fixture(autouse=True)
def _own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TUNED", tmp_path)


def problem(m: int, **changes: Any) -> GemmProblem:
    return dataclasses.replace(GemmProblem(m, 4096, 8192, "fp8_e4m3", "fp8_e4m3"), **changes)


def entry(m: int, **changes: Any) -> Entry:
    known = Entry(problem(m), {"tile_m": 128, "tile_n": 256, "split": None}, 1.25e-4, 75, ORIGIN)
    return dataclasses.replace(known, **changes)


def spoil(change: Any) -> Path:
    """A table of one entry, changed by `change(its JSON)`."""
    table.merge(KERNEL, DEVICE, [entry(16)])
    path = table.path_of(KERNEL, DEVICE)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    table._read.cache_clear()
    return path


def test_what_is_written_is_looked_up_by_the_exact_problem() -> None:
    table.merge(KERNEL, DEVICE, [entry(16), entry(64, config={"tile_m": 64})])
    assert table.lookup(KERNEL, problem(16), DEVICE) == {"tile_m": 128, "tile_n": 256, "split": None}
    assert table.lookup(KERNEL, problem(64), DEVICE) == {"tile_m": 64}
    assert table.entries(KERNEL, DEVICE) == (entry(16), entry(64, config={"tile_m": 64}))
    for other in (problem(17), problem(16, out_format="f32"), problem(16, a_format="fp8_e5m2")):
        assert table.lookup(KERNEL, other, DEVICE) is None
    assert table.lookup(KERNEL, problem(16), "nvidia-h100-80gb-hbm3") is None
    assert table.lookup("hopper_wgmma_bf16", problem(16), DEVICE) is None


def test_without_a_table_there_is_nothing() -> None:
    assert table.entries(KERNEL, DEVICE) == ()
    assert table.table_sha256(KERNEL, DEVICE) is None
    table.merge(KERNEL, DEVICE, [entry(16)])
    assert table.lookup(KERNEL, problem(16), DEVICE) is not None
    assert table.table_sha256(KERNEL, DEVICE) is not None


def test_the_bytes_depend_on_what_is_in_it_alone() -> None:
    table.merge(KERNEL, DEVICE, [entry(64), entry(16)])
    together = table.path_of(KERNEL, DEVICE).read_bytes()
    digest = table.table_sha256(KERNEL, DEVICE)
    table.path_of(KERNEL, DEVICE).unlink()
    for m in (16, 64, 16):
        table.merge(KERNEL, DEVICE, [entry(m, config=dict(reversed(entry(m).config.items())))])
    assert table.path_of(KERNEL, DEVICE).read_bytes() == together
    assert table.table_sha256(KERNEL, DEVICE) == digest


def test_a_new_search_replaces_the_line_of_its_problem_and_no_other() -> None:
    table.merge(KERNEL, DEVICE, [entry(16), entry(64)])
    before = table.path_of(KERNEL, DEVICE).read_text().splitlines()
    table.merge(KERNEL, DEVICE, [entry(64, median_s=1.0e-4, tried=80)])
    after = table.path_of(KERNEL, DEVICE).read_text().splitlines()
    assert [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [6]
    assert table.entries(KERNEL, DEVICE)[1].tried == 80


def test_a_choice_that_a_table_does_not_know_yet_is_left_to_its_default() -> None:
    table.merge(KERNEL, DEVICE, [entry(16, config={"tile_m": 64})])
    config = kernel_named(KERNEL).config_type(**(table.lookup(KERNEL, problem(16), DEVICE) or {}))
    assert config == kernel_named(KERNEL).config_type(tile_m=64)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.update(schema_version="2.0"), "schema_version is '2.0' where this narrowgemm reads '1.0'"),
        (lambda d: d.pop("schema_version"), "schema_version is None"),
        (lambda d: d.update(devcie="x"), "unknown field 'devcie'; did you mean device?"),
        (lambda d: d.update(device="nvidia-b200"), "device is 'nvidia-b200', not 'nvidia-h200' as its place says"),
        (lambda d: d.update(entries={}), "entries is dict, not a list"),
        (lambda d: d["entries"].append(d["entries"][0]), "entries has GemmProblem.*m=16.* twice"),
        (lambda d: d["entries"][0].pop("config"), r"entries\.0: the field 'config' is missing"),
        (lambda d: d["entries"][0].update(medain_s=1), r"entries\.0: unknown field 'medain_s'; did you mean median_s"),
        (lambda d: d["entries"][0].update(median_s=0.0), r"entries\.0\.median_s: 0\.0 is no positive number"),
        (lambda d: d["entries"][0].update(median_s="1"), r"entries\.0\.median_s: '1' is no positive number"),
        (lambda d: d["entries"][0].update(tried=0), r"entries\.0\.tried: 0 is no number of configs"),
        (lambda d: d["entries"][0].update(config=[]), r"entries\.0\.config: \[\] is no mapping"),
        (lambda d: d["entries"][0]["config"].update(tile_m=[1]), r"entries\.0\.config\.tile_m: \[1\] is no single"),
        (lambda d: d["entries"][0]["problem"].update(m=0), r"entries\.0\.problem: GemmProblem: m=0 is not"),
        (lambda d: d["entries"][0]["problem"].update(q=0), r"entries\.0\.problem: unknown field 'q'"),
        (lambda d: d["entries"][0]["problem"].pop("k"), r"entries\.0\.problem: the field 'k' is missing"),
        (lambda d: d["entries"][0]["origin"].update(date=2026), r"entries\.0\.origin\.date: 2026 is no text"),
    ],
)
def test_a_spoilt_table_is_refused_with_file_and_field(change: Any, text: str) -> None:
    path = spoil(change)
    with pytest.raises(ValueError, match=text) as error:
        table.lookup(KERNEL, problem(16), DEVICE)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", [b"", b'{"schema_version": "1.0"', b"\xff\xfe", b"[]"])
def test_a_file_that_is_no_table_is_refused(content: bytes) -> None:
    path = table.path_of(KERNEL, DEVICE)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=str(path)):
        table.table_sha256(KERNEL, DEVICE)
    with pytest.raises(ValueError, match=str(path)):
        table.merge(KERNEL, DEVICE, [entry(16)])
    assert path.read_bytes() == content


def test_an_entry_that_could_not_be_read_again_is_not_written() -> None:
    table.merge(KERNEL, DEVICE, [entry(16)])
    before = table.path_of(KERNEL, DEVICE).read_bytes()
    with pytest.raises(ValueError, match=r"config\.tile_m: \[128\] is no single choice"):
        table.merge(KERNEL, DEVICE, [entry(64, config={"tile_m": [128]})])
    assert table.path_of(KERNEL, DEVICE).read_bytes() == before
    assert [path.name for path in table.path_of(KERNEL, DEVICE).parent.iterdir()] == [f"{KERNEL}.json"]


def test_a_text_that_is_cut_anywhere_is_refused() -> None:
    table.merge(KERNEL, DEVICE, [entry(16)])
    path = table.path_of(KERNEL, DEVICE)
    whole = path.read_bytes()
    for kept in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:kept])
        table._read.cache_clear()
        with pytest.raises(ValueError, match=str(path)):
            table.lookup(KERNEL, problem(16), DEVICE)
