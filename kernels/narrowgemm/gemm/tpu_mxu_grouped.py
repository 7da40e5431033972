"""C[r] = A[r]·B[g(r)]ᵀ on a TPU: rows of A in consecutive groups of any size, each with its own B (mixture of experts).

A (M×K): BF16, FP8 or int8, K contiguous, K a multiple of 128, for int8 below 2^17; its rows 0 … sizes[0]−1 belong to
group 0, the next sizes[1] to group 1, and so on; sizes may be zero and sum to at most M. B (G×N×K). C (M×N): a group's
rows times its factor, in FP32; rows beyond the last group are zero.

The grid visits each pair of a row tile and a group that has rows in it, in order, so that the visits of a row tile
follow each other and its result stays in VMEM until the last: a visit stores the rows of its own group and leaves the
others. How many visits there are depends on the sizes, which the program knows only as it runs: the grid has the most
there can be (M / tile_m + G − 1), and which tile and group a visit has, and where groups begin, is prefetched into
SMEM as scalars. A visit too many does nothing.

The idea of visits follows MegaBlocks (Gale et al., arXiv:2211.15841) as JAX's Pallas examples apply it to TPUs.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.stack import Stack
from narrowgemm.gemm import _mosaic_tpu
from narrowgemm.gemm._tpu_mxu import (
    VMEM_BYTES,
    Config,
    accumulator_dtype,
    candidates,
    check,
    check_sum,
    multiply_tile,
)
from narrowgemm.gemm.registry import Products
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div


def matmul(
    a: jax.Array,
    b: jax.Array,
    sizes: jax.Array,
    config: Config,
    out_format: str,
    interpret: bool = False,
    scales: jax.Array | None = None,
) -> jax.Array:
    """a (M×K), b (G×N×K), sizes (G,) of INT32 as an M×N array of `out_format`; K is a multiple of `config.tile_k`.

    scales: (G,) FP32, a factor of each group's product; None: 1.
    Raises ValueError for shapes that do not fit each other or the config, UnsupportedError where a sum of int8
    products might not be exact.
    """
    (m, k), (groups, n, b_k) = a.shape, b.shape
    if b_k != k or sizes.shape != (groups,) or k % config.tile_k:
        raise ValueError(f"tpu_mxu_grouped: a {a.shape}, b {b.shape}, sizes {sizes.shape}, tile_k={config.tile_k}")
    check_sum("tpu_mxu_grouped", k, config.tile_k, a.dtype)
    visits = ceil_div(m, config.tile_m) + groups - 1
    steps = k // config.tile_k
    call = pl.pallas_call(
        functools.partial(_body, steps=steps, tile_m=config.tile_m),
        name="tpu_mxu_grouped",
        out_shape=jax.ShapeDtypeStruct((m, n), format_named(out_format).element.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(ceil_div(n, config.tile_n), visits, steps),
            in_specs=[
                pl.BlockSpec((config.tile_m, config.tile_k), lambda _j, v, s, tile, *_: (tile[v], s)),
                pl.BlockSpec((1, config.tile_n, config.tile_k), lambda j, v, s, _tile, group, *_: (group[v], j, s)),
            ],
            out_specs=pl.BlockSpec((config.tile_m, config.tile_n), lambda j, v, _s, tile, *_: (tile[v], j)),
            scratch_shapes=[pltpu.VMEM((config.tile_m, config.tile_n), accumulator_dtype(a.dtype))],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        interpret=_mosaic_tpu.interpret_params(interpret),
    )
    factors = jnp.ones(groups, jnp.float32) if scales is None else scales
    out: jax.Array = call(*plan_visits(sizes, m, config.tile_m, visits), factors, a, b)
    return out


def plan_visits(
    sizes: jax.Array, m: int, tile_m: int, visits: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Row tile and group of each visit, where each group begins (G+1 offsets), and how many visits there are (1,).

    Row tiles without any group's rows, at the end, are visited once, by the last group, to be set to zero.
    """
    groups, tiles = sizes.shape[0], ceil_div(m, tile_m)
    ends = jnp.cumsum(sizes)
    first = (ends - sizes) // tile_m
    counts = jnp.where(sizes > 0, (ends - 1) // tile_m - first + 1, 0)
    of_groups, covered = jnp.sum(counts), (ends[-1] + tile_m - 1) // tile_m
    index = jnp.arange(visits)
    group = jnp.repeat(jnp.arange(groups), counts, total_repeat_length=visits)
    tile = first[group] + index - (jnp.cumsum(counts) - counts)[group]
    is_of_group = index < of_groups
    tile = jnp.where(is_of_group, tile, jnp.minimum(covered + index - of_groups, tiles - 1))
    group = jnp.where(is_of_group, group, groups - 1)
    offsets = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
    used = (of_groups + tiles - covered).reshape(1)
    return tile.astype(jnp.int32), group.astype(jnp.int32), offsets.astype(jnp.int32), used.astype(jnp.int32)


def _body(
    tile: Any,
    group: Any,
    offsets: Any,
    used: Any,
    factors: Any,
    a: Any,
    b: Any,
    out: Any,
    accumulator: Any,
    *,
    steps: int,
    tile_m: int,
) -> None:
    visit, step = pl.program_id(1), pl.program_id(2)
    is_used = visit < used[0]

    @pl.when(is_used & (step == 0))
    def start() -> None:
        accumulator[...] = jnp.zeros_like(accumulator)

    @pl.when(is_used)
    def multiply() -> None:
        accumulator[...] += multiply_tile(a[...], b[0])

    @pl.when(is_used & (step == steps - 1))
    def store() -> None:
        rows = tile[visit] * tile_m + lax.broadcasted_iota(jnp.int32, out.shape, 0)
        mine = (rows >= offsets[group[visit]]) & (rows < offsets[group[visit] + 1])
        is_first = (visit == 0) | (tile[visit] != tile[jnp.maximum(visit, 1) - 1])
        others = jnp.where(is_first, jnp.zeros_like(out), out[...])
        result = accumulator[...].astype(jnp.float32) * factors[group[visit]]
        out[...] = jnp.where(mine, result.astype(out.dtype), others)


def _grouped(name: str) -> Products:
    """What the registry holds of groups of the kernel `name`."""

    def multiply(
        a: QuantizedArray, b: Stack, sizes: jax.Array, config: Config, out_format: str, interpret: bool = False
    ) -> jax.Array:
        scales = b.scales() if a.tensor_scale is None else b.scales() * a.tensor_scale
        return matmul(a.codes, b.codes, sizes, config, out_format, interpret, scales)

    def check_of(problem: GemmProblem, count: int, config: Config) -> None:
        del count
        check(name, problem, config)

    def candidates_of(problem: GemmProblem, count: int) -> list[Config]:
        return candidates(name, replace(problem, m=ceil_div(problem.m, count)))

    return Products(multiply, check_of, candidates_of)


GROUPED = {name: _grouped(name) for name in ("tpu_mxu_bf16", "tpu_mxu_fp8", "tpu_mxu_int8")}
