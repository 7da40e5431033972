"""The part of the schema that is of search spaces: many configs of a kernel compiled for a device, a few in a row.

A row for each config would repeat its provenance a thousand times over.
"""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from narrowbench.store.strict import OfSuite, OnProblem, Strict


class SpaceCase(OnProblem, OfSuite):
    """Some of a kernel's candidates for one GEMM, compiled for a device that need not be there."""

    kind: Literal["space"] = "space"
    first: NonNegativeInt = Field(description="rank of the first of them among the candidates, from 0")
    count: PositiveInt | None = Field(description="how many they are; null: the kernel has none for this GEMM")


class SpaceConfig(Strict):
    """What became of one config: resources of its machine code, as in `Compiled`, or why there is none."""

    config: dict[str, object]
    status: Literal["ok", "unsupported", "failed"]
    reason: str | None
    registers: int | None
    spill_bytes: int | None
    shared_memory_bytes: int | None
    tensor_memory_columns: int | None
    code_bytes: int | None
    compile_s: NonNegativeFloat | None
    multiplies: dict[str, int] | None = Field(description="SASS mnemonic -> count, of tensor cores")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.status == "ok") == (self.reason is not None) or (self.status == "ok") == (self.compile_s is None):
            raise ValueError(f"status {self.status} with reason {self.reason!r}: it is compiled, or has its reason")
        return self


class Space(Strict):
    """Configs in the kernel's own order."""

    target: str | None = Field(description="compute capability compiled for; null where nothing compiled")
    configs: list[SpaceConfig] = Field(min_length=1)
