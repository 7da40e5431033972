"""Many products in one launch of Hopper's dense kernels: a batch of one shape, or groups of rows, each with its own B.

Roles and barriers: `_hopper_wgmma`; which tiles, and how a group's last rows are stored: `_hopper_walks`.
"""

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.stack import Stack
from narrowgemm.gemm import _hopper_wgmma, _mosaic_gpu, _wgmma_epilogue
from narrowgemm.gemm._hopper import is_admitted, scale_operand
from narrowgemm.gemm._hopper_space import (
    RESERVED_BYTES,
    STAGE_K_BYTES,
    Config,
    candidates_dense,
    check_dense,
    estimated_cycles,
    shared_memory_bytes,
    store_columns,
)
from narrowgemm.gemm._hopper_walks import Batch, Groups, OneProduct, copies_of_sizes, sizes_length
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Products
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

#: A piece of a group's last rows begins at an even row, and TMA takes shared memory at multiples of 128 bytes.
_LEAST_STORE_BYTES = 64
#: Tiles of a group that are less likely than this change no estimate.
_LEAST_LIKELIHOOD = 1e-4


def batch(name: str, a: Stack, b: Stack, config: Config, out_format: str, interpret: bool) -> jax.Array:
    """C[g] = a[g]·b[g]ᵀ times the tensor scales, (G, M, N) of `out_format`; a product has passed `check_dense`."""
    (products, m, k), n = a.shape, b.shape[1]
    out_dtype = format_named(out_format).element.dtype
    grid = _grid(config, m, n, k, a.codes.dtype.itemsize)

    def body(*refs: Any) -> None:
        _run(Batch(config, grid, products), refs, interpret)

    columns = store_columns(config, out_dtype.itemsize)
    kernel = _hopper_wgmma.kernel_of(
        name,
        body,
        jax.ShapeDtypeStruct((products, m, n), out_dtype),
        products * grid[0] * grid[1],
        config,
        _hopper_wgmma.scratch(config, (a.codes.dtype, b.codes.dtype, out_dtype), columns, interpret),
        interpret,
    )
    return kernel(a.codes, b.codes, a.scales(), b.scales())


def groups(
    name: str, a: QuantizedArray, b: Stack, sizes: jax.Array, config: Config, out_format: str, interpret: bool
) -> jax.Array:
    """C[r] = a[r]·b[g(r)]ᵀ times the tensor scales, M×N of `out_format`; the problem has passed `check_groups`."""
    (m, k), (count, n, _) = a.shape, b.shape
    out_dtype = format_named(out_format).element.dtype
    grid = _grid(config, m, n, k, a.codes.dtype.itemsize)

    def body(*refs: Any) -> None:
        *operands, sizes_gmem, out = refs[:6]
        *scratch, sizes_smem, full = refs[6:]
        walk = Groups(config, grid, count, sizes_gmem, sizes_smem, full)
        _run(walk, (*operands, out, *scratch), interpret)

    length, columns = sizes_length(count), store_columns(config, out_dtype.itemsize)
    kernel = _hopper_wgmma.kernel_of(
        f"{name}_grouped",
        body,
        jax.ShapeDtypeStruct((m, n), out_dtype),
        (grid[0] + count - 1) * grid[1],
        config,
        (
            *_hopper_wgmma.scratch(config, (a.codes.dtype, b.codes.dtype, out_dtype), columns, interpret),
            plgpu.SMEM((length,), jnp.int32),
            plgpu.Barrier(num_arrivals=copies_of_sizes(length)),
        ),
        interpret,
    )
    return kernel(a.codes, b.codes, scale_operand(a.tensor_scale), b.scales(), sizes)


def _batched(name: str) -> Products:
    """What the registry holds of batches of the kernel `name`."""

    def matmul(a: Stack, b: Stack, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
        return batch(name, a, b, config, out_format, interpret)

    def check(problem: GemmProblem, count: int, config: Config) -> None:
        del count
        check_dense(name, problem, config)

    return Products(matmul, check, functools.partial(candidates_dense, name))


def _grouped(name: str) -> Products:
    """What the registry holds of groups of the kernel `name`."""

    def matmul(
        a: QuantizedArray, b: Stack, sizes: jax.Array, config: Config, out_format: str, interpret: bool = False
    ) -> jax.Array:
        return groups(name, a, b, sizes, config, out_format, interpret)

    return Products(matmul, functools.partial(check_groups, name), functools.partial(candidates_groups, name))


def _grid(config: Config, m: int, n: int, k: int, itemsize: int) -> tuple[int, int, int]:
    tiles_m, tiles_n = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    return ceil_div(m, tiles_m), ceil_div(n, tiles_n), ceil_div(k * itemsize, STAGE_K_BYTES)


def _run(walk: OneProduct, refs: tuple[Any, ...], interpret: bool) -> None:
    finish = _wgmma_epilogue.Finish(Epilogue(), (), walk.config, refs[4].dtype, interpret)
    _hopper_wgmma.body(*refs, config=walk.config, walk=walk, interpret=interpret, finish=finish)


def check_groups(kernel: str, problem: GemmProblem, count: int, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do the `problem`, M rows in so many groups: as `check_dense`, and
    where pieces of its stores are too narrow, or the groups' sizes find no room in shared memory."""
    check_dense(kernel, problem, config)
    itemsize = format_named(problem.out_format).element.bits // 8
    width_bytes = store_columns(config, itemsize) * itemsize
    if width_bytes < _LEAST_STORE_BYTES:
        raise UnsupportedError(
            kernel,
            {"tile_n": config.tile_n, "split": config.split, "out_format": problem.out_format},
            f"stores rows of {width_bytes} bytes, of which TMA cannot take an even number alone",
            "use a wider tile, or split it along m",
        )
    needed = shared_memory_bytes(problem, config) + 4 * sizes_length(count)
    available = _mosaic_gpu.SHARED_MEMORY_BYTES - RESERVED_BYTES
    if needed > available:
        raise UnsupportedError(
            kernel,
            {"groups": count, "stages": config.stages},
            f"needs {needed} bytes of shared memory; a block has {available}",
            "use fewer stages, or fewer groups at once",
        )


def candidates_groups(kernel: str, problem: GemmProblem, count: int) -> list[Config]:
    """Configs worth trying for M rows in so many groups, best guess first: as if sizes spread by half of their mean."""
    each = replace(problem, m=ceil_div(problem.m, count))

    def check(name: str, whole: GemmProblem, config: Config) -> None:
        check_groups(name, whole, count, config)

    def guess(config: Config) -> tuple[float, int]:
        return _estimated_cycles(each, count, config), config.cluster_m * config.cluster_n

    found = []
    for config in sorted(candidates_dense(kernel, each, count), key=guess):
        # Sizes take the room of a stage where there is none beside.
        depths = [stages for stages in (config.stages, config.stages - 1) if stages]
        choices = [replace(config, stages=stages) for stages in depths]
        found += [choice for choice in choices if is_admitted(check, kernel, problem, choice)][:1]
    return found


def _estimated_cycles(each: GemmProblem, count: int, config: Config) -> float:
    """As of so many products of one tile of rows. What a cluster shares counts for nothing: on ragged groups of 64 rows
    and more in the mean, two blocks that share A took 0.5 to 9 % longer than blocks alone
    (docs/performance/hopper_wgmma_fp8.md).
    """
    tiles = count * _tiles_of_group(each.m, config.tile_m * config.cluster_m) * config.cluster_m
    one = replace(config, cluster_m=1, cluster_n=1)
    return estimated_cycles(replace(each, m=config.tile_m), tiles, one)


def _tiles_of_group(mean: int, rows: int) -> float:
    """Mean number of tiles of so many rows, for a group whose size is a gamma variate of shape 4, half of whose mean is
    its deviation: one, and each further one as likely as a group is larger than those before it."""
    tiles, x = 1.0, 4 * rows / mean
    while (likelihood := math.exp(-x) * (1 + x + x**2 / 2 + x**3 / 6)) > _LEAST_LIKELIHOOD:
        tiles, x = tiles + likelihood, x + 4 * rows / mean
    return tiles


BATCHED = {name: _batched(name) for name in ("hopper_wgmma_bf16", "hopper_wgmma_fp8")}
GROUPED = {name: _grouped(name) for name in ("hopper_wgmma_bf16", "hopper_wgmma_fp8")}
