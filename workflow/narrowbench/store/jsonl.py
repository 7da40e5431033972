"""Rows in files, one JSON line each: appended so that a crash loses at most the line being written, and read so that
a damaged line costs itself alone."""

import errno
import fcntl
import json
import os
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from narrowbench.errors import StoreError
from narrowbench.store.rows import SCHEMA_VERSION, Row

#: How every line begins.
_START = b'{"schema_version":'


@dataclass(frozen=True)
class Fault:
    """One line that is no row: where, which field (None where the line as a whole is at fault), and why."""

    path: Path
    line: int
    field: str | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}"
        return f"{where}: {self.field}: {self.reason}" if self.field else f"{where}: {self.reason}"


@dataclass(frozen=True)
class Scan:
    """What a file holds: its rows in order, its faults, and the bytes of a last line that was never finished."""

    rows: tuple[Row, ...]
    faults: tuple[Fault, ...]
    torn_bytes: int


def append(path: Path, row: Row) -> None:
    """Put one row at the end of the file, on the disk before this returns.

    Raises StoreError where the file ends in a torn line, OSError where the disk refuses; the file then still
    holds whole lines only.
    """
    line = row.model_dump_json().encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            raise StoreError(f"{path}: ends in a torn line; resume the file first, which cuts it")
        try:
            written = os.pwrite(descriptor, line, size)
            if written < len(line):
                raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes written", str(path))
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise


def scan(path: Path) -> Scan:
    """Everything the file holds; a file that does not exist holds nothing. Damaged lines become faults."""
    return _scan_bytes(path, path.read_bytes() if path.exists() else b"")


def resume(path: Path) -> Scan:
    """Scan the file and cut a torn last line off it, so that appending can go on. `torn_bytes` tells what was cut.

    Raises StoreError, and cuts nothing, where the file holds something and it is no result: it is another's.
    """
    if not path.exists():
        return Scan((), (), 0)
    with _locked(path) as descriptor:
        found = scan(path)
        _check_ours(path, found)
        if found.torn_bytes:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - found.torn_bytes)
            os.fsync(descriptor)
    return found


def _check_ours(path: Path, found: Scan) -> None:
    """A file without a row is ours if a crash left nothing but the beginning of the first."""
    with path.open("rb") as file:
        start = file.read(len(_START))
    if found.rows or (not found.faults and _START.startswith(start)):
        return
    told = f"; the first fault: {found.faults[0]}" if found.faults else ""
    raise StoreError(f"{path}: holds no result that can be read here, so nothing is appended; name another file{told}")


def read(paths: Iterable[Path]) -> list[Row]:
    """All rows of undamaged files. Raises StoreError that lists every fault of every file, and says what to do."""
    rows: list[Row] = []
    complaints: list[str] = []
    for path in paths:
        found = scan(path)
        rows += found.rows
        complaints += map(str, found.faults)
        if found.torn_bytes:
            line = len(found.rows) + len(found.faults) + 1
            complaints.append(f"{path}:{line}: the last line is torn ({found.torn_bytes} bytes without an end)")
    if complaints:
        raise StoreError("\n".join([*complaints, "mend these lines or take them out; nothing was changed"]))
    return rows


def newest(rows: Iterable[Row]) -> list[Row]:
    """One row for each case and kind of evidence, the one finished last, in order of first appearance."""
    chosen: dict[tuple[str, str], Row] = {}
    for row in rows:
        identity = (row.evidence, row.key)
        if identity not in chosen or row.provenance.utc_time >= chosen[identity].provenance.utc_time:
            chosen[identity] = row
    return list(chosen.values())


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file open for reading and writing, under a lock that other writers of it wait for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _scan_bytes(path: Path, data: bytes) -> Scan:
    *lines, tail = data.split(b"\n")
    rows: list[Row] = []
    faults: list[Fault] = []
    for number, line in enumerate(lines, start=1):
        parsed = _parse(path, number, line)
        if isinstance(parsed, Row):
            rows.append(parsed)
        else:
            faults.append(parsed)
    return Scan(tuple(rows), tuple(faults), len(tail))


def _parse(path: Path, number: int, line: bytes) -> Row | Fault:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:  # of JSON or of UTF-8, and of brackets without end
        return Fault(path, number, None, f"not JSON: {error}")
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not _readable(version):
        return Fault(
            path,
            number,
            "schema_version",
            f"{version!r} where this narrowbench reads {SCHEMA_VERSION}; another wrote it",
        )
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        field = ".".join(map(str, first["loc"])) or None
        found = first["input"]
        # Of a field that is missing, or of several at once, what pydantic was given is the record around them.
        value = "" if isinstance(found, dict) else f", not {reprlib.repr(found)}"
        return Fault(path, number, field, first["msg"].removeprefix("Value error, ") + value + more)


def _readable(version: object) -> bool:
    """The same major, and no newer minor, whose fields would be unknown here."""
    if not isinstance(version, str):
        return False
    major, _, minor = version.partition(".")
    our_major, _, our_minor = SCHEMA_VERSION.partition(".")
    return major == our_major and minor.isdecimal() and int(minor) <= int(our_minor)
