import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from narrowbench.errors import StoreError
from narrowbench.store import jsonl
from narrowbench.store.rows import SCHEMA_VERSION, Row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cpu" / "xla_dot_f32" / "smoke.jsonl"


def test_rows_come_back_as_they_went_in(path, make_row):
    rows = [make_row(m=m) for m in (1, 2, 3)]
    for row in rows:
        jsonl.append(path, row)
    found = jsonl.scan(path)
    assert list(found.rows) == rows
    assert not found.faults
    assert found.torn_bytes == 0


def test_a_missing_file_holds_nothing(path):
    assert jsonl.scan(path) == jsonl.resume(path) == jsonl.Scan((), (), 0)
    assert not path.exists()


def _damage(path: Path, make_row, line: bytes) -> jsonl.Scan:
    """Three rows, the middle one replaced by `line`; returns what a scan finds."""
    for m in (1, 2, 3):
        jsonl.append(path, make_row(m=m))
    first, _, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + last)
    found = jsonl.scan(path)
    assert [row.case.m for row in found.rows] == [1, 3]
    (fault,) = found.faults
    assert (fault.path, fault.line) == (path, 2)
    return found


@pytest.mark.parametrize(
    "line", [b"", b"{", b"\xff\xfe", b"null", b"[1]"], ids=["blank", "cut", "not text", "null", "list"]
)
def test_a_corrupt_line_loses_itself_alone(path, make_row, line):
    _damage(path, make_row, line)


def test_a_fault_names_file_line_and_field(path, make_row):
    data = json.loads(make_row().model_dump_json())
    data["timing"]["samples_s"][1] = -1.0
    found = _damage(path, make_row, json.dumps(data).encode())
    assert found.faults[0].field == "timing.samples_s.1"
    assert str(found.faults[0]).startswith(f"{path}:2: timing.samples_s.1: ")


def test_an_unknown_key_is_a_fault(path, make_row):
    data = json.loads(make_row().model_dump_json()) | {"reasn": "typo"}
    assert _damage(path, make_row, json.dumps(data).encode()).faults[0].field == "reasn"


@pytest.mark.parametrize(
    ("version", "later"),
    [
        ("1.0", ("tuning", "window_readings", "counters", "space")),
        ("1.1", ("window_readings", "counters", "space")),
        ("1.2", ("counters", "space")),
        ("1.3", ("space",)),
    ],
)
def test_rows_of_an_older_minor_version_are_read(path, make_row, version, later):
    """Without the fields that came later."""
    data = json.loads(make_row(m=1).model_dump_json()) | {"schema_version": version}
    for name in later:
        del data[name]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data) + "\n")
    (row,) = jsonl.read([path])
    assert row.model_copy(update={"schema_version": SCHEMA_VERSION}) == make_row(m=1)


def test_counted_rows_come_back_as_they_went_in(path, make_counters_row):
    jsonl.append(path, make_counters_row())
    assert jsonl.read([path]) == [make_counters_row()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"counters": None}, "has counters"),
        ({"accuracy": None}, "has accuracy"),
        ({"timing": True}, "is not timed"),
    ],
)
def test_a_counted_row_has_counters_and_no_timing(make_row, make_counters_row, changes, told):
    if "timing" in changes:
        changes = {"timing": make_row().timing}
    with pytest.raises(ValueError, match=told):
        Row.model_validate(make_counters_row().model_dump() | changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"status": "failed"}, "it is compiled, or has its reason"),
        ({"reason": "synthetic"}, "it is compiled, or has its reason"),
        ({"compile_s": None}, "it is compiled, or has its reason"),
    ],
)
def test_a_config_of_a_space_is_compiled_or_says_why_not(make_space_row, changes, told):
    data = make_space_row().model_dump()
    data["space"]["configs"][0] |= changes
    with pytest.raises(ValueError, match=told):
        Row.model_validate(data)


def test_only_an_ok_space_case_has_a_space(make_row, make_space_row):
    row = make_space_row()
    for data in (row.model_dump() | {"space": None}, make_row().model_dump() | {"space": row.space}):
        with pytest.raises(ValueError, match="a space is of an ok space case"):
            Row.model_validate(data)


def test_what_is_timed_has_no_counters(make_row, make_counters_row):
    with pytest.raises(ValueError, match="counters are of a counters case"):
        Row.model_validate(make_row().model_dump() | {"counters": make_counters_row().counters})


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        ({"status": "failed"}, "every status but ok has its reason"),
        ({"time_s": None}, "an ok trial has its time"),
        ({"rank": -1}, "greater than or equal to 0"),
    ],
)
def test_a_trial_is_whole(make_tuning_row, spoilt, told):
    data = make_tuning_row().model_dump()
    data["tuning"]["trials"][0] |= spoilt
    with pytest.raises(ValueError, match=told):
        Row.model_validate(data)


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.99", "1", None, 1.0, "one"])
def test_another_schema_version_is_named_with_ours(path, make_row, version):
    data = json.loads(make_row().model_dump_json()) | {"schema_version": version}
    fault = _damage(path, make_row, json.dumps(data).encode()).faults[0]
    assert fault.field == "schema_version"
    assert repr(version) in fault.reason
    assert SCHEMA_VERSION in fault.reason


def test_a_fault_shows_the_value_that_broke_the_rule(path, make_row):
    data = make_row().model_dump(mode="json")
    data["case"]["m"] = -5
    fault = _damage(path, make_row, json.dumps(data).encode()).faults[0]
    assert fault.field == "case.gemm.m"
    assert fault.reason == "Input should be greater than 0, not -5"


@pytest.mark.parametrize("kept", [1, 40, -1], ids=["one byte", "some bytes", "all but the newline"])
def test_a_torn_last_line_is_never_parsed_and_is_cut_on_resuming(path, make_row, kept):
    for m in (1, 2):
        jsonl.append(path, make_row(m=m))
    whole = path.read_bytes()
    line = make_row(m=3).model_dump_json().encode() + b"\n"
    path.write_bytes(whole + line[:kept])

    found = jsonl.scan(path)
    assert [row.case.m for row in found.rows] == [1, 2]
    assert found.torn_bytes == len(line[:kept])
    with pytest.raises(StoreError, match="torn"):
        jsonl.append(path, make_row(m=4))
    with pytest.raises(StoreError, match=r"smoke\.jsonl:3: the last line is torn.*\nmend these lines or take them out"):
        jsonl.read([path])

    assert jsonl.resume(path).torn_bytes == len(line[:kept])
    assert path.read_bytes() == whole
    jsonl.append(path, make_row(m=4))
    assert [row.case.m for row in jsonl.read([path])] == [1, 2, 4]


def test_read_lists_every_fault_of_every_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text("{\n")
    with pytest.raises(StoreError) as caught:
        jsonl.read([tmp_path / "one", tmp_path / "two"])
    assert f"{tmp_path / 'one'}:1" in str(caught.value)
    assert f"{tmp_path / 'two'}:1" in str(caught.value)


def test_newest_keeps_the_last_row_of_a_case(make_row):
    old = make_row(m=1, utc_time="2026-01-01T00:00:00Z")
    new = make_row(m=1, utc_time="2026-01-02T00:00:00Z")
    other = make_row(m=2, utc_time="2026-01-01T00:00:00Z")
    assert jsonl.newest([new, other, old]) == [new, other]


#: Run by a fresh Python: appends the rows of standard input to the file named first, saying how far it came.
_WRITER = textwrap.dedent("""
    import resource, signal, sys
    from pathlib import Path
    from narrowbench.store import jsonl
    from narrowbench.store.rows import Row
    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    rows = [Row.model_validate_json(line) for line in sys.stdin]
    done = {row.key for row in jsonl.resume(path).rows}
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for row in rows:
        if row.key not in done:
            jsonl.append(path, row)
            print(row.case.m, flush=True)
""")


def _write_in_another_process(path: Path, rows: list[Row], limit_bytes: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(limit_bytes)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.writelines(row.model_dump_json() + "\n" for row in rows)
    process.stdin.close()
    return process


def test_a_killed_writer_resumes_and_no_case_is_lost_or_doubled(path, make_row):
    rows = [make_row(m=m) for m in range(1, 201)]
    with _write_in_another_process(path, rows) as killed:
        assert killed.stdout is not None
        while killed.stdout.readline().strip() != "20":
            pass
        killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    survived = jsonl.scan(path)
    assert not survived.faults
    assert 20 <= len(survived.rows) < 200
    path.write_bytes(path.read_bytes() + b'{"schema_version": "1.')  # what a kill inside a write can leave

    with _write_in_another_process(path, rows) as resumed:
        assert resumed.stdout is not None
        assert resumed.stdout.read().split() == [str(m) for m in range(len(survived.rows) + 1, 201)]
    assert resumed.wait() == 0
    assert [row.case.m for row in jsonl.read([path])] == list(range(1, 201))


def test_a_full_disk_leaves_whole_lines_only(path, make_row):
    rows = [make_row(m=m) for m in range(1, 11)]
    limit_bytes = int(3.5 * len(rows[0].model_dump_json()))
    with _write_in_another_process(path, rows, limit_bytes) as process:
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.wait() == 1
    assert "OSError" in message
    found = jsonl.scan(path)
    assert [row.case.m for row in found.rows] == [1, 2, 3]
    assert found.torn_bytes == 0


def test_a_disk_that_refuses_to_sync_takes_the_line_back(path, make_row, monkeypatch):
    jsonl.append(path, make_row(m=1))
    before = path.read_bytes()

    def no_space(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        jsonl.append(path, make_row(m=2))
    assert path.read_bytes() == before


def test_the_key_of_a_case_without_an_epilogue_is_what_stored_rows_have(make_row):
    assert '"out_format":"f32","layout":"mk_nk","epilogue":"none","distribution":"normal","seed":0' in make_row().key


def test_an_epilogue_is_another_case_and_a_misspelt_one_is_none(make_row):
    row = make_row()
    finished = row.case.model_validate(row.case.model_dump() | {"epilogue": "scales_bias_gelu"})
    assert finished.model_dump_json() == row.case.model_dump_json().replace('"none"', '"scales_bias_gelu"')
    with pytest.raises(ValueError, match="unknown epilogue part 'gleu'; did you mean gelu"):
        row.case.model_validate(row.case.model_dump() | {"epilogue": "bias_gleu"})
