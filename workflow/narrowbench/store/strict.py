"""What records of the schema have in common."""

from pydantic import BaseModel, ConfigDict, PositiveInt

from narrowgemm.problem import GemmProblem


class Strict(BaseModel):
    """A record that refuses unknown keys and cannot be changed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OnProblem(Strict):
    """What is done to one GEMM by one kernel."""

    kernel: str
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    a_format: str
    b_format: str
    out_format: str

    @property
    def problem(self) -> GemmProblem:
        return GemmProblem(self.m, self.n, self.k, self.a_format, self.b_format, self.out_format)
