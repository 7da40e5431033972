"""Search for the fastest config of a kernel on one problem. It is handed its clock, and says nothing while it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem


@dataclass(frozen=True)
class Trial:
    """What became of one config.

    rank:   its place among the kernel's candidates, from 0: how early the kernel's own guess would have tried it.
    time_s: what was measured; None with the reason where nothing was.
    """

    config: Any
    rank: int
    status: Literal["ok", "unsupported", "failed"]
    time_s: float | None
    reason: str | None


def search(
    problem: GemmProblem, kernel: Kernel, measure: Callable[[Any], float], top: int | None = None
) -> list[Trial]:
    """Every candidate of `kernel` for `problem`, or the first `top` of them, tried once each: fastest first.

    measure: config -> seconds. What it raises is the outcome of that config: `unsupported` for an UnsupportedError,
             `failed` for any other Exception. Configs without a time follow the others, in the kernel's own order.

    Raises UnsupportedError where the kernel has no candidate for the problem.
    """
    trials = [_try(config, rank, measure) for rank, config in enumerate(kernel.candidates(problem)[:top])]
    if not trials:
        raise UnsupportedError(
            kernel.name,
            {"m": problem.m, "n": problem.n, "k": problem.k},
            "is a shape that it has no candidates for",
            "use another kernel or pad the operands",
        )
    return sorted(trials, key=lambda trial: (trial.time_s is None, trial.time_s or 0.0))


def _try(config: Any, rank: int, measure: Callable[[Any], float]) -> Trial:
    try:
        return Trial(config, rank, "ok", measure(config), None)
    except UnsupportedError as error:
        return Trial(config, rank, "unsupported", None, str(error))
    except Exception as error:  # any fault of a compiler or a device is this config's, and the others go on
        return Trial(config, rank, "failed", None, f"{type(error).__name__}: {error}")
