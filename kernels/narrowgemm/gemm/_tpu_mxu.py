"""C = scale · A·Bᵀ on a TPU's matrix units: the part that the `tpu_mxu_*` kernels share.

A (M×K) and B (N×K) have K contiguous; a matrix unit of 128×128 (v5e, v5p) or 256×256 (v6e, v7) takes B transposed.
The grid walks over output tiles, and for each over K, innermost; Pallas copies the operand tiles of the next step
from HBM to VMEM while the matrix units work on this one. The accumulator, FP32 or for INT8 products INT32, stays in
VMEM scratch over the K steps of a tile, and is scaled, converted and stored at the last. The grid's first two
dimensions are independent of each other, so that chips with two TensorCores may share them out. The two tensor scales
are scalars, prefetched into SMEM.

Rows beyond M and N are read as whatever lies there and never stored. K has no such edge: the steps divide it.

The idea of the pipeline follows JAX's Pallas TPU documentation.
"""

import contextlib
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import Operand, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import _mosaic_tpu
from narrowgemm.gemm._choices import check_choices
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div

#: Lanes of a vector register: the last dimension of a tile is a multiple (JAX, Pallas TPU documentation).
LANES = 128
#: Rows of a tile of one-byte elements in VMEM; wider ones have fewer.
MOST_SUBLANES = 32
#: VMEM that a kernel may take: the least that a TensorCore has (64 MiB, v5p and v7), less what XLA keeps for itself.
VMEM_BYTES = 56 * 2**20
#: Products of INT8, of magnitude 2^14 at most (−128 is a code too), whose sum INT32 holds for certain.
MOST_INT8_PRODUCTS = (2**31 - 1) // 2**14
#: The same for FP32. For v7, libtpu 0.0.48.1 widens the codes of a step to BF16, adds their products in FP32, and makes
#: INT32 of the sum.
MOST_INT8_PRODUCTS_A_STEP = 2**24 // 2**14
#: What a step of the grid costs beside its work, about 0.35 µs (JAX, Pallas TPU documentation), in bytes at 800 GB/s.
_STEP_COST_BYTES = 280_000
#: Buffers of an operand or result tile: one is copied while the other is used.
_BUFFERS = 2


@dataclass(frozen=True)
class Config:
    """Choices of a TPU GEMM: rows of A, rows of B, and elements of K in one step."""

    tile_m: int = 512
    tile_n: int = 512
    tile_k: int = 1024


def check(kernel: str, problem: GemmProblem, config: Config) -> None:
    """Raise UnsupportedError where `config` cannot do `problem`: lanes, the steps of K, the sum's range, VMEM."""
    check_choices(kernel, config)
    for name, tile, step in (
        ("tile_m", config.tile_m, 32),
        ("tile_n", config.tile_n, LANES),
        ("tile_k", config.tile_k, LANES),
    ):
        if tile < step or tile % step:
            rule = f"is not a multiple of {step}: VMEM has tiles of up to {MOST_SUBLANES} rows × {LANES} lanes"
            raise UnsupportedError(kernel, {name: tile}, rule, f"use {name}={max(ceil_div(tile, step), 1) * step}")
    if problem.k % config.tile_k:
        values: dict[str, object] = {"k": problem.k, "tile_k": config.tile_k}
        pad = ceil_div(problem.k, LANES) * LANES
        raise UnsupportedError(
            kernel, values, "is not a whole number of steps", f"pad k to {pad} and use tile_k={LANES}"
        )
    check_sum(kernel, problem.k, config.tile_k, format_named(problem.a_format).element.dtype)
    needed = vmem_bytes(problem, config)
    if needed > VMEM_BYTES:
        tiles: dict[str, object] = {"tile_m": config.tile_m, "tile_n": config.tile_n, "tile_k": config.tile_k}
        raise UnsupportedError(kernel, tiles, f"need {needed} bytes of VMEM, of {VMEM_BYTES}", "use smaller tiles")


def check_sum(kernel: str, k: int, tile_k: int, dtype: Any) -> None:
    """Raise UnsupportedError where a sum of products of `dtype`, which has to be exact for integers, might not be."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return
    if k > MOST_INT8_PRODUCTS:
        rule = f"is more than {MOST_INT8_PRODUCTS} products, the most whose sum INT32 holds for certain"
        raise UnsupportedError(kernel, {"k": k}, rule, "split K, and add the results in FP32")
    if tile_k > MOST_INT8_PRODUCTS_A_STEP:
        most = MOST_INT8_PRODUCTS_A_STEP
        rule = f"is more than {most} products, the most whose sum is exact in FP32, as v7 adds them"
        raise UnsupportedError(kernel, {"tile_k": tile_k}, rule, f"use tile_k={most} or less")


def vmem_bytes(problem: GemmProblem, config: Config) -> int:
    """VMEM of the double-buffered operand and result tiles and of the accumulator."""
    a, b, out = (
        format_named(name).code_bytes(rows, columns)
        for name, rows, columns in (
            (problem.a_format, config.tile_m, config.tile_k),
            (problem.b_format, config.tile_n, config.tile_k),
            (problem.out_format, config.tile_m, config.tile_n),
        )
    )
    return _BUFFERS * (a + b + out) + 4 * config.tile_m * config.tile_n


def candidates(kernel: str, problem: GemmProblem) -> list[Config]:
    """Configs that `check` admits, in the order of a rough cost: arithmetic, padding included, or bytes from HBM.

    Longer steps than 1024 of K spill vector registers, as the compiled bundles show.
    """
    admitted = []
    rows = [tile for tile in (32, 64, 128, 256, 512, 1024) if tile <= max(32, 2 * problem.m)]
    for tile_m, tile_n, tile_k in itertools.product(rows, (128, 256, 512, 1024, 2048), (1024, 512, 256, 128)):
        config = Config(tile_m, tile_n, tile_k)
        with contextlib.suppress(UnsupportedError):
            check(kernel, problem, config)
            admitted.append(config)
    if not admitted:
        check(kernel, problem, Config(LANES, LANES, LANES))
    return sorted(admitted, key=functools.partial(_cost, problem))


def _cost(problem: GemmProblem, config: Config) -> float:
    """Bytes of HBM, or the FLOP as bytes at a ridge of 256 FLOP a byte (v5e 240, v5p 166, v6e 560, v7 313).

    INT8 has twice the rate, and so twice the ridge.
    """
    ridge = 512 if format_named(problem.a_format).element.is_integer else 256
    tiles_m, tiles_n = ceil_div(problem.m, config.tile_m), ceil_div(problem.n, config.tile_n)
    flop = 2 * tiles_m * config.tile_m * tiles_n * config.tile_n * problem.k
    a_bytes = tiles_n * format_named(problem.a_format).code_bytes(problem.m, problem.k)
    b_bytes = tiles_m * format_named(problem.b_format).code_bytes(problem.n, problem.k)
    steps = tiles_m * tiles_n * problem.k // config.tile_k
    first = (a_bytes * config.tile_m / (tiles_n * problem.m) + b_bytes * config.tile_n / (tiles_m * problem.n)) / (
        problem.k / config.tile_k
    )
    return max(flop / ridge, a_bytes + b_bytes) + first + steps * _STEP_COST_BYTES


def kernel(name: str, formats: tuple[str, ...], out_formats: tuple[str, ...]) -> Kernel:
    """The registry's entry of the kernel `name`, whose operands are each in one of `formats`."""

    def matmul(a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False) -> jax.Array:
        operands = as_quantized(a), as_quantized(b)
        codes = operands[0].codes, operands[1].codes
        scales = [q.tensor_scale.reshape(1) for q in operands if q.tensor_scale is not None]
        return gemm(name, codes, scales, format_named(out_format).element.dtype, config, interpret)

    return Kernel(
        name=name,
        arch="tpu",
        is_baseline=False,
        a_formats=formats,
        b_formats=formats,
        out_formats=out_formats,
        config_type=Config,
        check=functools.partial(check, name),
        candidates=functools.partial(candidates, name),
        matmul=matmul,
    )


def gemm(
    name: str,
    codes: tuple[jax.Array, jax.Array],
    scales: list[jax.Array],
    out_dtype: Any,
    config: Config,
    interpret: bool,
) -> jax.Array:
    """C[m,n] = Π scales · A[m,k]·B[n,k]ᵀ in `out_dtype`, summed in FP32 (INT32 for int8); a scale has shape (1,)."""
    a, b = codes
    (m, k), n = a.shape, b.shape[0]
    steps = k // config.tile_k
    call = pl.pallas_call(
        functools.partial(_body, steps=steps),
        name=name,
        out_shape=jax.ShapeDtypeStruct((m, n), out_dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scales),
            grid=(ceil_div(m, config.tile_m), ceil_div(n, config.tile_n), steps),
            in_specs=[
                pl.BlockSpec((config.tile_m, config.tile_k), lambda i, _j, s, *_: (i, s)),
                pl.BlockSpec((config.tile_n, config.tile_k), lambda _i, j, s, *_: (j, s)),
            ],
            out_specs=pl.BlockSpec((config.tile_m, config.tile_n), lambda i, j, _s, *_: (i, j)),
            scratch_shapes=[pltpu.VMEM((config.tile_m, config.tile_n), accumulator_dtype(a.dtype))],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
        ),
        interpret=_mosaic_tpu.interpret_params(interpret),
    )
    out: jax.Array = call(*scales, a, b)
    return out


def accumulator_dtype(dtype: Any) -> Any:
    """INT32 for integers, FP32 for the rest."""
    return jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32


def multiply_tile(a: jax.Array, b: jax.Array) -> jax.Array:
    """a (M×K) · b (N×K)ᵀ on the matrix units, in the accumulator's type."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=accumulator_dtype(a.dtype))


def _body(*refs: Any, steps: int) -> None:
    *scales, a, b, out, accumulator = refs
    step = pl.program_id(2)

    @pl.when(step == 0)
    def start() -> None:
        accumulator[...] = jnp.zeros_like(accumulator)

    accumulator[...] += multiply_tile(a[...], b[...])

    @pl.when(step == steps - 1)
    def store() -> None:
        out[...] = scaled(accumulator[...], scales).astype(out.dtype)


def scaled(accumulator: jax.Array, scales: list[Any]) -> jax.Array:
    """The sum in FP32, times the scalars of `scales`."""
    result = accumulator.astype(jnp.float32)
    for scale in scales:
        result = result * scale[0]
    return result
