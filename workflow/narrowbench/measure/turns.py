"""What kernels that took turns say of each other: ratios of their samples, pair by pair."""

from collections.abc import Iterator, Sequence

from narrowbench.config import Shape
from narrowbench.models.statistics import paired_ratio
from narrowbench.store.rows import GemmCase, Row
from narrowgemm.problem import NO_EPILOGUE


def ratios(rows: Sequence[Row], kernels: Sequence[str], shape: Shape) -> Iterator[str]:
    """One line for each kernel after the first and each session on this shape: its time over the first's, by pairs."""
    sessions: dict[str, dict[str, tuple[GemmCase, list[float]]]] = {}
    for row in rows:
        case, timing = row.case, row.timing
        if not isinstance(case, GemmCase) or timing is None or timing.session is None:
            continue
        if (case.m, case.n, case.k, case.groups) == (shape.m, shape.n, shape.k, shape.groups):
            sessions.setdefault(timing.session, {})[case.kernel] = (case, timing.samples_s)
    base, *others = kernels
    for taken in sessions.values():
        for other in others:
            if base in taken and other in taken:
                (case, samples_s), (_, base_s) = taken[other], taken[base]
                told = case.mode if case.epilogue == NO_EPILOGUE else f"{case.mode}, {case.epilogue}"
                yield f"{told}: time of {other} over {base}: {_told(samples_s, base_s)}"


def _told(samples_s: list[float], base_s: list[float]) -> str:
    ratio = paired_ratio(samples_s, base_s)
    told = f"{ratio.value:.4f} ({ratio.interval.low:.4f} .. {ratio.interval.high:.4f}), {len(samples_s)} pairs"
    return told if ratio.differs_from_one else f"{told}: no difference"
