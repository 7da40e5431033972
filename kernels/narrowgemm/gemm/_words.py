"""Operations on 32-bit words that bit tricks are written with, so that one text runs in a kernel and under NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WordOperations:
    """And, or, shifts by a constant that fill with zeros, and a constant word."""

    both: Callable[[Any, Any], Any]
    either: Callable[[Any, Any], Any]
    up: Callable[[Any, int], Any]
    down: Callable[[Any, int], Any]
    constant: Callable[[int], Any]
