"""GEMM kernels, and the package itself as the function `narrowgemm.gemm.api.gemm`."""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """Importing any of its modules binds this package as `narrowgemm.gemm`, so the function has to be the package."""

    def __call__(self, *operands: Any, **choices: Any) -> Any:
        from narrowgemm.gemm.api import gemm

        return gemm(*operands, **choices)


sys.modules[__name__].__class__ = _CallablePackage
