from pathlib import Path

import pytest

from narrowbench.errors import StoreError
from narrowbench.store import jsonl
from narrowbench.store.promote import place, promote


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record"


def _raw(tmp_path: Path, *rows) -> list[Path]:
    path = tmp_path / "raw.jsonl"
    path.unlink(missing_ok=True)
    for row in rows:
        jsonl.append(path, row)
    return [path]


def test_rows_go_where_device_kernel_and_suite_say(tmp_path, record, make_row):
    (done,) = promote(_raw(tmp_path, make_row(m=1), make_row(m=2)), record)
    assert done.path == record / "cpu-test" / "xla_dot_f32" / "smoke.jsonl"
    assert (done.added, done.unchanged, done.replaced) == (2, 0, 0)
    assert [row.case.m for row in jsonl.read([done.path])] == [1, 2]


def test_roofs_have_a_file_of_their_own(make_roof_row):
    assert place(make_roof_row()) == Path("cpu-test/roofs.jsonl")


def test_searches_lie_apart_from_results(make_tuning_row):
    assert place(make_tuning_row()) == Path("cpu-test/tuning/hopper_wgmma_fp8/smoke.jsonl")


def test_counters_lie_apart_from_what_is_timed(make_counters_row):
    assert place(make_counters_row()) == Path("cpu-test/counters/hopper_wgmma_fp8.jsonl")


def test_search_spaces_lie_apart_from_what_is_compiled_for_a_campaign(make_space_row):
    assert place(make_space_row()) == Path("cpu-test/space/hopper_wgmma_fp8.jsonl")


def test_promoting_twice_changes_nothing(tmp_path, record, make_row):
    raw = _raw(tmp_path, make_row(m=1))
    (first,) = promote(raw, record)
    before = first.path.read_bytes()
    (second,) = promote(raw, record)
    assert (second.added, second.unchanged, second.replaced) == (0, 1, 0)
    assert second.path.read_bytes() == before


def test_a_different_row_is_replaced_only_on_request(tmp_path, record, make_row):
    (first,) = promote(_raw(tmp_path, make_row(m=1), make_row(m=2)), record)
    before = first.path.read_bytes()
    newer = _raw(tmp_path, make_row(m=1, utc_time="2026-02-01T00:00:00Z"), make_row(m=3))
    with pytest.raises(StoreError, match=r"1 rows differ.*--replace"):
        promote(newer, record)
    assert first.path.read_bytes() == before

    (second,) = promote(newer, record, replace=True)
    assert (second.added, second.unchanged, second.replaced) == (1, 0, 1)
    assert [(row.case.m, row.provenance.utc_time[:7]) for row in jsonl.read([second.path])] == [
        (1, "2026-02"), (2, "2026-01"), (3, "2026-01"),
    ]  # fmt: skip


@pytest.mark.parametrize("unclean", [{"git_dirty": True}, {"git_dirty": None}, {"git_commit": None, "git_dirty": None}])
def test_unknown_or_edited_sources_are_refused_unless_allowed(tmp_path, record, make_row, unclean):
    raw = _raw(tmp_path, make_row(m=1), make_row(m=2, **unclean))
    with pytest.raises(StoreError, match=r"of 2 rows.*--allow-dirty"):
        promote(raw, record)
    assert not record.exists()
    assert promote(raw, record, allow_dirty=True)[0].added == 2


def test_a_damaged_source_promotes_nothing(tmp_path, record, make_row):
    raw = _raw(tmp_path, make_row(m=1))
    raw[0].write_bytes(raw[0].read_bytes() + b"{}\n")
    with pytest.raises(StoreError, match=r"raw.jsonl:2: schema_version"):
        promote(raw, record)
    assert not record.exists()


def test_nothing_to_promote_is_said(tmp_path, record):
    with pytest.raises(StoreError, match="nothing to promote"):
        promote([tmp_path / "absent.jsonl"], record)
