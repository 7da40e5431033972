"""The report: one HTML page, readable offline, of this machine's own run beside the record."""

import base64
from html import escape
from pathlib import Path

import pandas as pd

from narrowbench.errors import StoreError
from narrowbench.report.catalogue import LOCAL_FIGURES
from narrowbench.report.load import Material
from narrowbench.report.select import timed
from narrowbench.report.tables import Column, Table
from narrowbench.store.whole import write_text

_STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 12.5px } td, th { padding: 2px 9px; text-align: left }
thead { border-top: 2px solid; border-bottom: 1px solid } tbody { border-bottom: 2px solid } img { width: 100% }
"""


def write(frame: Path, out: Path, figures: Path) -> None:
    """Write the page of a stored frame; `figures` holds the SVGs of `LOCAL_FIGURES`."""
    material = Material.load(frame)
    local = material.origin("local")
    images = [f"<h2>{escape(stem)}</h2>{_image(figures / f'{stem}.svg')}" for stem in LOCAL_FIGURES]
    parts = [
        "<h1>narrowgemm: this machine's run beside the record</h1>",
        f"<p>{len(local)} rows of this machine, {len(material.origin('record'))} rows of record.</p>",
        "<h2>Explorer</h2>",
        _explorer(material),
        *images,
        "<h2>What gave no result here, and why</h2>",
        table_html(_without_result(material, local)),
    ]
    head = f'<head><meta charset="utf-8"><title>narrowgemm</title><style>{_STYLE}</style></head>'
    write_text(out, f'<!DOCTYPE html><html lang="en">{head}<body>{"".join(parts)}</body></html>\n')


def table_html(table: Table) -> str:
    """A table as HTML, or its title as a sentence if it has no rows."""
    if not table.rows:
        return "<p>Nothing: every case gave a result.</p>"
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.shown)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _explorer(material: Material) -> str:
    if timed(material.frame).empty:
        return "<p>No measured GEMM yet.</p>"
    from narrowbench.report.explorer import chart

    return chart(material).to_html(fullhtml=False, inline=True, output_div="explorer")


def _image(path: Path) -> str:
    if not path.is_file():
        draw = f"narrowbench figure {path.stem} --frame ... --out {path.parent}"
        raise StoreError(f"{path}: no such figure, which the page shows; draw it with `{draw}`")
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(path.stem)}" src="data:image/svg+xml;base64,{content}">'


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
