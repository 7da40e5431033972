"""Time of a blocked GEMM on a TPU that was not measured, as a range. No JAX. Its evidence is `modelled`.

A Pallas grid walks blocks of the result and, innermost, of K. Each step brings a block of A and one of B from HBM into
VMEM, unless the step before used the same one; there is no cache between. Neither the clock nor the cost of a grid step
is published, so there is no coefficient to fit: the time is the larger of arithmetic and traffic, under the assumed
fractions of the published rates.
"""

from dataclasses import dataclass

from narrowbench.models.estimate import Assumptions, Range
from narrowbench.models.hardware import DeviceProfile, rate_key
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, round_up


@dataclass(frozen=True)
class Blocks:
    """Blocks of one grid step: of the result, and of K."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class TpuTime:
    """Seconds of arithmetic, padded to whole blocks, and of traffic; the time is the larger, end by end."""

    multiply_s: Range
    memory_s: Range
    hbm_bytes: int

    @property
    def total_s(self) -> Range:
        return Range(
            max(self.multiply_s.low, self.memory_s.low),
            max(self.multiply_s.high, self.memory_s.high),
        )


def tpu_time(problem: GemmProblem, blocks: Blocks, profile: DeviceProfile, assumptions: Assumptions) -> TpuTime:
    """The time of a GEMM in these blocks. Raises ValueError where the profile lacks its rate or bandwidth."""
    key = rate_key(problem.a_format, problem.b_format)
    rate = getattr(profile.rates_flop_per_s, key)
    bandwidth = profile.memory.bandwidth_bytes_per_s
    if rate.range is None or bandwidth.range is None:
        raise ValueError(f"{profile.name}: no {key} rate or bandwidth: {rate.reason or bandwidth.reason}")
    flop = 2 * round_up(problem.m, blocks.m) * round_up(problem.n, blocks.n) * round_up(problem.k, blocks.k)
    moved = hbm_bytes(problem, blocks)
    return TpuTime(
        multiply_s=Range(flop, flop).over(Range(*rate.range).times(assumptions.attained_fraction)),
        memory_s=Range(moved, moved).over(Range(*bandwidth.range).times(assumptions.streamed_fraction)),
        hbm_bytes=moved,
    )


def hbm_bytes(problem: GemmProblem, blocks: Blocks) -> int:
    """Bytes between HBM and VMEM: B once a row of blocks, A once a column, or once where K is a single block."""
    across = 1 if problem.k <= blocks.k else ceil_div(problem.n, blocks.n)
    a_bytes = format_named(problem.a_format).storage_bytes(problem.m, problem.k)
    b_bytes = format_named(problem.b_format).storage_bytes(problem.n, problem.k)
    result = format_named(problem.out_format).code_bytes(problem.m, problem.n)
    return a_bytes * across + b_bytes * ceil_div(problem.m, blocks.m) + result
