"""A matrix multiplication to be done: its shape and formats, and what it costs at least. No JAX."""

from dataclasses import dataclass

from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named

#: Formats a result can be stored in; a result carries no block scales.
OUT_FORMATS = ("f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2")

#: What an epilogue's activation can be.
ACTIVATIONS = ("relu", "gelu", "silu")
#: Parts of an epilogue in the order in which they are applied; `scales` is one a row and one a column.
EPILOGUE_PARTS = ("rowscale", "columnscale", "scales", "bias", *ACTIVATIONS, "residual", "outscale")
NO_EPILOGUE = "none"


def epilogue_parts(name: str) -> tuple[str, ...]:
    """Parts of the epilogue called `name`, such as «scales_bias_gelu»; none of `none`.

    Raises ValueError for an unknown part, parts in another order or twice, two activations, and scales under two names.
    """
    if name == NO_EPILOGUE:
        return ()
    parts = tuple(name.split("_"))
    for part in parts:
        if part not in EPILOGUE_PARTS:
            raise ValueError(unknown_name("epilogue part", part, (NO_EPILOGUE, *EPILOGUE_PARTS)))
    if list(parts) != sorted(set(parts), key=EPILOGUE_PARTS.index):
        raise ValueError(f"epilogue {name!r}: its parts are not once each in the order {', '.join(EPILOGUE_PARTS)}")
    if sum(part in ACTIVATIONS for part in parts) > 1:
        raise ValueError(f"epilogue {name!r} has more than one of {', '.join(ACTIVATIONS)}")
    if sum(part in EPILOGUE_PARTS[:3] for part in parts) > 1:
        raise ValueError(f"epilogue {name!r}: a scale a row and one a column together are called scales")
    return parts


@dataclass(frozen=True)
class GemmProblem:
    """C[m,n] = A[m,k] · B[n,k]ᵀ, both operands stored with K contiguous.

    Raises ValueError for an extent below one, an unknown format or an output format that is not one.
    """

    m: int
    n: int
    k: int
    a_format: str
    b_format: str
    out_format: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
                raise ValueError(f"GemmProblem: {name}={extent!r} is not a whole number of at least 1")
        format_named(self.a_format)
        format_named(self.b_format)
        if self.out_format not in OUT_FORMATS:
            raise ValueError(unknown_name("output format", self.out_format, OUT_FORMATS))

    @property
    def flop(self) -> int:
        """Floating-point operations, 2·M·N·K whatever the format."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least traffic: each operand (scales included) read once, the result written once."""
        return (
            format_named(self.a_format).storage_bytes(self.m, self.k)
            + format_named(self.b_format).storage_bytes(self.n, self.k)
            + format_named(self.out_format).code_bytes(self.m, self.n)
        )

    @property
    def intensity_flop_per_byte(self) -> float:
        """Arithmetic intensity at the least traffic."""
        return self.flop / self.bytes
