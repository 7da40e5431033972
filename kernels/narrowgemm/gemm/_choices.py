"""What the fields of any kernel's `Config` have in common: counts are whole and at least 1, names are known ones."""

import functools
import types
import typing
from dataclasses import fields
from typing import Any

from narrowgemm.errors import UnsupportedError


def check_choices(kernel: str, config: Any) -> None:
    """Raise UnsupportedError for a field that no config of its type can have, whatever the problem.

    A `Config` holds what it was given: a table or a caller may give text, a fraction or nought, and a rule that
    compares or divides would then fail as if the kernel were at fault, or admit it.
    """
    for name, known in _known(type(config)):  # type: ignore[arg-type] # a class is hashable
        value = getattr(config, name)
        if known is None and (type(value) is not int or value < 1):
            raise UnsupportedError(kernel, {name: value}, "is not a whole number of at least 1", f"change {name}")
        if known is not None and value not in known:
            shown = ", ".join(map(repr, known))
            raise UnsupportedError(kernel, {name: value}, f"is not one of {shown}", f"change {name}")


@functools.cache
def _known(config_type: type) -> tuple[tuple[str, tuple[object, ...] | None], ...]:
    """Fields that count, with None, and those that name, with what they can be."""
    hints = typing.get_type_hints(config_type)
    found: list[tuple[str, tuple[object, ...] | None]] = []
    for field in fields(config_type):
        hint = hints[field.name]
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        names = tuple(name for part in parts if typing.get_origin(part) is typing.Literal for name in part.__args__)
        if hint is int:
            found.append((field.name, None))
        elif names:
            found.append((field.name, (*names, None) if types.NoneType in parts else names))
    return tuple(found)
