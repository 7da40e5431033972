"""Baseline: C[m,n] = Σ_k A[m,k]·B[n,k] for FP8 E4M3 operands by a persistent kernel in Triton, one scale a tensor.

What a good hour with Triton gives on this device: tiles by the copy engine, a grid of as many programs as fit, a
search over tile shapes and depths of the pipeline. It splits no K and specialises no warps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import jax

from narrowbench.measure.vendor.baseline import Baseline, Way, as_tensor, check_multiples, imported, scale_of
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.problem import GemmProblem

NAME = "triton_persistent_fp8_e4m3"

#: What Triton's dot takes at least of M.
_LEAST_M = 64


@dataclass(frozen=True)
class Config:
    """Choices of the kernel.

    tile_m, tile_n, tile_k: of C and of K.
    stages:  tiles of A and B in flight.
    warps:   of a program; 4 share one tile of 64 rows, 8 two.
    band:    rows of tiles that are gone down before the next column.
    halves:  a tile of C is stored in two halves, which leaves room for one stage more.
    a_core:  programs for each streaming multiprocessor.
    flatten: the loops over tiles and over K are one, so that loads go on across tiles.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps: int
    band: int = 8
    halves: bool = False
    a_core: int = 1
    flatten: bool = True


_LARGE = (
    Config(128, 256, 128, 3, 8),
    Config(128, 256, 128, 4, 8, halves=True),
    Config(128, 256, 128, 3, 8, flatten=False),
    Config(256, 128, 128, 3, 8),
    Config(256, 128, 128, 4, 8, halves=True),
    Config(128, 128, 128, 5, 8),
    Config(128, 128, 128, 3, 8, a_core=2),
    Config(128, 128, 128, 3, 4, a_core=2),
    Config(64, 256, 128, 4, 4),
    Config(64, 128, 128, 4, 4, a_core=2),
)
_SMALL_M = (
    Config(64, 128, 128, 6, 4),
    Config(64, 128, 256, 4, 4),
    Config(64, 64, 128, 10, 4),
    Config(64, 64, 256, 6, 4),
    Config(64, 64, 256, 3, 4, a_core=2),
    Config(64, 32, 256, 8, 4),
    Config(64, 32, 256, 4, 4, a_core=2),
    Config(64, 32, 128, 4, 4, a_core=4),
    Config(64, 64, 128, 4, 4, a_core=2, flatten=False),
)


def candidates(problem: GemmProblem) -> tuple[Config, ...]:
    """Configs worth timing; for as few rows as one tile has, those that keep the most weights in flight."""
    return _SMALL_M if problem.m <= _LEAST_M else _LARGE


@dataclass(eq=False)
class _Bound:
    """Operands, scales and C as tensors, and their descriptors by the shape of their tiles."""

    a: Any
    b: Any
    a_scale: Any
    b_scale: Any
    out: Any
    descriptors: dict[tuple[int, ...], tuple[Any, Any, Any]] = field(default_factory=dict)


@dataclass
class TritonPersistent:
    """The kernel made ready for one problem. `descriptor` is Triton's class of tensor descriptors."""

    problem: GemmProblem
    torch: Any
    triton: Any
    descriptor: Any
    kernel: Any

    def bound(self, a: QuantizedArray, b: QuantizedArray, out: jax.Array) -> _Bound:
        """Tensors in JAX's memory; see `Library`."""
        fp8 = self.torch.float8_e4m3fn
        operands = (as_tensor(self.torch, codes).view(fp8) for codes in (a.codes, b.codes))
        return _Bound(*operands, *(as_tensor(self.torch, array) for array in (scale_of(a), scale_of(b), out)))

    def ways(self, bound: _Bound) -> Sequence[Way]:
        """One for each config; see `Library`."""
        cores = self.torch.cuda.get_device_properties(bound.a.device).multi_processor_count
        return tuple(self._ways(cores))

    def _ways(self, cores: int) -> Iterator[Way]:
        for rank, config in enumerate(candidates(self.problem)):
            told = {"library": f"triton {self.triton.__version__}", "rank": rank, **asdict(config)}
            yield Way(told, partial(self._launch, config, programs(self.problem, config, cores)))

    def _launch(self, config: Config, grid: int, bound: _Bound) -> None:
        self.kernel[(grid,)](
            *self._descriptors(config, bound),
            bound.a_scale,
            bound.b_scale,
            self.problem.m,
            self.problem.n,
            self.problem.k,
            BLOCK_M=config.tile_m,
            BLOCK_N=config.tile_n,
            BLOCK_K=config.tile_k,
            BAND=config.band,
            HALVES=config.halves,
            FLATTEN=config.flatten,
            num_stages=config.stages,
            num_warps=config.warps,
        )

    def _descriptors(self, config: Config, bound: _Bound) -> tuple[Any, Any, Any]:
        columns = config.tile_n // 2 if config.halves else config.tile_n
        tiles = (config.tile_m, config.tile_n, config.tile_k, columns)
        if tiles not in bound.descriptors:
            bound.descriptors[tiles] = (
                self.descriptor.from_tensor(bound.a, [config.tile_m, config.tile_k]),
                self.descriptor.from_tensor(bound.b, [config.tile_n, config.tile_k]),
                self.descriptor.from_tensor(bound.out, [config.tile_m, columns]),
            )
        return bound.descriptors[tiles]


def programs(problem: GemmProblem, config: Config, cores: int) -> int:
    """Programs of the grid: all that the device holds at once, and no more than there are tiles."""
    tiles = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return min(cores * config.a_core, tiles)


def _load() -> tuple[Any, Any, Any]:
    torch, triton = imported(NAME, "torch", "torch"), imported(NAME, "triton", "triton")
    return torch, triton, imported(NAME, "triton", "triton.tools.tensor_descriptor").TensorDescriptor


def _open(problem: GemmProblem) -> TritonPersistent:
    torch, triton, descriptor = _load()
    from narrowbench.measure.vendor import triton_kernel

    return TritonPersistent(problem, torch, triton, descriptor, triton_kernel.triton_persistent_fp8_e4m3)


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
