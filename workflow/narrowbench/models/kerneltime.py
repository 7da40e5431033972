"""Time of a GEMM kernel on a device, from its schedule and the device's profile. No JAX. Its evidence is `modelled`.

A unit of cores works its tiles one after the other. For each it issues the multiplies and reads the operands through
shared memory and from the L2, whichever takes longest; then it spends a fixed number of cycles on filling and draining
and stores the result. The busiest unit sets the time of the cores (wave quantisation). Memory traffic runs beside it:
the longer of the two, after a fixed start, is the time. The coefficients are fitted on measured rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from scipy.optimize import least_squares

from narrowbench.models.hardware import DeviceProfile, Figure, rate_key
from narrowbench.models.prediction import Check, ShapeMnk, check_predictions
from narrowbench.models.statistics import significant
from narrowbench.models.tilings import Tiling
from narrowbench.models.traffic import tile_traffic
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

#: Shared memory gives a core one line of 32 banks × 4 bytes a cycle (CUDA programming guide, all NVIDIA devices here).
SHARED_BYTES_PER_CYCLE = 128


@dataclass(frozen=True)
class Machine:
    """What the model needs of a device, at one clock.

    clock_hz:               of the cores.
    flop_per_cycle:         of one core in the formats of the problem.
    memory_bytes_per_s:     nominal.
    cache_bytes:            of the L2.
    """

    cores: int
    clock_hz: float
    flop_per_cycle: float
    memory_bytes_per_s: float
    cache_bytes: float


@dataclass(frozen=True)
class Coefficients:
    """What is fitted. Fractions are of the device's nominal figure.

    mma:                    issue rate of the tensor cores inside the loop.
    memory:                 bandwidth of memory.
    l2_bytes_per_cycle:     from the L2, of one core.
    store_bytes_per_cycle:  to the L2, of one core.
    tile_cycles:            filling and draining the pipeline, a work item.
    start_s:                from the start of a launch to its first load, and its end.
    """

    mma: float = 0.9
    memory: float = 0.9
    l2_bytes_per_cycle: float = 64.0
    store_bytes_per_cycle: float = 64.0
    tile_cycles: float = 1000.0
    start_s: float = 3e-6


@dataclass(frozen=True)
class Breakdown:
    """Seconds of each part; `total_s` is the start plus the longer of `cores_s` and `memory_s`."""

    start_s: float
    multiply_s: float
    shared_s: float
    l2_s: float
    store_s: float
    fill_s: float
    memory_s: float
    waves: int

    @property
    def cores_s(self) -> float:
        """Time of the busiest unit."""
        return max(self.multiply_s, self.shared_s, self.l2_s) + self.store_s + self.fill_s

    @property
    def total_s(self) -> float:
        return self.start_s + max(self.cores_s, self.memory_s)

    @property
    def bound(self) -> str:
        """The part that sets the time."""
        if self.memory_s > self.cores_s:
            return "memory"
        parts = {"multiply": self.multiply_s, "shared memory": self.shared_s, "l2": self.l2_s}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class KernelRun:
    """A measured launch: what ran, how, at which clock, and how long it took."""

    name: str
    kernel: str
    problem: GemmProblem
    tiling: Tiling
    machine: Machine
    time_s: float

    @property
    def shape(self) -> ShapeMnk:
        return self.problem.m, self.problem.n, self.problem.k


def machine_of(profile: DeviceProfile, a_format: str, b_format: str, clock_hz: float | None = None) -> Machine:
    """The device of a profile at `clock_hz`, or at the clock its rate holds at.

    Raises ValueError naming the figure that the profile lacks.
    """
    key = rate_key(a_format, b_format)
    rate = getattr(profile.rates_flop_per_s, key)
    cores = _known(profile, "core count", profile.cores.count)
    flop_per_s = _known(profile, f"{key} rate", rate)
    basis_hz = rate.clock_basis_hz or profile.clocks.boost_hz.value
    if basis_hz is None:
        raise ValueError(f"{profile.name}: the clock of its {key} rate is not known: {rate.clock_basis_reason}")
    return Machine(
        cores=int(cores),
        clock_hz=clock_hz or basis_hz,
        flop_per_cycle=flop_per_s / cores / basis_hz,
        memory_bytes_per_s=_known(profile, "memory bandwidth", profile.memory.bandwidth_bytes_per_s),
        cache_bytes=_known(profile, "L2", profile.cache.l2_bytes),
    )


def _known(profile: DeviceProfile, what: str, figure: Figure) -> float:
    if figure.value is None:
        raise ValueError(f"{profile.name}: no {what}: {figure.reason}")
    return figure.value


def kernel_time(problem: GemmProblem, tiling: Tiling, machine: Machine, coefficients: Coefficients) -> Breakdown:
    """Where the time of one launch goes."""
    s, c = tiling.schedule, coefficients
    traffic = tile_traffic(problem, s, machine.cache_bytes)
    waves = s.waves(problem)
    k = s.tile_k * ceil_div(ceil_div(problem.k, s.tile_k), s.split_k)
    per_core_cycle = waves / s.cores_per_unit / machine.clock_hz
    a_bytes, b_bytes = (format_named(name).bytes_per_element for name in (problem.a_format, problem.b_format))
    loads = k * (s.tile_m * a_bytes + s.tile_n * b_bytes)
    reads = k * (s.tile_m * s.tile_n) * (a_bytes / tiling.mma_n + b_bytes / tiling.mma_m)
    result = s.tile_m * s.tile_n * (format_named(problem.out_format).element.bits / 8 if s.split_k == 1 else 4)
    multiply_s = 2 * s.tile_m * s.tile_n * k / (machine.flop_per_cycle * c.mma) * per_core_cycle
    shared_s = reads / SHARED_BYTES_PER_CYCLE * per_core_cycle
    l2_s = loads / c.l2_bytes_per_cycle * per_core_cycle
    stores_s = result / c.store_bytes_per_cycle * per_core_cycle
    # Overlapped, what is seen is the last tile's store, or what all stores take beyond the loops.
    exposed_s = max(stores_s / waves, stores_s - max(multiply_s, shared_s, l2_s))
    return Breakdown(
        start_s=c.start_s,
        multiply_s=multiply_s,
        shared_s=shared_s,
        l2_s=l2_s,
        store_s=exposed_s if tiling.overlaps_store else stores_s,
        fill_s=c.tile_cycles * waves / machine.clock_hz,
        memory_s=traffic.hbm_bytes / (machine.memory_bytes_per_s * c.memory),
        waves=waves,
    )


#: Digits of a fitted coefficient: where the search ends is not the same beyond the eighth on every processor.
_FITTED_DIGITS = 6


def fit_coefficients(runs: Sequence[KernelRun], start: Coefficients | None = None) -> Coefficients:
    """Coefficients that make the squared logarithms of predicted over measured time least.

    Raises ValueError for fewer runs than coefficients.
    """
    names = [field.name for field in fields(Coefficients)]
    if len(runs) <= len(names):
        raise ValueError(f"fit_coefficients: {len(runs)} runs for {len(names)} coefficients; more runs are needed")
    first = start or Coefficients()

    def residuals(logs: np.ndarray) -> np.ndarray:
        guess = Coefficients(**dict(zip(names, np.exp(logs), strict=True)))
        return np.array([math.log(predict_s(run, guess) / run.time_s) for run in runs])

    # No more than the nominal rates; the rest within two decades of the first guess.
    begin = np.log([getattr(first, name) for name in names])
    low = begin - math.log(100)
    high = np.array([0.0 if n in ("mma", "memory") else b + math.log(100) for n, b in zip(names, begin, strict=True)])
    found = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    values = (significant(value, _FITTED_DIGITS) for value in np.exp(found.x))
    return Coefficients(**dict(zip(names, values, strict=True)))


def predict_s(run: KernelRun, coefficients: Coefficients) -> float:
    """Modelled seconds of a run."""
    return kernel_time(run.problem, run.tiling, run.machine, coefficients).total_s


def check_times(runs: Sequence[KernelRun], coefficients: Coefficients) -> Check:
    """Relative errors of the model on runs, by name."""
    predicted = [predict_s(run, coefficients) for run in runs]
    return check_predictions([run.name for run in runs], predicted, [run.time_s for run in runs])
