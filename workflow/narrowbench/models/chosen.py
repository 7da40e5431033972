"""What the time model says of kernels that were compiled and never run: their chosen configs on absent devices. No JAX.

The kernels' own modules, which choose, need JAX; their choices come here from `configs/modelled.yaml`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from narrowbench.config import CONFIGS, Settings, load
from narrowbench.errors import ConfigError
from narrowbench.models.hardware import DeviceProfile, rate_key
from narrowbench.models.kerneltime import Breakdown, Coefficients, kernel_time, machine_of
from narrowbench.models.prediction import ShapeMnk
from narrowbench.models.tilings import tiling_of
from narrowbench.models.traffic import Schedule, Traffic, tile_traffic
from narrowbench.names import OperandFormat
from narrowgemm.errors import unknown_name
from narrowgemm.problem import GemmProblem

#: Nothing lost but whole waves: nominal rates of cores and memory, no start, no filling, no store.
NOMINAL = Coefficients(mma=1, memory=1, l2_bytes_per_cycle=1e9, store_bytes_per_cycle=1e9, tile_cycles=0, start_s=0)


class Choice(Settings):
    """A config for a shape M, N, K; the first of a shape is the one that the kernel would use."""

    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    config: dict[str, Any] = Field(min_length=1)


class ChosenKernel(Settings):
    """Formats of a kernel's operands, and its choices."""

    a_format: OperandFormat
    b_format: OperandFormat
    choices: tuple[Choice, ...] = Field(min_length=1)

    def problem(self, shape: ShapeMnk) -> GemmProblem:
        return GemmProblem(*shape, self.a_format, self.b_format, "bf16")

    def leading(self) -> list[Choice]:
        """The first choice of each shape."""
        first: dict[ShapeMnk, Choice] = {}
        for choice in self.choices:
            first.setdefault(choice.shape, choice)
        return list(first.values())


class Chosen(Settings):
    """Devices that the kernels are modelled on, by slug, and the kernels by stem."""

    devices: tuple[str, ...] = Field(min_length=1)
    kernels: dict[str, ChosenKernel] = Field(min_length=1)


@dataclass(frozen=True)
class Modelled:
    """One launch that never ran: its time, and the least that the same schedule takes at nominal rates.

    peak_flop_per_s: dense, of the data sheet, at the clock of which the times hold too.
    """

    device: str
    kernel: str
    problem: GemmProblem
    config: Mapping[str, Any]
    schedule: Schedule
    time: Breakdown
    least_s: float
    traffic: Traffic
    peak_flop_per_s: float

    @property
    def rate_flop_per_s(self) -> float:
        return self.problem.flop / self.time.total_s

    @property
    def share(self) -> float:
        """Of the dense peak."""
        return self.rate_flop_per_s / self.peak_flop_per_s

    @property
    def most_share(self) -> float:
        """Of the dense peak, at nominal rates."""
        return self.problem.flop / self.least_s / self.peak_flop_per_s


def load_chosen(profiles: Mapping[str, DeviceProfile], path: Path = CONFIGS / "modelled.yaml") -> Chosen:
    """The choices. Raises ConfigError naming an unknown device."""
    chosen = load(Chosen, path)
    for slug in chosen.devices:
        if slug not in profiles:
            raise ConfigError(f"{path.name}: {unknown_name('device', slug, profiles)}")
    return chosen


def modelled(
    chosen: Chosen, profiles: Mapping[str, DeviceProfile], coefficients: Coefficients, leading_only: bool = True
) -> Iterator[Modelled]:
    """Every kernel, device and shape with its leading choice, or with all of its choices."""
    for name, kernel in chosen.kernels.items():
        for slug in chosen.devices:
            for choice in kernel.leading() if leading_only else kernel.choices:
                yield _modelled(slug, profiles[slug], name, kernel.problem(choice.shape), choice, coefficients)


def _modelled(
    slug: str, profile: DeviceProfile, kernel: str, problem: GemmProblem, choice: Choice, coefficients: Coefficients
) -> Modelled:
    machine = machine_of(profile, problem.a_format, problem.b_format)
    tiling = tiling_of(kernel, choice.config, problem, machine.cores)
    peak = getattr(profile.rates_flop_per_s, rate_key(problem.a_format, problem.b_format)).value
    return Modelled(
        device=slug,
        kernel=kernel,
        problem=problem,
        config=choice.config,
        schedule=tiling.schedule,
        time=kernel_time(problem, tiling, machine, coefficients),
        least_s=kernel_time(problem, tiling, machine, NOMINAL).total_s,
        traffic=tile_traffic(problem, tiling.schedule, machine.cache_bytes),
        peak_flop_per_s=peak,
    )
