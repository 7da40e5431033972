"""Baseline: C[m,n] = Σ_k A[m,k]·B[n,k] for FP8 E4M3 operands by PyTorch's `torch._scaled_mm`, one scale a tensor.

It is what a layer in FP8 calls. Fast accumulation is on; which algorithm of cuBLASLt runs is PyTorch's choice, the
heuristic's first, and it has no search for FP8 on NVIDIA GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from narrowbench.measure.vendor.baseline import Baseline, Way, as_tensor, check_multiples, imported, scale_of
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.problem import GemmProblem

NAME = "torch_scaled_mm_fp8_e4m3"


@dataclass
class TorchScaledMm:
    """`torch._scaled_mm`; it takes any problem as it comes."""

    torch: Any

    def bound(self, a: QuantizedArray, b: QuantizedArray, out: jax.Array) -> tuple[Any, ...]:
        """A, Bᵀ, their scales and C as tensors; see `Library`."""
        fp8 = self.torch.float8_e4m3fn
        operands = as_tensor(self.torch, a.codes).view(fp8), as_tensor(self.torch, b.codes).view(fp8).t()
        scales = as_tensor(self.torch, scale_of(a)), as_tensor(self.torch, scale_of(b))
        return *operands, *scales, as_tensor(self.torch, out)

    def ways(self, bound: tuple[Any, ...]) -> Sequence[Way]:
        """The one that there is."""
        del bound
        told: dict[str, object] = {"library": f"torch {self.torch.__version__}", "use_fast_accum": True}
        return (Way(told, self._launch),)

    def _launch(self, bound: tuple[Any, ...]) -> None:
        a, b, a_scale, b_scale, out = bound
        self.torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=out.dtype, use_fast_accum=True, out=out)


def _load() -> Any:
    return imported(NAME, "torch", "torch")


def _open(problem: GemmProblem) -> TorchScaledMm:
    del problem
    return TorchScaledMm(_load())


BASELINES = (
    Baseline(
        NAME,
        "fp8_e4m3",
        ("bf16",),
        ("hopper", "blackwell"),
        partial(check_multiples, NAME, least_n=16, least_k=16),
        _load,
        _open,
    ),
)
