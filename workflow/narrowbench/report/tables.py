"""One table, four forms: LaTeX (booktabs), CSV, Markdown and typst. CSV keeps SI values; the rest show them."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from narrowbench.report.units import number, prefixed

#: What stands where nothing is known.
MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV (unit last), its heading for people, how it shows a value, and its alignment."""

    name: str
    heading: str
    show: Callable[[Any], str] = str
    align: Literal["left", "right"] = "left"

    def cell(self, value: Any) -> str:
        """A value as people read it."""
        return MISSING if _is_missing(value) else self.show(value)


@dataclass(frozen=True)
class Table:
    """Rows of SI values, null where nothing is known, under columns that know how to show them."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    @property
    def shown(self) -> list[list[str]]:
        """The cells as people read them."""
        return [[column.cell(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]


def scaled(name: str, heading: str, unit: str, exponent: int, digits: int = 3) -> Column:
    """A column of figures under one SI prefix, which its heading names."""
    return Column(
        name, f"{heading} ({prefixed(unit, exponent)})", lambda value: number(value / 10.0**exponent, digits), "right"
    )


def in_units_of(name: str, heading: str, unit: float, digits: int = 3) -> Column:
    """A column of figures divided by `unit`, which a column beside it or the note names."""
    return Column(name, heading, lambda value: number(value / unit, digits), "right")


def ratio(name: str, heading: str) -> Column:
    """A column of ratios around 1."""
    return Column(name, heading, lambda value: f"{value:.3f}", "right")


def count(name: str, heading: str) -> Column:
    """A column of whole numbers."""
    return Column(name, heading, lambda value: f"{int(value):d}", "right")


def percent(name: str, heading: str) -> Column:
    """A column of shares, shown in percent."""
    return Column(name, f"{heading} (%)", lambda share: f"{100 * share:.1f}", "right")


def save(table: Table, stem: str, folder: Path) -> list[Path]:
    """Write a table in its four forms."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = {".tex": latex(table, stem), ".md": markdown(table), ".typ": typst(table)}
    paths = [folder / f"{stem}{suffix}" for suffix in forms]
    for path, text in zip(paths, forms.values(), strict=True):
        path.write_text(text, encoding="utf-8", newline="\n")
    with (folder / f"{stem}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in table.columns])
        writer.writerows([["" if _is_missing(value) else value for value in row] for row in table.rows])
    return [*paths, folder / f"{stem}.csv"]


def latex(table: Table, stem: str) -> str:
    """A `table` environment with booktabs rules, labelled with the stem."""
    lines = [" & ".join(map(_latex_text, row)) + r" \\" for row in table.shown]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex_text(table.title)}}}\label{{{stem}}}",
            rf"\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
            r"\toprule",
            " & ".join(_latex_text(column.heading) for column in table.columns) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *([rf"\par\footnotesize {_latex_text(table.note)}"] if table.note else []),
            r"\end{table}",
            "",
        ]
    )


def markdown(table: Table) -> str:
    """A pipe table under its title, the note below."""
    rules = ["---:" if column.align == "right" else "---" for column in table.columns]
    rows = [[column.heading for column in table.columns], rules, *table.shown]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", table.note] if table.note else []), ""])


def typst(table: Table) -> str:
    """Definitions for a typst document to import: `title`, `note` and `body`, a table whose look the document sets."""
    aligns = "".join(f"{column.align}, " for column in table.columns)
    head = "".join(f"[{_typst_text(column.heading)}], " for column in table.columns)
    lines = ["  " + "".join(f"[{_typst_text(cell)}], " for cell in row).rstrip() for row in table.shown]
    return "\n".join(
        [
            f"#let title = [{_typst_text(table.title)}]",
            f"#let note = [{_typst_text(table.note)}]",
            "#let body = table(",
            f"  columns: {len(table.columns)},",
            f"  align: ({aligns.rstrip()}),",
            f"  table.header({head.rstrip(', ')}),",
            *lines,
            ")",
            "",
        ]
    )


def _is_missing(value: Any) -> bool:
    return value is None or (not isinstance(value, str) and bool(pd.isna(value)))


def _latex_text(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def _typst_text(text: str) -> str:
    """Text as typst markup; names may break after an underscore or a stroke."""
    escaped = "".join(f"\\{character}" if character in "\\#[]*_`$<>@=-+/~'\"" else character for character in text)
    return escaped.replace("\\_", "\\_\u200b").replace("\\/", "\\/\u200b")
