"""The part of the schema that is of hardware counters: what a profiler counted in one launch, by its own names."""

from typing import Literal

from pydantic import Field, FiniteFloat

from narrowbench.store.strict import MOST, OfKernel, OnProblem, Strict


class CountersCase(OnProblem, OfKernel):
    """Hardware counters of one launch of a GEMM under a profiler, which replays it: nothing is timed."""

    kind: Literal["counters"] = "counters"
    distribution: str
    seed: int = Field(ge=-MOST, le=MOST)
    config: dict[str, object] | None = Field(description="what was asked for; null: what the kernel chooses itself")


class Metric(Strict):
    """One metric as the profiler prints it."""

    value: FiniteFloat
    unit: str


class CountedKernel(Strict):
    """One kernel of a launch, and its metrics by the profiler's own names."""

    name: str
    metrics: dict[str, Metric]


class Counters(Strict):
    """What a profiler counted in one launch."""

    kernels: list[CountedKernel] = Field(min_length=1, description="of one launch, in order")
    missing: dict[str, str] = Field(description="metric that was asked for -> why it has no value")
    cache_control: str = Field(description="as the profiler calls it; all: caches are emptied before each pass")
    clock_control: str
