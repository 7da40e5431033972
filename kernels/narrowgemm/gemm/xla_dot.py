"""Baselines: C[m,n] = Σ_k A[m,k]·B[n,k] as XLA's own dot, for FP32, BF16 and FP8 E4M3 operands.

What XLA makes of a dot is its choice, and `narrowgemm.gemm.hlo` reads it off the compiled text. On Hopper and later the
FP8 dot becomes one call of cuBLASLt (`__cublas$lt$matmul$f8`); on a CPU its operands are widened first, so there it is
no FP8 baseline. XLA's GemmRewriter matches a dot whose two operands are FP8 themselves, and a scalar factor on its
result in the result's own dtype, which becomes cuBLASLt's FP32 scale of A; K last in both operands needs no transpose.

With an epilogue the dot is followed by JAX functions in FP32, of which XLA makes one pass over C unless it finds more.
What goes from the dot to that pass is BF16 where the result is BF16 or FP8, and else FP32: a sequence of kernels that
moves more bytes would be no baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import epilogue as epilogues
from narrowgemm.gemm.device import default_device
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import OUT_FORMATS, GemmProblem

_K_LAST = (((1,), (1,)), ((), ()))


@dataclass(frozen=True)
class Config:
    """An FP32 or BF16 dot has no choices."""


@dataclass(frozen=True)
class Fp8Config:
    """Choices of the FP8 dot.

    fuse_scale: for a BF16 result, multiply by the tensor scales in BF16, and all is one call of cuBLASLt. The factor is
                rounded to BF16 (by up to 2^-8): on an H200 the error at 8192³ was 4.3e-3 of the result's norm with
                it, where a factor in FP32 leaves 2.6e-3. Without it the factor is applied in FP32, for one more
                pass over C.
    """

    fuse_scale: bool = False


def matmul(
    a: Operand, b: Operand, config: Config, out_format: str, interpret: bool = False, *, precision: lax.Precision
) -> jax.Array:
    """C (m, n) in `out_format` for plain operands (m, k) and (n, k); `interpret` changes nothing for XLA."""
    del config, interpret
    narrow = out_format in ("f32", "bf16") and precision == lax.Precision.DEFAULT
    preferred = format_named(out_format).element.dtype if narrow else jnp.float32
    product = lax.dot_general(
        as_quantized(a).codes, as_quantized(b).codes, _K_LAST, precision=precision, preferred_element_type=preferred
    )
    return _store(product, out_format)


def matmul_fp8(a: Operand, b: Operand, config: Fp8Config, out_format: str, interpret: bool = False) -> jax.Array:
    """C (m, n) in `out_format` for FP8 operands (m, k) and (n, k); `interpret` changes nothing for XLA."""
    del interpret
    qa, qb = as_quantized(a), as_quantized(b)
    scale = _scale(qa, qb)
    whole = out_format == "bf16" and (scale is None or config.fuse_scale)
    product = lax.dot_general(
        qa.codes, qb.codes, _K_LAST, preferred_element_type=jnp.bfloat16 if whole else jnp.float32
    )
    if scale is not None:
        product = product * scale.astype(product.dtype)
    return _store(product, out_format)


def matmul_epilogue(
    a: Operand,
    b: Operand,
    config: Config | Fp8Config,
    out_format: str,
    epilogue: Epilogue,
    interpret: bool = False,
    *,
    precision: lax.Precision,
) -> jax.Array:
    """As `matmul` and `matmul_fp8`, with the epilogue in the same program; `config`, `interpret` change nothing."""
    del config, interpret
    qa, qb = as_quantized(a), as_quantized(b)
    narrow = out_format not in ("f32", "f16") and precision == lax.Precision.DEFAULT
    preferred = jnp.bfloat16 if narrow else jnp.float32
    product = lax.dot_general(qa.codes, qb.codes, _K_LAST, precision=precision, preferred_element_type=preferred)
    product, scale = product.astype(jnp.float32), _scale(qa, qb)
    return _store(epilogues.apply(product if scale is None else product * scale, epilogue), out_format)


def _scale(a: QuantizedArray, b: QuantizedArray) -> jax.Array | None:
    scales = [operand.tensor_scale for operand in (a, b) if operand.tensor_scale is not None]
    return None if not scales else scales[0] if len(scales) == 1 else scales[0] * scales[1]


def _store(product: jax.Array, out_format: str) -> jax.Array:
    """The product in the output's dtype, FP8 saturated: XLA fuses this clamp and conversion into cuBLASLt."""
    element = format_named(out_format).element
    if element.bits == 8:
        largest = jnp.asarray(element.max_finite, product.dtype)
        product = lax.clamp(-largest, product, largest)
    return product.astype(element.dtype)


def check(problem: GemmProblem, config: Config) -> None:
    """XLA's FP32 and BF16 dots take any shape."""
    del problem, config


def check_fp8(problem: GemmProblem, config: Fp8Config) -> None:
    """Raises UnsupportedError where a fused scale has no meaning."""
    if config.fuse_scale and problem.out_format != "bf16":
        raise UnsupportedError(
            "xla_dot_fp8_e4m3",
            {"fuse_scale": True, "out_format": problem.out_format},
            "is a choice for BF16 results alone",
            "use fuse_scale=False",
        )


def candidates(problem: GemmProblem) -> Sequence[Config]:
    """The one config."""
    del problem
    return (Config(),)


def candidates_fp8(problem: GemmProblem) -> Sequence[Fp8Config]:
    """The fused scale first where cuBLASLt is there to take it."""
    fuses = problem.out_format == "bf16" and default_device().platform == "gpu"
    return (Fp8Config(True), Fp8Config(False)) if fuses else (Fp8Config(False),)


def _plain(name: str, operand: str, precision: lax.Precision) -> Kernel:
    return Kernel(
        name,
        "any",
        True,
        (operand,),
        (operand,),
        OUT_FORMATS,
        Config,
        check,
        candidates,
        partial(matmul, precision=precision),
        matmul_epilogue=partial(matmul_epilogue, precision=precision),
    )


KERNELS = (
    _plain("xla_dot_f32", "f32", lax.Precision.HIGHEST),
    _plain("xla_dot_bf16", "bf16", lax.Precision.DEFAULT),
    Kernel(
        "xla_dot_fp8_e4m3",
        "any",
        True,
        ("fp8_e4m3",),
        ("fp8_e4m3",),
        OUT_FORMATS,
        Fp8Config,
        check_fp8,
        candidates_fp8,
        matmul_fp8,
        matmul_epilogue=partial(matmul_epilogue, precision=lax.Precision.DEFAULT),
    ),
)
