"""What can be configured: the protocol of measurement, suites of shapes, and campaigns. YAML, checked on reading."""

from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from narrowbench.errors import ConfigError
from narrowbench.names import (
    Cache,
    DeviceClass,
    KnownCache,
    KnownClass,
    KnownDistribution,
    KnownMode,
    OperandFormat,
    OutFormat,
)
from narrowbench.store.groups import Groups, check_rows
from narrowbench.store.rows import Epilogue, Mode
from narrowbench.store.strict import MOST, Extent
from narrowgemm.errors import unknown_name
from narrowgemm.problem import NO_EPILOGUE

#: The checkout: configurations and results are found from here, whatever the working directory.
ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"

Fraction = Annotated[float, Field(gt=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """A mapping of a configuration: unknown keys are refused with the nearest known name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(unknown_name("key", key, cls.model_fields))
        return data


class StopSettings(Settings):
    """When sampling ends: the interval of the median is narrow enough, or a bound is reached."""

    confidence: Fraction
    target_relative_half_width: Fraction
    min_samples: int = Field(ge=6, description="an order-statistic interval at 95% needs six")
    max_samples: PositiveInt
    budget_s: PositiveFloat

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.max_samples < self.min_samples:
            raise ValueError(f"max_samples={self.max_samples} is below min_samples={self.min_samples}")
        return self


class BurstSettings(Settings):
    """Trains of launches from cool."""

    train_s: PositiveFloat
    idle_s: NonNegative
    warm_up_launches: PositiveInt
    warm_up_s: NonNegative = Field(description="unmeasured launches go on for at least this long")
    clock_floor: Fraction
    stop: StopSettings


class SustainedSettings(Settings):
    """Windows of back-to-back launches once clock and temperature are flat."""

    warm_up_s: PositiveFloat
    flat_clock_relative: Fraction
    flat_temperature_c: PositiveFloat
    window_s: PositiveFloat
    start_jitter_s: NonNegative
    stop: StopSettings


class CrossCheckSettings(Settings):
    """Where device time and wall clock have to agree, and how closely."""

    min_launch_s: PositiveFloat
    max_relative_difference: Fraction


class EnergySettings(Settings):
    """Windows and readings of the energy meters."""

    min_window_s: PositiveFloat
    idle_s: PositiveFloat
    poll_s: PositiveFloat


class TuningSettings(Settings):
    """How a search times configs: each in a few short trains, then the best few again, in turn, as bursts."""

    trains: PositiveInt
    train_s: PositiveFloat
    warm_up_s: NonNegative
    idle_s: NonNegative
    finalists: PositiveInt
    final: BurstSettings


class Protocol(Settings):
    """How every case is measured."""

    burst: BurstSettings
    sustained: SustainedSettings
    rotation_l2_multiple: float = Field(ge=1)
    cross_check: CrossCheckSettings
    energy: EnergySettings
    tuning: TuningSettings


class ShapeEntry(Settings):
    """One layer, or one plain shape, at one or more extents of M."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    m: list[Extent] = Field(min_length=1)
    n: Extent
    k: Extent
    origin: str = Field(min_length=1, description="model and layer, or why this shape is here")
    groups: Groups | None = Field(None, description="many products in one launch; m is the rows of all")


class Shape(Settings):
    """One M, N, K with its name in the suite and where it comes from; in groups, M is the rows of all."""

    name: str
    m: Extent
    n: Extent
    k: Extent
    origin: str
    groups: Groups | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if 2 * self.m * self.n * self.k > MOST:
            raise ValueError(f"m={self.m}, n={self.n}, k={self.k} are more FLOP than 64 bits count")
        check_rows(self.groups, self.m)
        return self


class Suite(Settings):
    """A named set of shapes: `configs/suites/<name>.yaml`."""

    title: str
    entries: list[ShapeEntry] = Field(min_length=1)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape, in the file's order."""
        return tuple(
            Shape(
                name=f"{entry.name}-m{m}" if len(entry.m) > 1 else entry.name,
                m=m,
                n=entry.n,
                k=entry.k,
                origin=entry.origin,
                groups=entry.groups,
            )
            for entry in self.entries
            for m in entry.m
        )

    @model_validator(mode="after")
    def _each_shape_once(self) -> Self:
        seen: dict[tuple[int, int, int, Groups | None], str] = {}
        for shape in self.shapes:
            work = (shape.m, shape.n, shape.k, shape.groups)
            if work in seen:
                raise ValueError(f"{shape.name} and {seen[work]} are both m={shape.m}, n={shape.n}, k={shape.k}")
            seen[work] = shape.name
        return self

    @property
    def manys(self) -> tuple[Literal["batched", "grouped"], ...]:
        """Ways to do many products in one launch that its shapes ask for, sorted."""
        return tuple(sorted({entry.groups.many for entry in self.entries if entry.groups is not None}))


class PlanEntry(Settings):
    """Kernels × suites × modes × distributions × output formats × epilogues to measure on one class of devices."""

    kernels: list[str] = Field(min_length=1)
    suites: list[str] = Field(min_length=1)
    modes: list[KnownMode] = Field(min_length=1)
    distributions: list[KnownDistribution] = Field(default=["normal"], min_length=1)
    out_formats: list[OutFormat] = Field(default=["bf16"], min_length=1)
    epilogues: list[Epilogue] = Field(
        default=[NO_EPILOGUE], min_length=1, description="parts in order, such as scales_bias_gelu, or none"
    )
    operands: list[tuple[OperandFormat, OperandFormat]] | None = Field(
        None, description="formats of a and b; null: the kernel's first of each"
    )
    caches: list[KnownCache] = Field(default=["rotated"], min_length=1)
    windows_s: list[PositiveFloat] | None = Field(
        None,
        min_length=1,
        description="lengths of windows to study; null: the protocol's, of which alone energy is shown",
    )
    repeat: PositiveInt | None = Field(
        None,
        description="number of a repetition, on another day or board, kept beside the first measurement of each case",
    )

    @model_validator(mode="after")
    def _windows_are_sustained(self) -> Self:
        if self.windows_s is not None and self.modes != ["sustained"]:
            raise ValueError(f"windows_s with modes {self.modes}: only sustained cases have windows")
        return self


class CompileEntry(Settings):
    """Kernels × suites to compile for GPUs that need not be there."""

    kernels: list[str] = Field(min_length=1)
    suites: list[str] = Field(min_length=1)
    targets: list[str] = Field(min_length=1, description="names of `narrowgemm.aot.TARGETS`")


class Setting(Settings):
    """What a case is beside its shape."""

    mode: Mode
    distribution: str
    out_format: str
    epilogue: str = NO_EPILOGUE
    operands: tuple[str, str] | None
    cache: Cache
    window_s: float | None = None
    repeat: int | None = None


class Campaign(Settings):
    """What is measured, by class of device: `configs/main.yaml` and its like."""

    title: str
    devices: Literal["auto"] | list[str] = Field(
        "auto", description="slugs or classes; auto: the accelerators of this machine, or its CPU where there is none"
    )
    seed: int = Field(0, ge=0, le=MOST)
    plan: dict[KnownClass, list[PlanEntry]]
    compile: list[CompileEntry] = []
    space: list[CompileEntry] = Field([], description="what is compiled with every config that the kernel offers")
    roof_modes: list[KnownMode] = Field(min_length=1)
    roof_formats: list[OperandFormat] | None = Field(
        None, description="formats whose arithmetic has its roof measured; null: all that the device multiplies"
    )
    job_budget_s: PositiveFloat | None = Field(
        None, description="a job starts no further case after this; it names the rest"
    )
    protocol: dict[str, Any] = Field(default={}, description="values that replace those of configs/protocol.yaml")

    @model_validator(mode="after")
    def _protocol_is_one(self) -> Self:
        merged_protocol(self.protocol)
        return self

    def suites(self) -> set[str]:
        """Names of all suites that it uses."""
        return {suite for entry in self.entries() for suite in entry.suites}

    def entries(self) -> list[PlanEntry | CompileEntry]:
        """Everything it plans, for whatever device."""
        return [*chain(*self.plan.values()), *self.compile, *self.space]

    def jobs(self, device_class: DeviceClass) -> tuple[tuple[str, str], ...]:
        """Pairs of kernel and suite to measure on such a device, each once, in the plan's order."""
        pairs = [(k, s) for entry in self.plan.get(device_class, []) for k in entry.kernels for s in entry.suites]
        return tuple(dict.fromkeys(pairs))

    def compiled_kernels(self) -> tuple[str, ...]:
        """Kernels to compile for absent GPUs, each once."""
        return tuple(dict.fromkeys(kernel for entry in self.compile for kernel in entry.kernels))

    def space_kernels(self) -> tuple[str, ...]:
        """Kernels to compile with all of their configs, each once."""
        return tuple(dict.fromkeys(kernel for entry in self.space for kernel in entry.kernels))

    def settings(self, device_class: DeviceClass, kernel: str, suite: str) -> tuple[Setting, ...]:
        """The settings at which that job measures each shape, each once, in the plan's order."""
        entries = [e for e in self.plan.get(device_class, []) if kernel in e.kernels and suite in e.suites]
        return tuple(dict.fromkeys(setting for entry in entries for setting in _settings_of(entry)))


def _settings_of(entry: PlanEntry) -> Iterator[Setting]:
    choices: dict[str, Sequence[Any]] = {
        "mode": entry.modes,
        "distribution": entry.distributions,
        "out_format": entry.out_formats,
        "epilogue": entry.epilogues,
        "operands": entry.operands or (None,),
        "cache": entry.caches,
        "window_s": entry.windows_s or (None,),
        "repeat": (entry.repeat,),
    }
    for chosen in product(*choices.values()):
        yield Setting.model_validate(dict(zip(choices, chosen, strict=True)))


def load_protocol(campaign: Campaign | None = None) -> Protocol:
    """The protocol of `configs/protocol.yaml`, with the campaign's own values put over it."""
    return merged_protocol(campaign.protocol if campaign else {})


def merged_protocol(overrides: dict[str, Any]) -> Protocol:
    """The protocol with single values replaced. Raises ConfigError that lists every fault with its key."""
    return parse(Protocol, _merged(_read_mapping(CONFIGS / "protocol.yaml"), overrides), "protocol")


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return base | {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }


def suite_names() -> tuple[str, ...]:
    """Names of all suites, sorted."""
    return tuple(sorted(path.stem for path in (CONFIGS / "suites").glob("*.yaml")))


def load_suite(name: str) -> Suite:
    """The suite called `name`. Raises ConfigError that names the nearest known suites, or the fault in the file."""
    if name not in suite_names():
        raise ConfigError(unknown_name("suite", name, suite_names()))
    return load(Suite, CONFIGS / "suites" / f"{name}.yaml")


def single_shapes(name: str) -> tuple[Shape, ...]:
    """Shapes of a suite, for what knows single products alone. Raises as `load_suite`, and ConfigError for groups."""
    suite = load_suite(name)
    if suite.manys:
        raise ConfigError(f"suite {name} has groups, which are measured and neither tuned nor compiled; name another")
    return suite.shapes


def load_campaign(path: Path) -> Campaign:
    """The campaign of a file. Raises ConfigError that names file, key and nearest known name."""
    campaign = load(Campaign, path)
    for suite in campaign.suites():
        load_suite(suite)
    return campaign


def campaign_schema() -> dict[str, Any]:
    """The JSON Schema of a campaign, for editors and for Snakemake."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Campaign.model_json_schema()


def load[Model: Settings](model: type[Model], path: Path) -> Model:
    """The YAML file at `path` as `model`. Raises ConfigError that lists every fault with its key."""
    return parse(model, _read_mapping(path), str(path))


def parse[Model: BaseModel](model: type[Model], data: object, source: str) -> Model:
    """`data` as `model`. Raises ConfigError that lists every fault with its key; `source` is what it calls the data."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, e['loc'])) or 'top level'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise ConfigError(f"{source}: " + "; ".join(faults)) from error


class _UniqueKeys(yaml.CSafeLoader):
    """Refuses a key given twice in a mapping, of which YAML would silently let the last win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"given twice: {', '.join(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of UTF-8, and of a date or number that is none
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {type(data).__name__}, not a mapping of keys")
    return data
