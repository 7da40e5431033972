"""`tab_provenance`: where the record comes from, device by device and kind of evidence by kind."""

import json
from typing import Any

import pandas as pd

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count

_HASHES = ("device_uuid_hash", "host_hash", "git_commit", "sources_sha256", "environment_sha256")


def table(material: Material) -> Table:
    """A line a device and evidence; several values where its rows differ."""
    columns = [
        Column("device", "device"),
        Column("evidence", "evidence"),
        count("ok", "valid"),
        count("other", "other rows"),
        count("edited", "of edited tree"),
        Column("first_utc", "from (UTC)", _minute),
        Column("last_utc", "to (UTC)", _minute),
        Column("device_uuid_hash", "device hash"),
        Column("host_hash", "host hash"),
        Column("git_commit", "commit"),
        Column("sources_sha256", "sources"),
        Column("environment_sha256", "environment"),
        Column("timer", "timer"),
        Column("meter", "meter"),
        Column("versions", "versions"),
    ]
    groups = material.origin("record").groupby(["device", "evidence"])
    rows = [_row(material, lines) for _, lines in groups]
    note = (
        "Hashes, commits among them, are cut to their first eight digits. Other rows: unsupported, failed or unstable."
    )
    return Table("Where the record comes from", columns, rows, note)


def _row(material: Material, lines: pd.DataFrame) -> list[Any]:
    first = lines.iloc[0]
    return [
        material.device_name(first.device),
        first.evidence,
        int((lines.status == "ok").sum()),
        int((lines.status != "ok").sum()),
        int(lines.git_dirty.fillna(value=False).sum()),
        lines.utc_time.min(),
        lines.utc_time.max(),
        *(_all(lines[name].str[:8]) for name in _HASHES),
        _all(lines.timing_method),
        _all(lines.energy_meter),
        _versions(lines),
    ]


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _versions(lines: pd.DataFrame) -> str:
    found: dict[str, set[str]] = {}
    for text in lines.versions.unique():
        for name, version in json.loads(text).items():
            found.setdefault(name, set()).add(str(version))
    return ", ".join(f"{name} {' and '.join(sorted(versions))}" for name, versions in sorted(found.items()))


def _all(values: pd.Series) -> str | None:
    return ", ".join(sorted({str(value) for value in values.dropna()})) or None
