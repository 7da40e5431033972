"""What a job tells while it runs: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Tell(Protocol):
    """`begin` a case by its name, `end` it with what became of it."""

    def begin(self, name: str) -> None: ...

    def end(self, outcome: str) -> None: ...


class _Lines:
    """One line a finished case, for logs."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._number = 0
        self._name = ""

    def begin(self, name: str) -> None:
        self._number += 1
        self._name = name

    def end(self, outcome: str) -> None:
        line = f"[{self._number}/{self._total}] {self._name}: {outcome}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Bar:
    """The running case beside a bar, finished ones above it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)
        self._name = ""

    def begin(self, name: str) -> None:
        self._name = name
        self._progress.update(self._task, description=name)

    def end(self, outcome: str) -> None:
        self._progress.console.print(f"{self._name}: {outcome}", highlight=False, markup=False)
        self._progress.advance(self._task)


def say(line: str) -> None:
    """Tell something that belongs to no case."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def telling(title: str, total: int) -> Iterator[Tell]:
    """Progress of `total` cases for the length of the block, on the error stream."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console, total)
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress, total)
