"""Raw results into the data of record. Nothing else writes there."""

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from narrowbench.errors import StoreError
from narrowbench.store import jsonl
from narrowbench.store.rows import Row
from narrowbench.store.whole import whole


@dataclass(frozen=True)
class Promotion:
    """What promoting did to one file of the record: rows added, rows it had already, rows replaced."""

    path: Path
    added: int
    unchanged: int
    replaced: int

    def __str__(self) -> str:
        return f"{self.path}: {self.added} added, {self.replaced} replaced, {self.unchanged} already there"


def promote(
    sources: Iterable[Path], record: Path, *, replace: bool = False, allow_dirty: bool = False
) -> list[Promotion]:
    """Merge the newest row of each case of `sources` into the files under `record`, all of them or none.

    Raises StoreError where a source or a file of the record is damaged, where a row comes from an unknown commit or
    an edited tree (unless `allow_dirty`), and where it differs from the record's row of that case (unless `replace`).
    """
    rows = jsonl.newest(jsonl.read(sources))
    if not rows:
        raise StoreError("nothing to promote: no row in any of the files (without names, those below results/raw here)")
    if not allow_dirty:
        _check_provenance(rows)
    by_file: dict[Path, list[Row]] = {}
    for row in rows:
        by_file.setdefault(record / place(row), []).append(row)
    with _locked(record):
        merged = {path: _merge(jsonl.read([path]), new) for path, new in by_file.items()}
        if not replace:
            _check_unreplaced(merged)
        with ExitStack() as drafts:
            for path, merge in merged.items():
                _write(drafts.enter_context(whole(path)), merge.rows)
    return [Promotion(path, merge.added, merge.unchanged, len(merge.replaced)) for path, merge in merged.items()]


def place(row: Row) -> Path:
    """Where a row lies below `results/raw` or `results/record`."""
    device, case = Path(row.provenance.device), row.case
    if case.kind == "roof":
        return device / "roofs.jsonl"
    if case.kind == "compile":
        return device / case.kernel / "compiled.jsonl"
    if case.kind == "counters" or case.kind == "space":
        return device / case.kind / f"{case.kernel}.jsonl"
    if case.kind == "tuning":
        return device / "tuning" / case.kernel / f"{case.suite}.jsonl"
    return device / case.kernel / f"{case.suite}.jsonl"


@dataclass(frozen=True)
class _Merge:
    rows: list[Row]
    added: int
    unchanged: int
    replaced: list[str]


def _merge(old: list[Row], new: list[Row]) -> _Merge:
    held = {(row.evidence, row.key): row for row in old}
    counts: Counter[str] = Counter()
    replaced = []
    for row in new:
        identity = (row.evidence, row.key)
        if identity not in held:
            counts["added"] += 1
        elif held[identity] == row:
            counts["unchanged"] += 1
        else:
            replaced.append(row.key)
        held[identity] = row
    return _Merge(list(held.values()), counts["added"], counts["unchanged"], replaced)


def _check_provenance(rows: list[Row]) -> None:
    unknown = sum(row.provenance.git_commit is None or row.provenance.git_dirty is None for row in rows)
    dirty = sum(bool(row.provenance.git_dirty) for row in rows)
    if unknown or dirty:
        raise StoreError(
            f"{dirty} of {len(rows)} rows come from an edited tree and {unknown} from an unknown commit: nobody can "
            "measure them again; commit and measure, or allow them with --allow-dirty"
        )


def _check_unreplaced(merged: dict[Path, _Merge]) -> None:
    complaints = [f"{path}: {key}" for path, merge in merged.items() for key in merge.replaced]
    if complaints:
        listed = "\n".join(complaints[:5]) + ("\n..." if len(complaints) > 5 else "")
        raise StoreError(
            f"{len(complaints)} rows differ from the record's rows of the same cases; "
            f"replace those with --replace, or leave the record alone:\n{listed}"
        )


def _write(draft: Path, rows: list[Row]) -> None:
    """Write to the disk, so that a crash after the draft is moved finds all of it."""
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(row.model_dump_json() + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only this process promotes into the folder within the block; another waits, lest one undo the other's rows."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
