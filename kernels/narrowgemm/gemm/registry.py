"""The kernels by name. A kernel's stem is its module, its key here and its key everywhere else."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from narrowgemm.errors import UnsupportedError, unknown_name
from narrowgemm.problem import GemmProblem

#: Kernel -> module in this package. A module with several kernels lists each of them.
_MODULES = {
    "xla_dot_f32": "xla_dot",
    "xla_dot_bf16": "xla_dot",
    "xla_dot_fp8_e4m3": "xla_dot",
    "xla_scaled_dot_mxfp8": "xla_scaled_dot",
    "xla_scaled_dot_nvfp4": "xla_scaled_dot",
    "xla_widened_dot_fp8_block128": "xla_widened_dot",
    "hopper_wgmma_bf16": "hopper_wgmma_bf16",
    "hopper_wgmma_fp8": "hopper_wgmma_fp8",
    "hopper_wgmma_fp8_decode": "hopper_wgmma_fp8_decode",
    "hopper_wgmma_fp8_block128": "hopper_wgmma_fp8_block128",
    "hopper_wgmma_w4a8": "hopper_wgmma_w4a8",
    "hopper_wgmma_w4a8_folded": "hopper_wgmma_w4a8_folded",
    "hopper_wgmma_w4a16": "hopper_wgmma_w4a16",
    "hopper_wgmma_w6a8": "hopper_wgmma_w6a8",
    "hopper_wgmma_w6a8_folded": "hopper_wgmma_w6a8_folded",
    "hopper_wgmma_w6a16": "hopper_wgmma_w6a16",
    "blackwell_tcgen05_bf16": "blackwell_tcgen05_bf16",
    "blackwell_tcgen05_fp8": "blackwell_tcgen05_fp8",
    "blackwell_tcgen05_mxfp8": "blackwell_tcgen05_mxfp8",
    "blackwell_tcgen05_mxfp6": "blackwell_tcgen05_mxfp6",
    "blackwell_tcgen05_mxfp4": "blackwell_tcgen05_mxfp4",
    "blackwell_tcgen05_nvfp4": "blackwell_tcgen05_nvfp4",
    "tpu_mxu_bf16": "tpu_mxu_bf16",
    "tpu_mxu_fp8": "tpu_mxu_fp8",
    "tpu_mxu_int8": "tpu_mxu_int8",
}
#: Kernel -> module that does batches or groups with it, in `BATCHED` and `GROUPED`, by kernel. Apart from the kernels'
#: own modules: an edit for many products is none of a kernel that was measured on single ones.
_PRODUCTS = {
    "batched": {
        "xla_dot_f32": "xla_products",
        "xla_dot_bf16": "xla_products",
        "xla_dot_fp8_e4m3": "xla_products",
        "hopper_wgmma_bf16": "_hopper_many",
        "hopper_wgmma_fp8": "_hopper_many",
    },
    "grouped": {
        "xla_dot_f32": "xla_products",
        "xla_dot_bf16": "xla_products",
        "xla_dot_fp8_e4m3": "xla_products",
        "hopper_wgmma_bf16": "_hopper_many",
        "hopper_wgmma_fp8": "_hopper_many",
        "tpu_mxu_bf16": "tpu_mxu_grouped",
        "tpu_mxu_fp8": "tpu_mxu_grouped",
        "tpu_mxu_int8": "tpu_mxu_grouped",
    },
}
#: Ways to do many products in one launch: of one shape, or of groups of rows of A, each with its own B.
Many = Literal["batched", "grouped"]


@dataclass(frozen=True)
class Products:
    """How a kernel does many products in one launch: a batch of one shape, or groups of rows of A, each with its B.

    matmul:     batch: (a, b, config, out_format, interpret=False) -> (count, m, n) of two `Stack`s.
                groups: (a, b, sizes, config, out_format, interpret=False) -> (m, n) of a `QuantizedArray` (m, k), a
                `Stack` and INT32 sizes (count,); rows beyond the last group are zero.
    check:      (problem, count, config) -> None; raises UnsupportedError. `problem` is one product of a batch, or all
                rows of A with one of B.
    candidates: (problem, count) -> configs worth trying, best guess first.
    """

    matmul: Callable[..., Any]
    check: Callable[[GemmProblem, int, Any], None]
    candidates: Callable[[GemmProblem, int], Sequence[Any]]


@dataclass(frozen=True)
class Kernel:
    """One way to do a GEMM.

    name:        the stem.
    arch:        what it runs on: "any", "hopper", "blackwell" or "tpu".
    is_baseline: whether it is a vendor's or compiler's own GEMM, to be compared with.
    a_formats, b_formats, out_formats: what it accepts, each pair of which `check` still has to admit.
    config_type: the frozen dataclass of its choices (tiles, stages ...).
    check:       (problem, config) -> None; raises UnsupportedError with the rule and the remedy.
    candidates:  problem -> configs worth trying, best guess first; never empty for a problem that `check` admits
                 with some config, and for any other empty or an UnsupportedError that says what to use.
    matmul:      (a, b, config, out_format, interpret=False) -> array. `a` and `b` are plain arrays or
                 `QuantizedArray`s; traceable under jit.
    prepare_b:   what a quantised `b` becomes once, off-line and never timed, before `matmul` takes it; None: itself.
    matmul_quantised: (a, b, config, out_format, tensor_scale=None, interpret=False) -> `QuantizedArray` of a format
                 with block scales, made of the accumulator before it is rounded to anything else; None: it cannot.
    matmul_epilogue: (a, b, config, out_format, epilogue, interpret=False) -> array: `matmul` with an `Epilogue` in the
                 same kernel (a baseline: in the same jitted program); None: it cannot.
    check_epilogue: (problem, config, epilogue) -> None; raises UnsupportedError where a config that `check` admits has
                 no room for the epilogue; None: each has.
    max_m:       the most rows of A, for a kernel that is made for few; None: any number.
    """

    name: str
    arch: str
    is_baseline: bool
    a_formats: tuple[str, ...]
    b_formats: tuple[str, ...]
    out_formats: tuple[str, ...]
    config_type: type
    check: Callable[[GemmProblem, Any], None]
    candidates: Callable[[GemmProblem], Sequence[Any]]
    matmul: Callable[..., Any]
    prepare_b: Callable[[Any], Any] | None = None
    matmul_quantised: Callable[..., Any] | None = None
    matmul_epilogue: Callable[..., Any] | None = None
    check_epilogue: Callable[[GemmProblem, Any, Any], None] | None = None
    max_m: int | None = None

    def prepared(self, b: Any) -> Any:
        """A quantised `b` as `matmul` takes it."""
        return b if self.prepare_b is None else self.prepare_b(b)


def kernel_names() -> tuple[str, ...]:
    """All kernels' names, sorted, without importing any of them."""
    return tuple(sorted(_MODULES))


def kernel_module(name: str) -> str:
    """Name of the module of the kernel called `name`, not imported. Raises ValueError for an unknown kernel."""
    if name not in tuple(_MODULES):  # which also what has no hash can be looked for in
        raise ValueError(unknown_name("kernel", name, _MODULES))
    return f"narrowgemm.gemm.{_MODULES[name]}"


def kernel_named(name: str) -> Kernel:
    """The kernel called `name`. Raises ValueError, naming the nearest known ones, for any other."""
    module = importlib.import_module(kernel_module(name))
    kernels: Iterable[Kernel] = module.KERNELS
    return next(kernel for kernel in kernels if kernel.name == name)


def products_of(kernel: str, many: Many) -> Products | None:
    """How the kernel does many products in one launch; None: it cannot."""
    module = products_module(kernel, many)
    if module is None:
        return None
    found: dict[str, Products] = getattr(importlib.import_module(module), many.upper())
    return found[kernel]


def products_module(kernel: str, many: Many) -> str | None:
    """Name of the module that does many products with the kernel, not imported; None: nothing does."""
    return f"narrowgemm.gemm.{_PRODUCTS[many][kernel]}" if kernel in _PRODUCTS[many] else None


def kernels_of_many(many: Many) -> tuple[str, ...]:
    """Names of the kernels that do such products, sorted, without importing any of them."""
    return tuple(sorted(_PRODUCTS[many]))


def accepts(kernel: Kernel, problem: GemmProblem) -> bool:
    """Whether the problem's formats are among the kernel's."""
    return (
        problem.a_format in kernel.a_formats
        and problem.b_format in kernel.b_formats
        and problem.out_format in kernel.out_formats
    )


def check_formats(kernel: Kernel, problem: GemmProblem) -> None:
    """Raises UnsupportedError, naming what the kernel accepts, for a problem in other formats."""
    if not accepts(kernel, problem):
        raise UnsupportedError(
            kernel.name,
            {"a_format": problem.a_format, "b_format": problem.b_format, "out_format": problem.out_format},
            "are not all among its formats",
            f"use a in {', '.join(kernel.a_formats)}, b in {', '.join(kernel.b_formats)}, "
            f"out in {', '.join(kernel.out_formats)}, or another kernel",
        )
