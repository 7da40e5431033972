"""The schema of a result row: what one case of one device gave, and how it was obtained.

A row is one line of JSON. `null` stands for «not known» and always has a reason beside it; there are no
stand-in values. Units are SI and end the names. Statistics are computed on reading, never stored.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from narrowbench.store.counters import Counters, CountersCase
from narrowbench.store.groups import Groups, check_rows
from narrowbench.store.space import Space, SpaceCase
from narrowbench.store.strict import MOST, Name, OfSuite, OnProblem, Strict
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import NO_EPILOGUE, epilogue_parts

#: Major breaks readers, minor adds fields.
SCHEMA_VERSION: Final = "1.8"

Mode = Literal["burst", "sustained"]
Evidence = Literal["measured", "compiled", "interpreted", "modelled"]
Scope = Literal["board", "package"]
#: What is done to the product before it is stored, by its parts: «scales_bias_gelu».
Epilogue = Annotated[str, AfterValidator(lambda name: "_".join(epilogue_parts(name)) or NO_EPILOGUE)]
Status = Literal["ok", "unsupported", "failed", "unstable"]


class GemmCase(OnProblem, OfSuite):
    """One GEMM to be done, or many in one launch: the problem, the kernel, the data and the mode."""

    kind: Literal["gemm"] = "gemm"
    layout: Literal["mk_nk"] = "mk_nk"
    epilogue: Epilogue = NO_EPILOGUE
    distribution: str
    seed: int = Field(ge=-MOST, le=MOST)
    mode: Mode
    cache: Literal["rotated", "warm"]
    window_s: PositiveFloat | None = Field(
        None, description="length of the windows, where it is what is studied; null: the protocol's"
    )
    repeat: PositiveInt | None = Field(
        None, description="number of the repetition, on another day or board, that stands beside the first measurement"
    )
    groups: Groups | None = Field(
        None,
        # A case of one product is written as it was before there were groups: its key and its draws stay the same.
        exclude_if=lambda groups: groups is None,
        description="many products in one launch, of which m is the rows of all; null: one product",
    )

    @model_validator(mode="after")
    def _windows_are_sustained(self) -> Self:
        if self.window_s is not None and self.mode != "sustained":
            raise ValueError(f"window_s={self.window_s} of a {self.mode} case: only sustained cases have windows")
        return self

    @model_validator(mode="after")
    def _rows_make_up_the_groups(self) -> Self:
        check_rows(self.groups, self.m)
        return self

    @property
    def many(self) -> Literal["batched", "grouped"] | None:
        """How it is many products in one launch, as kernels know it; None: it is one."""
        return None if self.groups is None else self.groups.many

    @property
    def least_bytes(self) -> int:
        """Least traffic: as of the problem, and the B of each further group that has rows read once."""
        if self.groups is None:
            return self.problem.bytes
        further = self.groups.multiplied(self.m, self.seed) - 1
        return self.problem.bytes + further * format_named(self.b_format).storage_bytes(self.n, self.k)


class RoofCase(Strict):
    """A micro-benchmark of one roof of the device: bytes moved or operations done a launch are known exactly."""

    kind: Literal["roof"] = "roof"
    quantity: Literal["read", "copy", "cache_read", "shared_read", "active_idle", "flop"] = Field(
        description="bytes read from memory, copied in it, read from the last-level cache or from shared memory; "
        "nothing done with clocks up; or operations done"
    )
    format: str | None = Field(None, description="format of the operands, for `flop` alone")
    distribution: str | None = Field(None, description="data of the operands, for `flop` alone")
    work: int = Field(gt=0, le=MOST, description="of one launch: FLOP (flop), 1 (active_idle) or bytes")
    mode: Mode


class CompileCase(OnProblem, OfSuite):
    """One GEMM compiled for a device that need not be there: no data, no mode, nothing run."""

    kind: Literal["compile"] = "compile"
    config: dict[str, object] | None = Field(description="what was compiled; null: the kernel had no config to offer")


class TuningCase(OnProblem, OfSuite):
    """A search for the fastest config of a kernel on one GEMM, in bursts, operands rotated past the cache."""

    kind: Literal["tuning"] = "tuning"
    distribution: str
    seed: int = Field(ge=-MOST, le=MOST)
    top: PositiveInt | None = Field(description="candidates that were tried, the kernel's first guesses; null: all")


Case = Annotated[GemmCase | RoofCase | CompileCase | TuningCase | CountersCase | SpaceCase, Field(discriminator="kind")]


class Spread(Strict):
    """Smallest, middle and largest of `count` readings."""

    min: FiniteFloat
    median: FiniteFloat
    max: FiniteFloat
    count: PositiveInt


class StopRule(Strict):
    """What ended the sampling."""

    confidence: float = Field(gt=0, lt=1)
    target_relative_half_width: PositiveFloat
    min_samples: PositiveInt
    max_samples: PositiveInt
    budget_s: PositiveFloat
    stopped_by: Literal["interval", "max_samples", "budget"]


class Dropped(Strict):
    """Samples that were taken and not used, kept with the reason."""

    reason: str
    samples_s: list[PositiveFloat]


class Timing(Strict):
    """Time of one launch. A sample is one train of `launches_per_sample` launches (burst) or one window (sustained)."""

    samples_s: list[PositiveFloat] = Field(
        min_length=1, description="device time of one launch, one entry a train or window"
    )
    launches_per_sample: list[PositiveInt]
    method: Literal["cupti", "wall_clock"]
    wall_clock_samples_s: list[PositiveFloat] | None = Field(
        None, description="the same samples by wall clock, as a cross-check"
    )
    device_check_s: PositiveFloat | None = Field(
        None, description="device time of one launch in a short train after the windows of a sustained case"
    )
    cross_check_reason: str | None = Field(
        None, description="why the two clocks differ by over 3%, or why there is only one"
    )
    session: str | None = Field(
        None, description="shared by rows whose samples of equal number were taken one after the other, in random order"
    )
    warm_up_launches: int = Field(ge=0)
    rotation_sets: PositiveInt
    rotation_bytes: PositiveInt
    stop_rule: StopRule
    dropped: list[Dropped] = Field([])

    @model_validator(mode="after")
    def _as_many_counts_as_samples(self) -> Self:
        if len(self.launches_per_sample) != len(self.samples_s):
            raise ValueError(f"{len(self.launches_per_sample)} launch counts for {len(self.samples_s)} samples")
        return self


class EnergyWindow(Strict):
    """One window of back-to-back launches."""

    window_s: PositiveFloat
    launches: PositiveInt
    counter_j: PositiveFloat | None
    integrated_j: PositiveFloat | None


class Energy(Strict):
    """Energy of the windows of a sustained case, total and not idle-subtracted."""

    source: Literal["counter", "integrated"] = Field(description="which reading is the result")
    meter: str = Field(description="for example nvml or rapl")
    scope: Scope
    windows: list[EnergyWindow] = Field(min_length=1)
    idle_w: PositiveFloat | None
    idle_reason: str | None = None
    gain_error_relative: NonNegativeFloat | None = Field(
        description="systematic error of the sensor, not part of an interval"
    )


class WindowReading(Strict):
    """What the meter showed of one window, believed or not: a short one may show nothing, or two ticks for one."""

    window_s: PositiveFloat
    launches: PositiveInt
    counter_j: FiniteFloat | None
    integrated_j: FiniteFloat | None


class Clocks(Strict):
    """What the device did while it was timed."""

    sm_hz: Spread | None
    memory_hz: Spread | None
    temperature_c: Spread | None
    power_w: Spread | None
    power_limit_w: PositiveFloat | None
    throttle_reasons: dict[str, float] = Field(description="reason -> share of the readings that showed it")


class Accuracy(Strict):
    """Two errors, both relative Frobenius norms: of the kernel, and of the formats."""

    kernel_error: NonNegativeFloat = Field(description="against float64 on the same quantised operands")
    kernel_error_max: NonNegativeFloat = Field(description="largest |error| over the RMS of the exact result")
    tolerance: PositiveFloat
    format_error: NonNegativeFloat | None = Field(description="float64 on quantised operands against the originals")
    checked_rows: PositiveInt
    poisoned: bool = Field(description="whether the output held NaN before the run")


class Compiled(Strict):
    """What the compiler made of it: library calls of the HLO, and resources of our own machine code where known."""

    hlo_calls: list[str] = Field(
        description="custom calls and dot fusions of the compiled HLO, in order, each once; of a baseline that XLA did "
        "not compile the kernels that the device ran"
    )
    upcast: bool | None = Field(
        description="whether operands were widened before the multiply; null where it cannot be told"
    )
    registers: int | None = None
    spill_bytes: int | None = None
    shared_memory_bytes: int | None = None
    tensor_memory_columns: int | None = None
    code_bytes: int | None = None
    compile_s: NonNegativeFloat | None = None
    instructions: dict[str, int] | None = Field(None, description="SASS mnemonic -> count, tensor-core and TMA ones")
    target: str | None = Field(None, description="compute capability or TPU generation compiled for")


class Trial(Strict):
    """What became of one config in a search."""

    config: dict[str, object]
    rank: NonNegativeInt = Field(description="its place among the kernel's candidates, from 0")
    status: Literal["ok", "unsupported", "failed"]
    reason: str | None
    time_s: PositiveFloat | None = Field(description="device time of one launch, median of a few short trains")
    final_s: PositiveFloat | None = Field(
        description="the same when the best few were timed again in turn; null for the others"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.status == "ok") == (self.reason is not None):
            raise ValueError(f"status {self.status} with reason {self.reason!r}: every status but ok has its reason")
        if self.status == "ok" and self.time_s is None:
            raise ValueError("an ok trial has its time")
        return self


class Tuning(Strict):
    """A search: every config that was tried, fastest first in the first round."""

    trials: list[Trial] = Field(description="none where the search could not begin")
    wall_s: PositiveFloat = Field(description="seconds from the first compilation to the last oracle check")
    compile_threads: PositiveInt = Field(description="compilations at a time, on threads or in processes")
    protocol_sha256: str = Field(description="digest of how configs were timed")


class Toggles(Strict):
    """Mean number of bits that change from one code of an operand to the next: along K in one lane, and along rows.

    Lanes are those of `narrowbench.models.toggles`. Null where there is no next code.
    """

    a_along_k: NonNegativeFloat | None
    a_along_rows: NonNegativeFloat | None
    b_along_k: NonNegativeFloat | None
    b_along_rows: NonNegativeFloat | None


class Provenance(Strict):
    """Where the row comes from."""

    device: Name = Field(description="slug of the device, the stem of its profile where there is one")
    device_kind: str
    device_uuid_hash: str | None
    host_hash: str
    git_commit: str | None
    git_dirty: bool | None
    sources_sha256: str = Field(description="of all code that made the row: kernel, timing and what they import")
    kernel_sha256: str | None = Field(None, description="of the kernel's own code; a roof has no kernel")
    environment_sha256: str
    versions: dict[str, str]
    utc_time: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
    command: str


class Row(Strict):
    """One case's result. `status` ok has timing and accuracy; any other status has its reason."""

    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8"] = SCHEMA_VERSION
    case: Case
    config: dict[str, object] | None = None
    tuned_table_sha256: str | None = None
    evidence: Evidence
    status: Status
    reason: str | None = None
    timing: Timing | None = None
    energy: Energy | None = None
    energy_reason: str | None = None
    window_readings: list[WindowReading] | None = Field(
        None,
        description="of a case that studies the length of windows: every window, whether `energy` believes it or not",
    )
    clocks: Clocks | None = None
    clocks_reason: str | None = None
    accuracy: Accuracy | None = None
    compile: Compiled | None = None
    tuning: Tuning | None = Field(None, description="of a tuning case: `config` and `timing` are of the best trial")
    counters: Counters | None = Field(None, description="of a counters case, which has no timing")
    space: Space | None = Field(None, description="of a space case: what became of each config")
    toggles: Toggles | None = Field(None, description="of a sustained GEMM: its first operands, as it was measured")
    drawn_toggles: Toggles | None = Field(None, description="the same of ordered operands, before they were ordered")
    provenance: Provenance

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Null and a reason go together; a measured `ok` row has timing or counters, and a GEMM its accuracy."""
        if (self.status == "ok") == (self.reason is not None):
            raise ValueError(
                f"status {self.status} with reason {self.reason!r}: a reason goes with every status but ok"
            )
        if self.evidence == "measured" and self.status == "ok":
            self._check_measured()
        if self.counters is not None and (self.case.kind != "counters" or self.timing is not None):
            raise ValueError("counters are of a counters case, which is not timed")
        if (self.space is not None) != (self.case.kind == "space" and self.status == "ok"):
            raise ValueError("a space is of an ok space case, which has one")
        if self.status == "unstable" and self.timing is not None:
            raise ValueError("an unstable row carries no statistics; its samples are in the reason's log")
        return self

    def _check_measured(self) -> None:
        if self.case.kind != "roof" and self.accuracy is None:
            raise ValueError("a measured ok row of a GEMM has accuracy")
        if self.case.kind == "counters":
            if self.counters is None:
                raise ValueError("a measured ok row of a counters case has counters")
            return
        for name in ("energy", "clocks"):
            if (getattr(self, name) is None) == (getattr(self, f"{name}_reason") is None):
                raise ValueError(f"{name} and {name}_reason: exactly one of them is null")
        if self.timing is None:
            raise ValueError("a measured ok row has timing")

    @property
    def key(self) -> str:
        """Identity of the case on its device: what a resumed run must not do twice."""
        return f"{self.provenance.device}/{self.case.model_dump_json()}"
