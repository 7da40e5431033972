import subprocess
import sys
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


def test_a_disk_that_fills_half_way_leaves_the_old_record(tmp_path, record, make_row):
    """A limit on the size of files stands in for the disk's end; the second file is too long for it."""
    rows = [make_row(m=1), *(make_row(m=m, suite="other") for m in range(1, 9))]
    promote(_raw(tmp_path, make_row(m=2), make_row(m=9, suite="other")), record)
    before = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    program = (
        "import resource, sys; from pathlib import Path; from narrowbench.store.promote import promote\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({3 * len(rows[0].model_dump_json())},) * 2)\n"
        "promote([Path(sys.argv[1])], Path(sys.argv[2]))"
    )
    (raw,) = _raw(tmp_path, *rows)
    run = subprocess.run([sys.executable, "-c", program, raw, record], capture_output=True, text=True, timeout=120)
    assert "File too large" in run.stderr
    assert {path: path.read_bytes() for path in record.rglob("*") if path.is_file()} == before


def test_two_at_once_lose_no_row(tmp_path, record, make_row):
    """Each of two processes promotes rows of its own into the same file, one by one."""
    program = (
        "import sys; from pathlib import Path; from narrowbench.store.promote import promote\n"
        "for path in sys.argv[2:]: promote([Path(path)], Path(sys.argv[1]), allow_dirty=True)"
    )
    running = []
    for first in (1, 101):
        paths = [tmp_path / f"{m}.jsonl" for m in range(first, first + 20)]
        for m, path in enumerate(paths, start=first):
            jsonl.append(path, make_row(m=m))
        running.append(subprocess.Popen([sys.executable, "-c", program, record, *paths], stderr=subprocess.PIPE))
    for process in running:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    (path,) = record.rglob("*.jsonl")
    assert sorted(row.case.m for row in jsonl.read([path])) == [*range(1, 21), *range(101, 121)]
    assert [found.name for found in path.parent.iterdir()] == ["smoke.jsonl"]
