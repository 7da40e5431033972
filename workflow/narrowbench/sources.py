"""Which source files a step really uses, as one digest: rules carry it, and rows say with it what code made them.

Found by reading `import` statements, at any depth, without running anything: JAX takes longer to import than a whole
pipeline takes to find that there is nothing to do.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from narrowbench.config import ROOT

_PACKAGES = {"narrowgemm": ROOT / "kernels", "narrowbench": ROOT / "workflow"}


def sources_sha256(modules: Iterable[str], files: Iterable[Path] = (), without: Iterable[str] = ()) -> str:
    """SHA-256 over the sources of `modules`, of all modules of this project that those import, and over `files`.

    `without` are modules that do not count, nor what only they import.
    Raises ValueError for a module that is not of this project or has no source.
    """
    paths = {_path(name) for name in closure(modules, without)} | {path.resolve() for path in files}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def closure(modules: Iterable[str], without: Iterable[str] = ()) -> set[str]:
    """The modules, their packages, and every module of this project that these import, however indirectly."""
    found: set[str] = set()
    skipped = set(without)
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found | skipped:
            found.add(name)
            waiting += _imports(_path(name))
            package = name.rpartition(".")[0]
            waiting += [package] if package and _find(package) else []
    return found


@cache
def _imports(path: Path) -> tuple[str, ...]:
    return tuple(_imported_modules(ast.parse(path.read_bytes())))


def _statements(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Statements at any depth; expressions, most of a tree, import nothing."""
    for node in block:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, inner, ()))


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            yield node.module
            submodules = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in submodules if _find(name))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES


@cache
def _find(module: str) -> Path | None:
    """The source file of a module or package of this project, if it has one."""
    base = _PACKAGES[module.partition(".")[0]].joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _path(module: str) -> Path:
    path = _find(module) if _is_ours(module) else None
    if path is None:
        raise ValueError(f"module {module!r} has no source in this project")
    return path
