"""What records of the schema have in common."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from narrowgemm.problem import GemmProblem

#: The largest integer of a frame's column.
MOST = 2**63 - 1
#: Rows or columns of an operand: kernels and compilers count them in 32 bits.
Extent = Annotated[int, Field(gt=0, lt=2**31)]
#: A part of the path that a row is stored under, below the folder of results and never out of it.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]


class Strict(BaseModel):
    """A record that refuses unknown keys and cannot be changed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OfKernel(Strict):
    """What is done with one kernel."""

    kind: str
    kernel: Name

    @property
    def many(self) -> Literal["batched", "grouped"] | None:
        """Of a case of one product nothing."""
        return None


class OfSuite(OfKernel):
    """What is done with one kernel for a shape of a suite."""

    suite: Name


class OnProblem(Strict):
    """What is done to one GEMM."""

    m: Extent
    n: Extent
    k: Extent
    a_format: str
    b_format: str
    out_format: str

    @property
    def problem(self) -> GemmProblem:
        return GemmProblem(self.m, self.n, self.k, self.a_format, self.b_format, self.out_format)

    @model_validator(mode="after")
    def _is_a_problem(self) -> Self:
        """Known formats, and no more FLOP than 64 bits count."""
        if self.problem.flop > MOST:
            raise ValueError(f"m={self.m}, n={self.n}, k={self.k} are {self.problem.flop} FLOP, of at most {MOST}")
        return self
