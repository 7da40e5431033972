"""One table, four forms: LaTeX (booktabs), CSV, Markdown and typst. CSV keeps SI values; the rest show them."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from narrowbench.models.statistics import significant
from narrowbench.report.select import Reading
from narrowbench.report.units import number, prefixed
from narrowbench.store.whole import whole, write_text

#: What stands where nothing is known.
MISSING = "–"
#: Of a figure in CSV: more than any has been measured to, and fewer than differ from one processor to the next.
_CSV_DIGITS = 12


@dataclass(frozen=True)
class Column:
    """A column: its name in CSV (unit last), its heading for people, how it shows a value, and its alignment.

    has_interval: the values are `Reading`s; CSV then has `_low` and `_high` beside the figure.
    """

    name: str
    heading: str
    show: Callable[[Any], str] = str
    align: Literal["left", "right"] = "left"
    has_interval: bool = False

    @property
    def names(self) -> list[str]:
        """Its columns in CSV."""
        return [self.name, f"{self.name}_low", f"{self.name}_high"] if self.has_interval else [self.name]

    def cell(self, value: Any) -> str:
        """A value as people read it."""
        return MISSING if _is_missing(value) else self.show(value)

    def fields(self, value: Any) -> list[Any]:
        """A value in its columns of CSV; empty where nothing is known."""
        if _is_missing(value):
            return [""] * len(self.names)
        if not self.has_interval:
            return [_in_csv(value)]
        bounds = ["", ""] if value.interval is None else [value.interval.low, value.interval.high]
        return [_in_csv(field) for field in (value.value, *bounds)]


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
    heading = f"{heading} ({prefixed(unit, exponent)})"
    return Column(name, heading, lambda value: number(value / 10.0**exponent, digits), "right")


def measured(name: str, heading: str, unit: str, exponent: int, digits: int = 4) -> Column:
    """A column of readings under one SI prefix, each with its interval."""
    heading = f"{heading} ({prefixed(unit, exponent)})" if unit else heading
    return Column(name, heading, lambda value: _with_interval(value, 10.0**exponent, digits), "right", True)


def ratio(name: str, heading: str) -> Column:
    """A column of ratios around 1, each with its interval."""

    def show(value: Reading) -> str:
        bounds = value.interval
        return f"{value.value:.3f}" + ("" if bounds is None else _bracketed(f"{bounds.low:.3f}", f"{bounds.high:.3f}"))

    return Column(name, heading, show, "right", True)


def count(name: str, heading: str) -> Column:
    """A column of whole numbers."""
    return Column(name, heading, lambda value: f"{int(value):d}", "right")


def percent(name: str, heading: str) -> Column:
    """A column of shares, shown in percent."""
    return Column(name, f"{heading} (%)", lambda share: f"{100 * share:.1f}", "right")


def _in_csv(value: Any) -> Any:
    return significant(value, _CSV_DIGITS) if isinstance(value, float) else value


def _with_interval(found: Reading, scale: float, digits: int) -> str:
    middle, bounds = number(found.value / scale, digits), found.interval
    if bounds is None:
        return middle
    return middle + _bracketed(number(bounds.low / scale, digits), number(bounds.high / scale, digits))


def _bracketed(low: str, high: str) -> str:
    """An interval behind its figure, held on one line by no-break spaces."""
    return f"\u00a0[{low},\u00a0{high}]"


def save(table: Table, stem: str, folder: Path) -> list[Path]:
    """Write a table in its four forms."""
    forms = {".tex": latex(table, stem), ".md": markdown(table), ".typ": typst(table)}
    paths = [folder / f"{stem}{suffix}" for suffix in forms]
    for path, text in zip(paths, forms.values(), strict=True):
        write_text(path, text)
    with whole(folder / f"{stem}.csv") as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name for column in table.columns for name in column.names])
        for row in table.rows:
            writer.writerow([f for column, value in zip(table.columns, row, strict=True) for f in column.fields(value)])
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
    """A typst module: `title`, `note`, the number of `rows`, and `body`, a function for the table."""
    aligns = "".join(f"{column.align}, " for column in table.columns)
    head = "".join(f"[{_typst_text(column.heading)}], " for column in table.columns)
    lines = ["  " + "".join(f"[{_typst_text(cell)}], " for cell in row).rstrip() for row in table.shown]
    return "\n".join(
        [
            f"#let title = [{_typst_text(table.title)}]",
            f"#let note = [{_typst_text(table.note)}]",
            f"#let rows = {len(table.rows)}",
            "#let body = table.with(",
            f"  columns: {len(table.columns)},",
            f"  align: ({aligns.rstrip()}),",
            f"  table.header({head.rstrip(', ')}),",
            *lines,
            ")",
            "",
        ]
    )


def _is_missing(value: Any) -> bool:
    return value is None or (not isinstance(value, str | Reading) and bool(pd.isna(value)))


def _latex_text(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def _typst_text(text: str) -> str:
    """Text as typst markup; lines may break after an underscore or a stroke."""
    escaped = "".join(f"\\{character}" if character in "\\#[]*_`$<>@=-+/~'\"" else character for character in text)
    return escaped.replace("\\_", "\\_\u200b").replace("\\/", "\\/\u200b")
