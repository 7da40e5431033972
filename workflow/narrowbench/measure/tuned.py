"""From stored searches to the tuned tables of the library."""

from collections.abc import Iterable
from statistics import median

from narrowbench.store.rows import Row, TuningCase
from narrowgemm.slug import slugged
from narrowgemm.tune import table
from narrowgemm.tune.table import Entry, Origin


def write_tables(rows: Iterable[Row]) -> list[str]:
    """Merge the newest finished search of each problem into its kernel's table; what became of each table, a line each.

    Raises ValueError for a table that is there and cannot be read.
    """
    found: dict[tuple[str, str], dict[object, Entry]] = {}
    for row in sorted(rows, key=lambda row: row.provenance.utc_time):
        entry = _entry(row)
        if entry is not None and isinstance(row.case, TuningCase):
            place = (row.case.kernel, slugged(row.provenance.device_kind))
            found.setdefault(place, {})[entry.problem] = entry
    return [_merged(kernel, device, new) for (kernel, device), new in sorted(found.items())]


def _merged(kernel: str, device: str, new: dict[object, Entry]) -> str:
    old = {entry.problem: entry for entry in table.entries(kernel, device)}
    table.merge(kernel, device, new.values())
    changed = sum(old.get(entry.problem, entry) != entry for entry in new.values())
    added = len(new.keys() - old.keys())
    return f"{table.path_of(kernel, device)}: {added} added, {changed} replaced, {len(new) - added - changed} as before"


def _entry(row: Row) -> Entry | None:
    """The entry that a search gives; None for one that found no config and for other rows."""
    if not isinstance(row.case, TuningCase) or row.timing is None or row.tuning is None or row.config is None:
        return None
    origin = Origin(row.provenance.versions["jax"], row.provenance.utc_time[:10], row.tuning.protocol_sha256)
    return Entry(row.case.problem, row.config, median(row.timing.samples_s), len(row.tuning.trials), origin)
