"""Narrow-precision matrix multiplication in JAX Pallas: formats, kernels and how to choose among them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowgemm.errors import UnsupportedError
    from narrowgemm.formats.fold import FoldedWeights, fold_weights, unfold_weights
    from narrowgemm.formats.quantize import QuantizedArray, dequantize, quantize
    from narrowgemm.formats.shuffle import ShuffledWeights, shuffle_weights, unshuffle_weights
    from narrowgemm.gemm.api import gemm, gemm_grouped, gemm_quantized, kernels
    from narrowgemm.gemm.epilogue import Epilogue
    from narrowgemm.problem import GemmProblem

__all__ = [
    "Epilogue",
    "FoldedWeights",
    "GemmProblem",
    "QuantizedArray",
    "ShuffledWeights",
    "UnsupportedError",
    "dequantize",
    "fold_weights",
    "gemm",
    "gemm_grouped",
    "gemm_quantized",
    "kernels",
    "quantize",
    "shuffle_weights",
    "unfold_weights",
    "unshuffle_weights",
]

#: Public name -> module. `gemm` is not here: it is the package of that name, which can be called.
_HOMES = {
    "Epilogue": "narrowgemm.gemm.epilogue",
    "FoldedWeights": "narrowgemm.formats.fold",
    "GemmProblem": "narrowgemm.problem",
    "QuantizedArray": "narrowgemm.formats.quantize",
    "ShuffledWeights": "narrowgemm.formats.shuffle",
    "UnsupportedError": "narrowgemm.errors",
    "dequantize": "narrowgemm.formats.quantize",
    "fold_weights": "narrowgemm.formats.fold",
    "gemm_grouped": "narrowgemm.gemm.api",
    "gemm_quantized": "narrowgemm.gemm.api",
    "kernels": "narrowgemm.gemm.api",
    "quantize": "narrowgemm.formats.quantize",
    "shuffle_weights": "narrowgemm.formats.shuffle",
    "unfold_weights": "narrowgemm.formats.fold",
    "unshuffle_weights": "narrowgemm.formats.shuffle",
}


def __getattr__(name: str) -> Any:
    if name == "gemm":
        return importlib.import_module("narrowgemm.gemm")
    if name not in _HOMES:
        raise AttributeError(f"module 'narrowgemm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
