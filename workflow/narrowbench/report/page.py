"""The report: one HTML page, readable offline, of this machine's own run beside the record."""

import base64
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pandas as pd

from narrowbench.errors import StoreError
from narrowbench.report.catalogue import LOCAL_TITLES
from narrowbench.report.load import Material
from narrowbench.report.select import timed
from narrowbench.report.tables import Column, Table, count
from narrowbench.store.whole import write_text

_STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 12.5px } td, th { padding: 2px 9px; text-align: left }
thead { border-top: 2px solid; border-bottom: 1px solid } tbody { border-bottom: 2px solid } img { width: 100% }
"""
#: Evidence of a row -> what this machine did for it.
_DONE = {
    "measured": "measured on",
    "compiled": "compiled here, and not run, for",
    "interpreted": "run in an interpreter here for",
    "modelled": "modelled for",
}


def write(frame: Path, out: Path, figures: Path) -> None:
    """Write the page of a stored frame; `figures` holds the SVGs of `LOCAL_FIGURES`."""
    material = Material.load(frame)
    local = material.origin("local")
    images = [
        f"<h2>{escape(title)}</h2>{_image(figures / f'{stem}.svg', title)}" for stem, title in LOCAL_TITLES.items()
    ]
    parts = [
        "<h1>narrowgemm: this machine's run beside the record</h1>",
        _counts(material, local),
        "<h2>Explorer</h2>",
        _explorer(material),
        *images,
        "<h2>What gave no result here, and why</h2>",
        table_html(_without_result(material, local), "Nothing: every case gave a result."),
        "<h2>What was measured here without energy or clocks, and why</h2>",
        table_html(_without_reading(material, local), "Nothing: every case has both."),
    ]
    head = f'<head><meta charset="utf-8"><title>narrowgemm</title><style>{_STYLE}</style></head>'
    write_text(out, f'<!DOCTYPE html><html lang="en">{head}<body>{"".join(parts)}</body></html>\n')


def table_html(table: Table, without_rows: str) -> str:
    """A table as HTML, or a sentence in its place if it has no rows."""
    if not table.rows:
        return f"<p>{escape(without_rows)}</p>"
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _counts(material: Material, local: pd.DataFrame) -> str:
    """How many rows of each evidence there are: of this machine with the devices' names, of the record in all."""
    own = [
        f"{len(lines)} rows {_DONE[evidence]} {escape(_devices(material, lines))}"
        for evidence, lines in _by_evidence(local)
    ]
    record = [
        f"{len(lines)} {evidence} {'on' if evidence == 'measured' else 'for'} {lines.device.nunique()} devices"
        for evidence, lines in _by_evidence(material.origin("record"))
    ]
    items = [*(own or ["nothing measured on this machine yet"]), f"rows of record: {', '.join(record) or 'none'}"]
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _by_evidence(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Evidence -> its lines, where there are any."""
    for evidence in _DONE:
        lines = frame[frame.evidence == evidence]
        if not lines.empty:
            yield evidence, lines


def _devices(material: Material, lines: pd.DataFrame) -> str:
    return ", ".join(sorted(material.device_name(device) for device in lines.device.unique()))


def _explorer(material: Material) -> str:
    if timed(material.frame).empty:
        return "<p>No measured GEMM yet.</p>"
    from narrowbench.report.explorer import fragment

    return (
        "<p>Every timed GEMM of the record and of this machine over its intensity. The lists choose device, mode and "
        "data; a click on a name in the legend shows that kernel alone; a mark tells its case.</p>" + fragment(material)
    )


def _image(path: Path, title: str) -> str:
    if not path.is_file():
        draw = f"narrowbench figure {path.stem} --frame ... --out {path.parent}"
        raise StoreError(f"{path}: no such figure, which the page shows; draw it with `{draw}`")
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{content}">'


def _without_result(material: Material, local: pd.DataFrame) -> Table:
    columns = [Column(name, name) for name in ("device", "kernel", "shape", "mode", "status", "reason")]
    rows = [
        [
            material.device_name(line.device),
            line.kernel,
            line.quantity if line.kind == "roof" else f"{line.m}×{line.n}×{line.k}",
            line["mode"],
            line.status,
            line.reason,
        ]
        for _, line in local[local.status != "ok"].iterrows()
    ]
    return Table("Cases without result", columns, rows)


def _without_reading(material: Material, local: pd.DataFrame) -> Table:
    """Measured lines whose energy or clocks are null, counted by the reason that their rows give."""
    measured = local[(local.evidence == "measured") & (local.status == "ok")]
    columns = [Column(name, name) for name in ("device", "missing", "mode")]
    columns += [count("rows", "rows"), Column("reason", "reason")]
    rows = [
        [material.device_name(str(device)), missing, mode, len(lines), reason]
        for missing, column in (("energy", "energy_reason"), ("clocks", "clocks_reason"))
        for (device, mode, reason), lines in measured.groupby(["device", "mode", column])
    ]
    return Table("Cases without energy or clocks", columns, rows)
