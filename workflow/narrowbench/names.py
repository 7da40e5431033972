"""Names that a campaign, a profile or a command line may use; any other is refused with the nearest of them. No JAX."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator

from narrowbench.store.rows import Mode
from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import OUT_FORMATS

#: Kinds of device that a campaign can name, from what `narrowbench.measure.devices` finds.
DeviceClass = Literal["cpu", "hopper", "blackwell", "gpu", "tpu"]

#: The suite that comparisons are filed under: their samples are pairs, unlike those of the same shape alone.
INTERLEAVED = "interleaved"

#: Of `narrowbench.measure.operands`, which imports JAX.
Distribution = Literal[
    "normal",
    "uniform",
    "small_integers",
    "zeros",
    "ones",
    "normal_outliers",
    "heavy_tailed",
    "text",
    "normal_k_ordered",
    "normal_rows_ordered",
    "normal_sorted",
    "normal_outliers_k_ordered",
    "normal_outliers_rows_ordered",
    "text_k_ordered",
    "text_rows_ordered",
]


def one_of(kind: str, known: Sequence[str]) -> BeforeValidator:
    """A validator that refuses any other name, with the nearest of those that are known."""

    def check(name: object) -> object:
        if name not in known:
            raise ValueError(unknown_name(kind, name, known))
        return name

    return BeforeValidator(check)


Cache = Literal["rotated", "warm"]
KnownClass = Annotated[DeviceClass, one_of("class of devices", get_args(DeviceClass))]
KnownMode = Annotated[Mode, one_of("mode", get_args(Mode))]
KnownCache = Annotated[Cache, one_of("cache", get_args(Cache))]
KnownDistribution = Annotated[Distribution, one_of("distribution", get_args(Distribution))]
OperandFormat = Annotated[str, AfterValidator(lambda name: format_named(name).name)]
OutFormat = Annotated[str, one_of("output format", OUT_FORMATS)]
