"""What kernels are meant to reach, and over what: thresholds that were set before anything was measured. No JAX."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from narrowbench.config import CONFIGS, Settings, load


class Aim(Settings):
    """One aim, over all cases of its kernels that it names; normal data, operands rotated past the L2.

    Of each case `time` and `joules` are a ratio: the least of `over` for the same work, over ours. `roof` is the share
    of the lower measured roof that is reached.
    """

    says: str
    kernels: tuple[str, ...] = Field(min_length=1)
    device: str = "nvidia-h200"
    rows: tuple[PositiveInt, PositiveInt] = Field(description="of A, first and last")
    weight_mb: tuple[PositiveFloat, PositiveFloat] | None = Field(None, description="10^6 bytes of B, from and below")
    mode: Literal["burst", "sustained"] = "burst"
    epilogue: str = "none"
    quantity: Literal["time", "joules", "roof"] = "time"
    over: tuple[str, ...] = ()
    mean: PositiveFloat | None = Field(None, description="the least that the geometric mean is to be")
    least: PositiveFloat | None = Field(None, description="the least that any case is to be")

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if self.mean is None and self.least is None:
            raise ValueError(f"«{self.says}» has neither a mean nor a least")
        if bool(self.over) == (self.quantity == "roof"):
            raise ValueError(f"«{self.says}»: a ratio is over other kernels, and a share of the roof over none")
        for name, bounds in (("rows", self.rows), ("weight_mb", self.weight_mb)):
            if bounds is not None and bounds[0] > bounds[1]:
                raise ValueError(f"«{self.says}»: {name} go from {bounds[0]:g} to {bounds[1]:g}, which is nothing")
        return self

    @property
    def wanted(self) -> str:
        """The thresholds, as people read them."""
        parts = (("mean", self.mean), ("each", self.least))
        return ", ".join(f"{what} ≥ {value:g}" for what, value in parts if value is not None)

    def shortfall(self, mean: float, lowest: float) -> float:
        """By which part the threshold that is missed most is missed; 0 where none is."""
        reached = ((mean, self.mean), (lowest, self.least))
        return max(0.0, *(1 - value / wanted for value, wanted in reached if wanted is not None))


class Aims(Settings):
    """All aims, in the order in which they are shown."""

    aims: tuple[Aim, ...]


def load_aims(path: Path = CONFIGS / "aims.yaml") -> tuple[Aim, ...]:
    """The aims in order. Raises ConfigError naming file, key and rule."""
    return load(Aims, path).aims
