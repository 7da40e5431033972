"""Everything that can be measured, by name: kernels of the library, and baselines that other libraries do. No JAX.

A baseline of another library cannot be traced by JAX, so it is no kernel of `narrowgemm`; its stem is a name like any
other to campaigns, commands, rows and figures.
"""

import hashlib
import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from narrowbench.sources import sources_sha256
from narrowgemm.errors import unknown_name
from narrowgemm.gemm.registry import Many, kernel_module, kernel_named, kernel_names, products_module

if TYPE_CHECKING:
    from narrowbench.measure.vendor.baseline import Baseline


@dataclass(frozen=True)
class _Vendor:
    """A module of `narrowbench.measure.vendor`, and the packages whose versions decide what its baselines do."""

    module: str
    packages: tuple[str, ...]


_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu12")
_CUBLASLT = _Vendor("cublaslt", ("nvmath-python", *_CUBLAS))
_BASELINES = {
    "cublaslt_bf16": _CUBLASLT,
    "cublaslt_fp8_e4m3": _CUBLASLT,
    "torch_scaled_mm_fp8_e4m3": _Vendor("torch_scaled_mm", ("torch", *_CUBLAS)),
    "triton_persistent_fp8_e4m3": _Vendor("triton_persistent", ("triton", "torch")),
}
#: What a kernel is found through and described with: new kernels change these and leave the others as they are.
_DISPATCH = ("narrowgemm", "narrowgemm.gemm", "narrowgemm.gemm.api", "narrowgemm.gemm.registry")


def baseline_names() -> tuple[str, ...]:
    """Names of the baselines of other libraries, installed or not, sorted."""
    return tuple(sorted(_BASELINES))


def names() -> tuple[str, ...]:
    """Names of all that can be measured, sorted."""
    return tuple(sorted({*kernel_names(), *_BASELINES}))


def is_of_another_library(name: str) -> bool:
    """Whether a baseline of another library is called so."""
    return name in _BASELINES


def module_of(name: str) -> str:
    """Name of the module of what is called `name`, not imported. Raises ValueError for an unknown name."""
    if name in _BASELINES:
        return f"narrowbench.measure.vendor.{_BASELINES[name].module}"
    if name not in kernel_names():
        raise ValueError(unknown_name("kernel", name, names()))
    return kernel_module(name)


def modules_of(name: str, many: Many | None = None) -> list[str]:
    """Names of the modules of what is called `name`: its own, and that of how it does many products, if it does.

    Raises ValueError for an unknown name.
    """
    products = None if many is None or name in _BASELINES else products_module(name, many)
    return [module_of(name), *([] if products is None else [products])]


def baseline_named(name: str) -> "Baseline":
    """The baseline called `name`. Raises ValueError, naming the nearest known ones, for any other."""
    if name not in _BASELINES:
        raise ValueError(unknown_name("baseline", name, _BASELINES))
    baselines: tuple[Baseline, ...] = importlib.import_module(module_of(name)).BASELINES
    return next(baseline for baseline in baselines if baseline.name == name)


def formats_of(name: str) -> tuple[str, str]:
    """The first formats of a and b of what is called `name`. Raises ValueError for an unknown name."""
    module_of(name)
    if name in _BASELINES:
        operand = baseline_named(name).operand_format
        return operand, operand
    kernel = kernel_named(name)
    return kernel.a_formats[0], kernel.b_formats[0]


def can_be_prepared_beside(name: str) -> bool:
    """Whether this is one of the GPU's own kernels: everything else times its choices while it is prepared."""
    return name not in _BASELINES and kernel_named(name).arch in ("hopper", "blackwell")


@cache
def kernel_sha256(name: str, many: Many | None = None) -> str:
    """Digest of the code that is the kernel called `name`: another one means that its times are no longer known.

    For `many` products in one launch, the code that does those is part of it.

    The code of a baseline of another library is this project's part of it, and the versions of that library's packages.
    """
    sources = sources_sha256(modules_of(name, many), without=_DISPATCH)
    if name not in _BASELINES:
        return sources
    versions = "\n".join(f"{package}=={version_of(package)}" for package in _BASELINES[name].packages)
    return hashlib.sha256(f"{sources}\n{versions}\n".encode()).hexdigest()


def baseline_packages() -> tuple[str, ...]:
    """The packages that decide what the baselines of other libraries do, sorted."""
    return tuple(sorted({package for vendor in _BASELINES.values() for package in vendor.packages}))


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
