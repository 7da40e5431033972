"""Operations on 32-bit words that bit tricks are written with, so that one text runs in a kernel and under NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WordOperations:
    """And, or, shifts by a constant that fill with zeros, a constant word, and all ones where a word is a constant."""

    both: Callable[[Any, Any], Any]
    either: Callable[[Any, Any], Any]
    up: Callable[[Any, int], Any]
    down: Callable[[Any, int], Any]
    constant: Callable[[int], Any]
    equal: Callable[[Any, int], Any]


@dataclass(frozen=True)
class FloatOperations:
    """Products of words that hold floats: an FP32 with a constant, and two BF16 with two others, subnormals kept."""

    scale_f32: Callable[[Any, float], Any]
    multiply_bf16: Callable[[Any, Any], Any]
