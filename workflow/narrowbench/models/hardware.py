"""Device profiles: what is known of a device, figure by figure, each with its source. No JAX.

A profile is `configs/devices/<slug>.yaml`, the stem being the slug of one such device alone on a machine. Every figure
names its sources (keys of `sources.yaml` beside the profiles) and its grade; a figure that is not known is null with a
reason. Where sources disagree, one value is chosen and the others stand beside it as alternatives.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from narrowbench.config import CONFIGS, Settings, load
from narrowbench.errors import ConfigError
from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named

#: A: vendor or project text read directly. B: a third party that quotes the vendor. C: derived by the formula in the
#: figure's note. D: read off or measured on a device.
Grade = Literal["A", "B", "C", "D"]

DEVICES = CONFIGS / "devices"
SOURCES_FILE = "sources.yaml"

#: Element format -> key of the arithmetic rate that its multiply uses.
_RATE_OF_ELEMENT = {
    "f32": "f32",
    "bf16": "bf16",
    "f16": "f16",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "e2m3": "fp6",
    "e3m2": "fp6",
    "e2m1": "fp4",
    "int8": "int8",
}


class Source(Settings):
    """A source: what it is and where, and the grades that figures taken from it may have."""

    text: str
    grades: tuple[Grade, ...] = Field(min_length=1)


class Sources(Settings):
    """The table of sources by key."""

    sources: dict[str, Source]


class Alternative(Settings):
    """A value that another source gives for the same figure."""

    value: PositiveFloat
    sources: tuple[str, ...] = Field(min_length=1)
    grade: Grade
    note: str | None = None
    doubtful: bool = Field(False, description="means another part or quantity, or seems wrong: no range includes it")


class Figure(Settings):
    """One figure in the unit that ends its key: a value with sources and grade, or null with a reason."""

    value: PositiveFloat | None
    sources: tuple[str, ...] = ()
    grade: Grade | None = None
    note: str | None = Field(None, description="formula of a derived figure (grade C), or what the value includes")
    reason: str | None = Field(None, description="why the value is null")
    alternatives: tuple[Alternative, ...] = ()

    @model_validator(mode="after")
    def _sourced_or_null(self) -> Self:
        if self.value is None and (self.reason is None or self.grade is not None):
            raise ValueError("value null: say why in `reason`, and give no grade")
        if self.value is not None and (not self.sources or self.grade is None):
            raise ValueError(f"value {self.value:g} without sources and grade: name them, or write null with a reason")
        if self.value is not None and self.reason is not None:
            raise ValueError(f"value {self.value:g} with a reason: `reason` goes with null, remarks go in `note`")
        if self.grade == "C" and self.note is None:
            raise ValueError(f"value {self.value:g} of grade C (derived): write the formula in `note`")
        return self

    @property
    def all_sources(self) -> list[tuple[Grade | None, tuple[str, ...]]]:
        """Grade and source keys of the value and of each alternative."""
        return [(self.grade, self.sources), *((other.grade, other.sources) for other in self.alternatives)]

    @property
    def range(self) -> tuple[float, float] | None:
        """Least and largest of the value and the alternatives that are not doubtful; None where there is neither."""
        values = [other.value for other in self.alternatives if not other.doubtful]
        values += [] if self.value is None else [self.value]
        return (min(values), max(values)) if values else None


class Rate(Figure):
    """A dense arithmetic rate and the clock it holds at, so that it can be scaled to the clock a run held."""

    clock_basis_hz: PositiveFloat | None = None
    clock_basis_reason: str | None = Field(None, description="why the clock of this rate is not known")

    @model_validator(mode="after")
    def _clock_or_reason(self) -> Self:
        if self.value is not None and (self.clock_basis_hz is None) == (self.clock_basis_reason is None):
            raise ValueError("a rate has either clock_basis_hz or clock_basis_reason")
        return self


class Rates(Settings):
    """Dense rates of the whole device by format, FLOP/s (integer operations a second for int8 and int4).

    Two operations a multiply-add. FP32 accumulation where the device has a choice.
    """

    dense: Literal[True]
    f32: Rate
    tf32: Rate
    bf16: Rate
    f16: Rate
    fp8: Rate
    fp6: Rate
    fp4: Rate
    int8: Rate
    int4: Rate


#: The formats that rates are given for.
RATE_KEYS = tuple(key for key in Rates.model_fields if key != "dense")


class Headline(Settings):
    """Whether the figure that the vendor advertises counts 2:4 sparsity, and how it reads."""

    is_sparse: bool | None
    note: str
    sources: tuple[str, ...] = Field(min_length=1)
    grade: Grade


class Support(Settings):
    """Whether the matrix unit takes a format itself (true, false, or null where no source says)."""

    native: bool | None
    sources: tuple[str, ...] = Field(min_length=1)
    grade: Grade
    note: str | None = None


class NativeFormats(Settings):
    """Narrow formats of the matrix unit; `mx` is OCP block scaling in hardware, `nvfp4` NVIDIA's."""

    fp8: Support
    fp6: Support
    fp4: Support
    int8: Support
    mx: Support
    nvfp4: Support


class Memory(Settings):
    """The device's own memory; bandwidth counts reads plus writes."""

    kind: str
    capacity_bytes: Figure
    bandwidth_bytes_per_s: Figure


class Cache(Settings):
    """Shared caches of the whole device."""

    l2_bytes: Figure
    l3_bytes: Figure


class Cores(Settings):
    """The units that a kernel's tiles are spread over."""

    kind: Literal["SM", "CU", "TensorCore", "core"]
    count: Figure


class Scratchpad(Settings):
    """Software-managed memory: shared memory, LDS or VMEM."""

    kind: str | None
    per_core_bytes: Figure
    per_block_bytes: Figure


class Clocks(Settings):
    """Highest clock of the cores that is published or read."""

    boost_hz: Figure


class Power(Settings):
    """Power limit of the board, package or module named in `per`."""

    limit_w: Figure


class Link(Settings):
    """The scale-up link of one device, all lanes together, one direction."""

    kind: str | None
    each_way_bytes_per_s: Figure


class DeviceProfile(Settings):
    """What is known of one device; `per` says what one device is (a GPU, a socket ...)."""

    name: str
    vendor: Literal["nvidia", "amd", "google", "intel"]
    kind: Literal["gpu", "tpu", "cpu"]
    architecture: str
    compile_target: str | None
    per: str
    reported_names: tuple[str, ...] = Field(description="names that a driver reports for it, as far as seen")
    headline: Headline
    rates_flop_per_s: Rates
    native: NativeFormats
    memory: Memory
    cache: Cache
    cores: Cores
    scratchpad: Scratchpad
    clocks: Clocks
    power: Power
    link: Link

    @property
    def last_cache_bytes(self) -> float | None:
        """Size of the last cache before memory: L3 where there is one, else L2."""
        return self.cache.l3_bytes.value or self.cache.l2_bytes.value


def rate_key(a_format: str, b_format: str) -> str:
    """Key of `Rates` that a multiply of these formats uses: that of the operand with the wider elements."""
    widest = max((format_named(name).element for name in (a_format, b_format)), key=lambda element: element.bits)
    return _RATE_OF_ELEMENT[widest.name]


def profile_of(slug: str, device_kind: str, profiles: Mapping[str, DeviceProfile]) -> DeviceProfile | None:
    """The profile of a row's device: by its slug, or where that has a number at its end by what its driver calls it.

    None where no profile knows it, as most host CPUs.
    """
    if slug in profiles:
        return profiles[slug]
    return next((profile for profile in profiles.values() if device_kind in profile.reported_names), None)


def sources_markdown(sources: Mapping[str, Source]) -> str:
    """The sources as a list, a line a key: the end of `docs/devices.md`."""
    keys = sorted(sources, key=lambda key: (key[0], int(key[1:])))
    return "".join(f"- **{key}** ({', '.join(sources[key].grades)}) {sources[key].text}\n" for key in keys)


def profile_for(slug: str, profiles: Mapping[str, DeviceProfile]) -> DeviceProfile:
    """The profile of `slug`. Raises ValueError, naming the nearest known ones, for any other."""
    if slug not in profiles:
        raise ValueError(unknown_name("device", slug, profiles))
    return profiles[slug]


def load_sources(folder: Path = DEVICES) -> dict[str, Source]:
    """The table of sources of `folder`. Raises ConfigError naming file and field."""
    return load(Sources, folder / SOURCES_FILE).sources


def load_profiles(folder: Path = DEVICES) -> dict[str, DeviceProfile]:
    """All profiles of `folder` by slug, sorted. Raises ConfigError naming file, field and rule."""
    sources = load_sources(folder)
    profiles = {}
    for path in sorted(path for path in folder.glob("*.yaml") if path.name != SOURCES_FILE):
        profiles[path.stem] = load(DeviceProfile, path)
        check_sources(path.name, profiles[path.stem], sources)
    return profiles


def check_sources(where: str, record: Settings, sources: Mapping[str, Source]) -> None:
    """Raise ConfigError where a record names an unknown source or a grade that none of its sources has."""
    for field, grade, keys in _sourced(record, where):
        for key in keys:
            if key not in sources:
                raise ConfigError(f"{field}: {unknown_name('source', key, sources)}")
        offered = {offer for key in keys for offer in sources[key].grades} | {"C"}
        if grade is not None and grade not in offered:
            raise ConfigError(f"{field}: grade {grade}, but {', '.join(keys)} give only {', '.join(sorted(offered))}")


def _sourced(record: Settings, where: str) -> list[tuple[str, Grade | None, tuple[str, ...]]]:
    """Every (field path, grade, source keys) in a record, at any depth."""
    found: list[tuple[str, Grade | None, tuple[str, ...]]] = []
    if isinstance(record, Figure):
        found += [(where, grade, keys) for grade, keys in record.all_sources]
    elif isinstance(record, Headline | Support):
        found.append((where, record.grade, record.sources))
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, Settings):
            found += _sourced(value, f"{where}: {name}" if ":" not in where else f"{where}.{name}")
    return found
