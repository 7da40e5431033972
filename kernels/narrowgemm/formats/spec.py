"""The table of number formats: element formats and block formats, without JAX.

Sources: OCP Microscaling Formats v1.0 as restated by NVIDIA CUTLASS (block 32, E8M0 scales), NVIDIA's
NVFP4 description (block 16, E4M3 scales, one FP32 scale a tensor), the DeepSeek-V3 technical report
(arXiv:2412.19437, section 3.3.2: FP32 scales for 1×128 of activations and 128×128 of weights), and `ml_dtypes`.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from narrowgemm.errors import unknown_name


@dataclass(frozen=True)
class ElementFormat:
    """How one element is coded.

    bits:           storage bits of one code.
    exponent_bits, mantissa_bits, bias: of the code (sign bit not counted). An integer is a number without exponent
                    bits, as subnormals are: its bias makes the smallest of them 1.
    max_finite:     largest finite magnitude that quantisation gives.
    dtype:          the NumPy dtype (of ml_dtypes where NumPy has none) whose values are the codes'.
    has_inf, has_nan: whether such codes exist.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_finite: float
    dtype: np.dtype
    has_inf: bool
    has_nan: bool

    @property
    def is_integer(self) -> bool:
        """Whether codes are two's complement; all others have a sign and a magnitude."""
        return self.dtype.kind == "i"

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite power of two: `emax_elem` of the OCP MX scale rule."""
        return int(np.floor(np.log2(self.max_finite)))


@dataclass(frozen=True)
class Format:
    """A format of an operand: elements, and how they are scaled.

    block:         elements of K that share a scale; None where a scale, if any, is of the whole tensor.
    scale_dtype:   dtype of the block scales (E8M0, E4M3 or FP32), None without blocks.
    tensor_scale:  whether one FP32 scale multiplies the whole tensor.
    block_rows:    rows that share a block's scale.
    is_ragged:     whether the last blocks of an operand may be smaller; else K is a multiple of `block`.
    """

    name: str
    element: ElementFormat
    block: int | None = None
    scale_dtype: np.dtype | None = None
    tensor_scale: bool = False
    block_rows: int = 1
    is_ragged: bool = False

    @property
    def is_packed(self) -> bool:
        """Whether codes are narrower than a byte and travel packed in `uint8`."""
        return self.element.bits < 8

    def code_bytes(self, rows: int, k: int) -> int:
        """Bytes of the codes of a rows×k operand, each row packed on its own to whole bytes."""
        return rows * -(-k * self.element.bits // 8)

    def scales_shape(self, rows: int, k: int) -> tuple[int, int]:
        """Shape of the block scales of a rows×k operand. Raises ValueError for a format without blocks."""
        if self.block is None:
            raise ValueError(f"{self.name}: has no block scales")
        return -(-rows // self.block_rows), -(-k // self.block)

    def scale_bytes(self, rows: int, k: int) -> int:
        """Bytes of the block scales and the tensor scale of a rows×k operand."""
        tensor_bytes = 4 if self.tensor_scale else 0
        if self.block is None or self.scale_dtype is None:
            return tensor_bytes
        along_rows, along_k = self.scales_shape(rows, k)
        return along_rows * along_k * self.scale_dtype.itemsize + tensor_bytes

    @property
    def bytes_per_element(self) -> float:
        """Bytes of an element's code and its share of a whole block's scale."""
        shared = 0 if self.block is None else self.block * self.block_rows
        scale = self.scale_dtype.itemsize / shared if shared and self.scale_dtype is not None else 0.0
        return self.element.bits / 8 + scale

    def storage_bytes(self, rows: int, k: int) -> int:
        """Bytes of a rows×k operand in memory, scales included."""
        return self.code_bytes(rows, k) + self.scale_bytes(rows, k)


def _elements(*rows: tuple[str, Any, int, int, int, int, bool, bool]) -> dict[str, ElementFormat]:
    return {
        name: ElementFormat(
            name, bits, exponent_bits, mantissa_bits, bias, _largest(np.dtype(dtype)), np.dtype(dtype), inf, nan
        )
        for name, dtype, bits, exponent_bits, mantissa_bits, bias, inf, nan in rows
    }


def _largest(dtype: np.dtype) -> float:
    """The range of an integer is symmetric, so that −x is always the negative of x: its lowest code is left out."""
    return float(np.iinfo(dtype).max if dtype.kind == "i" else ml_dtypes.finfo(dtype).max)


ELEMENTS: dict[str, ElementFormat] = _elements(
    # name, dtype, bits, exponent bits, mantissa bits, bias, has inf, has nan
    ("f32", np.float32, 32, 8, 23, 127, True, True),
    ("bf16", ml_dtypes.bfloat16, 16, 8, 7, 127, True, True),
    ("f16", np.float16, 16, 5, 10, 15, True, True),
    ("e4m3", ml_dtypes.float8_e4m3fn, 8, 4, 3, 7, False, True),
    ("e5m2", ml_dtypes.float8_e5m2, 8, 5, 2, 15, True, True),
    ("e2m3", ml_dtypes.float6_e2m3fn, 6, 2, 3, 1, False, False),
    ("e3m2", ml_dtypes.float6_e3m2fn, 6, 3, 2, 3, False, False),
    ("e2m1", ml_dtypes.float4_e2m1fn, 4, 2, 1, 1, False, False),
    ("int8", np.int8, 8, 0, 7, -6, False, False),
)

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
F32 = np.dtype(np.float32)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f32", ELEMENTS["f32"]),
        Format("bf16", ELEMENTS["bf16"]),
        Format("f16", ELEMENTS["f16"]),
        Format("fp8_e4m3", ELEMENTS["e4m3"], tensor_scale=True),
        Format("fp8_e5m2", ELEMENTS["e5m2"], tensor_scale=True),
        Format("int8", ELEMENTS["int8"], tensor_scale=True),
        Format("fp6_e2m3", ELEMENTS["e2m3"], tensor_scale=True),
        Format("fp6_e3m2", ELEMENTS["e3m2"], tensor_scale=True),
        Format("fp4_e2m1", ELEMENTS["e2m1"], tensor_scale=True),
        Format("fp8_e4m3_1x128", ELEMENTS["e4m3"], block=128, scale_dtype=F32, is_ragged=True),
        Format("fp8_e4m3_128x128", ELEMENTS["e4m3"], block=128, scale_dtype=F32, block_rows=128, is_ragged=True),
        Format("mxfp8_e4m3", ELEMENTS["e4m3"], block=32, scale_dtype=E8M0),
        Format("mxfp8_e5m2", ELEMENTS["e5m2"], block=32, scale_dtype=E8M0),
        Format("mxfp6_e2m3", ELEMENTS["e2m3"], block=32, scale_dtype=E8M0),
        Format("mxfp6_e3m2", ELEMENTS["e3m2"], block=32, scale_dtype=E8M0),
        Format("mxfp4", ELEMENTS["e2m1"], block=32, scale_dtype=E8M0),
        Format("nvfp4", ELEMENTS["e2m1"], block=16, scale_dtype=E4M3, tensor_scale=True),
    )
}


def format_named(name: str) -> Format:
    """The format called `name`. Raises ValueError, naming the nearest known names, for any other."""
    if name in tuple(FORMATS):  # which also what has no hash can be looked for in
        return FORMATS[name]
    raise ValueError(unknown_name("format", name, FORMATS))
