"""How a model is tested: fitted on one half of the shapes, judged by its relative errors on the other. No JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

type ShapeMnk = tuple[int, int, int]


class Shaped(Protocol):
    """Anything measured at a GEMM shape."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> ShapeMnk: ...


def halves[T: Shaped](samples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Samples of every other shape, by rising M·N·K, and those of the rest.

    A shape is in one half only, whatever the format or mode, so that the second half is new to a model of the first.
    """
    shapes = sorted({sample.shape for sample in samples}, key=lambda shape: (np.prod(shape, dtype=float), shape))
    first = set(shapes[::2])
    return [s for s in samples if s.shape in first], [s for s in samples if s.shape not in first]


@dataclass(frozen=True)
class Check:
    """Names and relative errors, predicted / measured - 1."""

    errors: tuple[tuple[str, float], ...]

    @property
    def median_absolute(self) -> float:
        return float(np.median([abs(error) for _, error in self.errors]))

    @property
    def bias(self) -> float:
        """Mean of the signed errors."""
        return float(np.mean([error for _, error in self.errors]))

    def worst(self, count: int) -> list[tuple[str, float]]:
        """The `count` largest errors, largest first: where the model fails."""
        return sorted(self.errors, key=lambda item: -abs(item[1]))[:count]


def check_predictions(names: Sequence[str], predicted: Sequence[float], measured: Sequence[float]) -> Check:
    """Relative errors of predictions. Raises ValueError without any, or for a measured value that is not positive."""
    if not names:
        raise ValueError("no predictions to check")
    if min(measured) <= 0:
        raise ValueError(f"measured value {min(measured)} is not positive; a relative error needs one that is")
    return Check(tuple((n, p / m - 1) for n, p, m in zip(names, predicted, measured, strict=True)))
