"""Tuned tables: for each problem that was searched on a model of device, the config that was found best. No JAX.

A table is `tuned/<device>/<kernel>.json`, committed. It holds one problem a line, sorted, so that a new search changes
the lines of its problems alone. A problem is looked up exactly: the best config of a near one is no promise.
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from narrowgemm.errors import unknown_name
from narrowgemm.problem import GemmProblem

SCHEMA_VERSION = "1.0"
TUNED = Path(__file__).resolve().parents[1] / "tuned"


@dataclass(frozen=True)
class Origin:
    """Where an entry comes from: JAX's version, the day of the search, and the digest of how it timed."""

    jax: str
    date: str
    protocol_sha256: str


@dataclass(frozen=True)
class Entry:
    """The best config of one problem.

    config:   fields of the kernel's `Config`, single choices; one that is left out has its default.
    median_s: device time of one launch, in the last round of the search.
    tried:    configs that the search came to an outcome for.
    """

    problem: GemmProblem
    config: Mapping[str, Any]
    median_s: float
    tried: int
    origin: Origin


@dataclass(frozen=True)
class _Table:
    entries: Mapping[GemmProblem, Entry]
    sha256: str


def path_of(kernel: str, device: str) -> Path:
    """Where the table of a kernel lies for a model of device, given by the slug of its kind."""
    return TUNED / device / f"{kernel}.json"


def lookup(kernel: str, problem: GemmProblem, device: str) -> dict[str, Any] | None:
    """Fields of the config tuned for exactly this problem; None where no search has found one.

    Raises ValueError, naming file and field, for a table that cannot be read.
    """
    table = _read(path_of(kernel, device))
    return dict(table.entries[problem].config) if table and problem in table.entries else None


def table_sha256(kernel: str, device: str) -> str | None:
    """SHA-256 of the table as `lookup` uses it; None where there is none. Raises as `lookup`."""
    table = _read(path_of(kernel, device))
    return table.sha256 if table else None


def entries(kernel: str, device: str) -> tuple[Entry, ...]:
    """Every entry of a table, sorted by problem; none where there is no table. Raises as `lookup`."""
    table = _read(path_of(kernel, device))
    return tuple(table.entries.values()) if table else ()


def merge(kernel: str, device: str, new: Iterable[Entry]) -> None:
    """Write the table with these entries added, each in place of that of its problem.

    It is written through a second file: a crash leaves the old table or the new one. Raises as `lookup`, also for
    entries that could not be read again; the old table then stays.
    """
    path = path_of(kernel, device)
    merged = {entry.problem: entry for entry in (*entries(kernel, device), *new)}
    raw = _text(kernel, device, merged.values()).encode()
    _parsed(raw, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_bytes(raw)
    draft.replace(path)
    _read.cache_clear()


def _text(kernel: str, device: str, found: Iterable[Entry]) -> str:
    head = {"schema_version": SCHEMA_VERSION, "device": device, "kernel": kernel}
    lines = [json.dumps(asdict(entry), sort_keys=True) for entry in sorted(found, key=lambda e: astuple(e.problem))]
    return json.dumps(head, indent=2)[:-2] + ',\n  "entries": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


@functools.cache
def _read(path: Path) -> _Table | None:
    """The table at `path`. `gemm` asks at each tracing, so a table is read once in a process."""
    try:
        return _parsed(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def _parsed(raw: bytes, path: Path) -> _Table:
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path}: schema_version is {version!r} where this narrowgemm reads {SCHEMA_VERSION!r}")
    head = _checked_keys(data, dict.fromkeys(("schema_version", "device", "kernel", "entries"), True), str(path))
    for name, value in (("device", path.parent.name), ("kernel", path.stem)):
        if head[name] != value:
            raise ValueError(f"{path}: {name} is {head[name]!r}, not {value!r} as its place says")
    if not isinstance(head["entries"], list):
        raise ValueError(f"{path}: entries is {type(head['entries']).__name__}, not a list")
    found = [_entry(item, f"{path}: entries.{index}") for index, item in enumerate(head["entries"])]
    by_problem = {entry.problem: entry for entry in found}
    if len(by_problem) < len(found):
        twice = next(entry.problem for entry in found if sum(e.problem == entry.problem for e in found) > 1)
        raise ValueError(f"{path}: entries has {twice} twice")
    return _Table(by_problem, hashlib.sha256(raw).hexdigest())


def _entry(data: Any, where: str) -> Entry:
    item = _checked_keys(data, _names(Entry), where)
    median_s, tried, config = item["median_s"], item["tried"], item["config"]
    if not isinstance(median_s, float) or not math.isfinite(median_s) or median_s <= 0:
        raise ValueError(f"{where}.median_s: {median_s!r} is no positive number of seconds")
    if isinstance(tried, bool) or not isinstance(tried, int) or tried < 1:
        raise ValueError(f"{where}.tried: {tried!r} is no number of configs")
    if not isinstance(config, dict):
        raise ValueError(f"{where}.config: {config!r} is no mapping of choices")
    for name, choice in config.items():
        if not isinstance(choice, str | int | float | bool | None):
            raise ValueError(f"{where}.config.{name}: {choice!r} is no single choice")
    return Entry(_problem(item["problem"], f"{where}.problem"), config, median_s, tried, _origin(item["origin"], where))


def _problem(data: Any, where: str) -> GemmProblem:
    try:
        return GemmProblem(**_checked_keys(data, _names(GemmProblem), where))
    except ValueError as error:
        raise ValueError(str(error) if where in str(error) else f"{where}: {error}") from error


def _origin(data: Any, where: str) -> Origin:
    item = _checked_keys(data, _names(Origin), f"{where}.origin")
    for name, value in item.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}.origin.{name}: {value!r} is no text")
    return Origin(**item)


def _names(record: type) -> dict[str, bool]:
    """Names of a record's fields, and whether each must be given."""
    return {field.name: field.default is MISSING for field in fields(record)}


def _checked_keys(data: Any, names: Mapping[str, bool], where: str) -> dict[str, Any]:
    """`data` as a mapping that has every key that must be given, and none that is not known."""
    if not isinstance(data, dict):
        raise ValueError(f"{where}: {data!r} is no mapping")
    for name in data:
        if name not in names:
            raise ValueError(f"{where}: {unknown_name('field', name, names)}")
    for name, is_needed in names.items():
        if is_needed and name not in data:
            raise ValueError(f"{where}: the field {name!r} is missing")
    return data
