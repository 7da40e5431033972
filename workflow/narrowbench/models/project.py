"""What a kernel's gain is worth: GPU-hours, energy, money and carbon a day, with the arithmetic shown. No JAX."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from narrowbench.config import CONFIGS, Settings, load, parse
from narrowbench.models.hardware import DeviceProfile, Figure, profile_for, rate_key
from narrowbench.names import one_of
from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named

GainIn = Literal["throughput", "time"]


class Scenario(Settings):
    """Every input of the calculator; there is no hidden one."""

    note: str = ""
    gpus: PositiveInt
    hours_per_day: float = Field(24.0, gt=0, le=24)
    gemm_share: float = Field(gt=0, le=1, description="share of a step's time that is GEMM")
    gain: float = Field(gt=0, description="0.10 is 10 percent")
    gain_in: Annotated[GainIn, one_of("kind of gain", get_args(GainIn))] = Field(
        "throughput", description="throughput: GEMM runs 1 + gain as fast; time: GEMM takes 1 - gain of its time"
    )
    power_w: PositiveFloat = Field(description="what one GPU draws in the hours that are saved")
    pue: float = Field(ge=1, description="power of the whole site over that of its computers")
    price_per_kwh: NonNegativeFloat
    currency: str = "USD"
    carbon_kg_per_kwh: NonNegativeFloat

    @model_validator(mode="after")
    def _time_cannot_all_go(self) -> Self:
        if self.gain_in == "time" and self.gain >= 1:
            raise ValueError(f"gain={self.gain} of time: below 1, for GEMM to take any")
        return self


@dataclass(frozen=True)
class Saving:
    """What a day saves."""

    share_of_step: float
    gpu_hours: float
    energy_kwh: float
    money: float
    carbon_kg: float


class Factor(Settings):
    """A claimed factor in energy per token between two devices, to be set against what their data sheets give."""

    note: str = ""
    claimed: PositiveFloat
    old_device: str
    old_format: str
    new_device: str
    new_format: str


class Projections(Settings):
    """Named scenarios and factors: `configs/projections.yaml`."""

    scenarios: dict[str, Scenario]
    factors: dict[str, Factor]


def load_projections(path: Path = CONFIGS / "projections.yaml") -> Projections:
    """The named projections. Raises ConfigError naming file and key."""
    return load(Projections, path)


def scenario_of(name: str | None, inputs: Mapping[str, object], projections: Projections) -> Scenario:
    """The scenario called `name` with these inputs in place of its own; without a name, of the inputs alone.

    Raises ValueError, naming the nearest known ones, for an unknown name; ConfigError naming a missing or wrong input.
    """
    if name is None:
        return parse(Scenario, dict(inputs), "project")
    if name not in projections.scenarios:
        raise ValueError(unknown_name("scenario", name, projections.scenarios))
    own = projections.scenarios[name].model_dump()
    return parse(Scenario, own | ({"note": ""} if inputs else {}) | dict(inputs), f"project: {name}")


def worked_text(projections: Projections, profiles: Mapping[str, DeviceProfile]) -> str:
    """Every named scenario and factor, worked through."""
    scenarios = [f"{name}: {saving_text(scenario)}" for name, scenario in projections.scenarios.items()]
    factors = [f"{name}: {factor_text(factor, profiles)}" for name, factor in projections.factors.items()]
    return "\n\n".join([*scenarios, *factors])


def saving(scenario: Scenario) -> Saving:
    """What a day of the scenario saves."""
    part = scenario.gain if scenario.gain_in == "time" else 1 - 1 / (1 + scenario.gain)
    share = scenario.gemm_share * part
    gpu_hours = scenario.gpus * scenario.hours_per_day * share
    energy_kwh = gpu_hours * scenario.power_w / 1000 * scenario.pue
    return Saving(
        share_of_step=share,
        gpu_hours=gpu_hours,
        energy_kwh=energy_kwh,
        money=energy_kwh * scenario.price_per_kwh,
        carbon_kg=energy_kwh * scenario.carbon_kg_per_kwh,
    )


def saving_text(scenario: Scenario) -> str:
    """The calculation line by line, every input named."""
    s, day = scenario, saving(scenario)
    part = f"{s.gain:g}" if s.gain_in == "time" else f"(1 − 1 / {1 + s.gain:g})"
    hours, energy = f"{day.gpu_hours:,.1f}", f"{day.energy_kwh:,.1f}"
    lines = [
        *([s.note] if s.note else []),
        f"time saved    GEMM share {s.gemm_share:g} × {part} = {day.share_of_step:.4f} of a step",
        f"GPU-hours     {s.gpus} GPUs × {s.hours_per_day:g} h × {day.share_of_step:.4f} = {hours} a day",
        f"energy        {hours} h × {s.power_w / 1000:g} kW × PUE {s.pue:g} = {energy} kWh a day",
        f"money         {energy} kWh × {s.price_per_kwh:g} = {day.money:,.2f} {s.currency} a day",
        f"carbon        {energy} kWh × {s.carbon_kg_per_kwh:g} kg = {day.carbon_kg:,.1f} kg CO2e a day",
        "Energy, money and carbon are saved only where the hours saved are not given to other work.",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class FactorCheck:
    """What data sheets give of a claimed factor.

    compute: ratio of J/FLOP at the power limit and the dense peak, what a compute-bound token costs.
    memory:  ratio of J per weight at the power limit and the nominal bandwidth, what a memory-bound token costs.
    rest:    claimed factor over the larger of both: left to batching, links, latency limits and software.
    """

    compute: float
    memory: float
    rest: float


def check_factor(factor: Factor, profiles: Mapping[str, DeviceProfile]) -> FactorCheck:
    """The part of a claimed factor that data sheets explain. Raises ValueError where a profile lacks a figure."""
    (old_flop, old_weight), (new_flop, new_weight) = (
        _costs_j(device, fmt, profiles)
        for device, fmt in ((factor.old_device, factor.old_format), (factor.new_device, factor.new_format))
    )
    compute, memory = old_flop / new_flop, old_weight / new_weight
    return FactorCheck(compute, memory, factor.claimed / max(compute, memory))


def factor_text(factor: Factor, profiles: Mapping[str, DeviceProfile]) -> str:
    """The check of a claimed factor line by line, every input named."""
    found = check_factor(factor, profiles)
    lines = [factor.note] if factor.note else []
    for device, fmt in ((factor.old_device, factor.old_format), (factor.new_device, factor.new_format)):
        power_w, rate, bandwidth = _figures(device, fmt, profiles)
        flop_j, weight_j = _costs_j(device, fmt, profiles)
        tflop, tbyte, size = f"{rate / 1e12:,.0f}", f"{bandwidth / 1e12:g}", f"{format_named(fmt).bytes_per_element:g}"
        lines += [
            f"{device}, {fmt}",
            f"  compute     {power_w:g} W / {tflop} TFLOP/s dense = {flop_j * 1e12:.3f} pJ/FLOP",
            f"  memory      {power_w:g} W / {tbyte} TB/s × {size} byte = {weight_j * 1e12:.1f} pJ a weight",
        ]
    larger = max(found.compute, found.memory)
    lines += [
        f"data sheets   {found.compute:.2f} times less a FLOP, {found.memory:.2f} times less a weight read",
        f"left over     {factor.claimed:g} / {larger:.2f} = {found.rest:.1f} times: batching, links, latency, software",
    ]
    return "\n".join(lines)


def _figures(device: str, fmt: str, profiles: Mapping[str, DeviceProfile]) -> tuple[float, float, float]:
    """Power limit in W, dense rate in FLOP/s, bandwidth in byte/s."""
    profile = profile_for(device, profiles)
    rate = getattr(profile.rates_flop_per_s, rate_key(fmt, fmt))
    return (
        _known(device, "power limit", profile.power.limit_w),
        _known(device, f"rate of {fmt}", rate),
        _known(device, "bandwidth", profile.memory.bandwidth_bytes_per_s),
    )


def _known(device: str, what: str, figure: Figure) -> float:
    if figure.value is None:
        raise ValueError(f"{device}: no {what}: {figure.reason}")
    return figure.value


def _costs_j(device: str, fmt: str, profiles: Mapping[str, DeviceProfile]) -> tuple[float, float]:
    """Joules of a FLOP at the dense peak and of reading a weight at the nominal bandwidth, both at the power limit."""
    power_w, rate, bandwidth = _figures(device, fmt, profiles)
    return power_w / rate, power_w / bandwidth * format_named(fmt).bytes_per_element
