"""Narrow-precision matrix multiplication in JAX Pallas: formats, kernels and how to choose among them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowgemm.errors import UnsupportedError
    from narrowgemm.formats.quantize import QuantizedArray, dequantize, quantize
    from narrowgemm.gemm.api import gemm, kernels
    from narrowgemm.problem import GemmProblem

__all__ = ["GemmProblem", "QuantizedArray", "UnsupportedError", "dequantize", "gemm", "kernels", "quantize"]

#: Public name -> module. `gemm` is not here: it is the package of that name, which can be called.
_HOMES = {
    "GemmProblem": "narrowgemm.problem",
    "QuantizedArray": "narrowgemm.formats.quantize",
    "UnsupportedError": "narrowgemm.errors",
    "dequantize": "narrowgemm.formats.quantize",
    "kernels": "narrowgemm.gemm.api",
    "quantize": "narrowgemm.formats.quantize",
}


def __getattr__(name: str) -> Any:
    if name == "gemm":
        return importlib.import_module("narrowgemm.gemm")
    if name not in _HOMES:
        raise AttributeError(f"module 'narrowgemm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
