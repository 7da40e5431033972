"""One look a kernel, whichever figure or table names it; and what people call the formats. No Matplotlib.

Colours are those of Okabe and Ito, which readers with any colour vision tell apart; since print may be grey, no two
kernels that can meet in one panel share a marker. Colour stands for the format of the narrower operand, a dashed line
for a baseline.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from narrowgemm.errors import unknown_name

Line = Literal["-", "--", "-.", ":"]

BLACK, GREY = "#000000", "#666666"
F32, BF16, FP8, FP8_BLOCK, FP6, FP4, INT8 = BLACK, "#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#009E73", "#56B4E9"

#: Key of a data sheet's rate -> colour of its roof.
RATE_COLOURS = {"f32": F32, "tf32": GREY, "bf16": BF16, "f16": BF16, "fp8": FP8, "fp6": FP6, "fp4": FP4, "int8": INT8}


@dataclass(frozen=True)
class KernelStyle:
    """The look of one kernel in every figure, and whether it is compared with (a vendor's or compiler's own GEMM)."""

    colour: str
    marker: str
    line: Line
    is_baseline: bool


def _styles(line: Line, is_baseline: bool, kernels: dict[str, tuple[str, str]]) -> dict[str, KernelStyle]:
    return {name: KernelStyle(colour, marker, line, is_baseline) for name, (colour, marker) in kernels.items()}


#: Kernel -> style. A new kernel gets a line here; legends follow this order.
KERNELS: dict[str, KernelStyle] = {
    **_styles(
        "--",
        True,
        {
            "xla_dot_f32": (F32, "x"),
            "xla_dot_bf16": (BF16, "s"),
            "xla_dot_fp8_e4m3": (FP8, "D"),
            "xla_scaled_dot_mxfp8": (FP8_BLOCK, "H"),
            "xla_widened_dot_fp8_block128": (FP8_BLOCK, "X"),
            "xla_scaled_dot_nvfp4": (FP4, "+"),
            "cublaslt_bf16": (BF16, "1"),
            "cublaslt_fp8_e4m3": (FP8, "2"),
            "torch_scaled_mm_fp8_e4m3": (FP8, "3"),
            "triton_persistent_fp8_e4m3": (FP8, "4"),
        },
    ),
    **_styles(
        "-",
        False,
        {
            "hopper_wgmma_bf16": (BF16, "o"),
            "hopper_wgmma_fp8": (FP8, "^"),
            "hopper_wgmma_fp8_decode": (FP8, "p"),
            "hopper_wgmma_fp8_block128": (FP8_BLOCK, "<"),
            "hopper_wgmma_w6a16": (FP6, "h"),
            "hopper_wgmma_w6a8": (FP6, "P"),
            "hopper_wgmma_w6a8_folded": (FP6, "*"),
            "hopper_wgmma_w4a16": (FP4, "v"),
            "hopper_wgmma_w4a8": (FP4, ">"),
            "hopper_wgmma_w4a8_folded": (FP4, "d"),
        },
    ),
    **_styles(
        "-.",
        False,
        {
            "blackwell_tcgen05_bf16": (BF16, "o"),
            "blackwell_tcgen05_fp8": (FP8, "^"),
            "blackwell_tcgen05_mxfp8": (FP8_BLOCK, "<"),
            "blackwell_tcgen05_mxfp6": (FP6, "P"),
            "blackwell_tcgen05_mxfp4": (FP4, "v"),
            "blackwell_tcgen05_nvfp4": (FP4, ">"),
        },
    ),
    **_styles(
        ":",
        False,
        {"tpu_mxu_bf16": (BF16, "o"), "tpu_mxu_fp8": (FP8, "^"), "tpu_mxu_int8": (INT8, "p")},
    ),
}


def kernel_style(name: str) -> KernelStyle:
    """The style of a kernel. Raises ValueError that says where to add one for a kernel that has none."""
    if name not in KERNELS:
        raise ValueError(
            f"{unknown_name('kernel', name, KERNELS)}; give it a line in narrowbench.report.kernels.KERNELS"
        )
    return KERNELS[name]


def in_legend_order(kernels: Iterable[str]) -> list[str]:
    """Each kernel once, in the order of `KERNELS`. Raises ValueError for a kernel without a style."""
    styles = {name: kernel_style(name) for name in kernels}
    return [name for name in KERNELS if name in styles]


def format_in_words(key: str) -> str:
    """A rate's key as people write it: FP32, BF16, FP8."""
    return {"f32": "FP32", "f16": "FP16"}.get(key, key.upper())
