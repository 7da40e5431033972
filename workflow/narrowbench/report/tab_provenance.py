"""`tab_provenance`: where the record comes from, device by device."""

import json
from collections import Counter
from collections.abc import Iterator

import pandas as pd

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table


def table(material: Material) -> Table:
    """Lines of device, what, and its value; several values where rows differ."""
    columns = [Column("device", "device"), Column("what", "what"), Column("value", "value")]
    frame = material.origin("record")
    rows = [
        [material.device_name(str(device)), what, value]
        for device, lines in frame.groupby("device")
        for what, value in _facts(lines)
        if value
    ]
    return Table("Where the record comes from", columns, rows, "Hashes are cut to their first twelve digits.")


def _facts(lines: pd.DataFrame) -> Iterator[tuple[str, str]]:
    outcomes = Counter(f"{evidence} {status}" for evidence, status in zip(lines.evidence, lines.status, strict=True))
    yield "rows", ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    yield "device kind", _all(lines.device_kind)
    yield "device (UUID hash)", _all(lines.device_uuid_hash.str[:12])
    yield "host (hash)", _all(lines.host_hash.str[:12])
    yield "measured (UTC)", " to ".join(sorted({lines.utc_time.min(), lines.utc_time.max()}))
    yield "commit", _all(lines.git_commit.str[:12])
    yield "edited tree", str(int(lines.git_dirty.fillna(value=False).sum())) + " rows"
    yield "sources (SHA-256)", _all(lines.sources_sha256.str[:12])
    yield "environment (SHA-256)", _all(lines.environment_sha256.str[:12])
    yield "timer", _all(lines.timing_method)
    yield "energy meter", _all(lines.energy_meter)
    yield from _versions(lines)


def _versions(lines: pd.DataFrame) -> Iterator[tuple[str, str]]:
    found: dict[str, set[str]] = {}
    for text in lines.versions.unique():
        for name, version in json.loads(text).items():
            found.setdefault(name, set()).add(str(version))
    for name in sorted(found):
        yield f"version of {name}", ", ".join(sorted(found[name]))


def _all(values: pd.Series) -> str:
    return ", ".join(sorted({str(value) for value in values.dropna()}))
