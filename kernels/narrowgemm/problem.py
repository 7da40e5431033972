"""A matrix multiplication to be done: its shape and formats, and what it costs at least. No JAX."""

from dataclasses import dataclass

from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named

#: Formats a result can be stored in; a result carries no block scales.
OUT_FORMATS = ("f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2")


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
