"""The one function that multiplies, whatever kernel does it."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from narrowgemm.errors import UnsupportedError, unknown_name
from narrowgemm.formats.fold import FoldedWeights
from narrowgemm.formats.quantize import Operand, QuantizedArray, as_quantized, fitting
from narrowgemm.formats.shuffle import ShuffledWeights
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.stack import StackOperand, as_stack, is_stack
from narrowgemm.gemm.device import arch_of, check_device, default_device
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import (
    Kernel,
    Many,
    Products,
    accepts,
    check_formats,
    kernel_named,
    kernel_names,
    kernels_of_many,
    products_of,
)
from narrowgemm.problem import OUT_FORMATS, GemmProblem
from narrowgemm.slug import slugged
from narrowgemm.tune import table

_OUT_FORMAT_OF = {format_named(name).element.dtype: name for name in OUT_FORMATS}

#: Architecture -> kernels that `kernel=None` may mean there; the first that takes the operands' formats and is made for
#: so many rows of A is taken. A device that is not here has `_PORTABLE`: dots that are what they say on every device.
_PORTABLE = ("xla_dot_f32", "xla_dot_bf16")
_DEFAULTS = {
    "hopper": (
        "hopper_wgmma_fp8_decode",
        "hopper_wgmma_fp8",
        "hopper_wgmma_fp8_block128",
        "hopper_wgmma_bf16",
        "hopper_wgmma_w4a8",
        "hopper_wgmma_w4a16",
        "hopper_wgmma_w6a8",
        "hopper_wgmma_w6a16",
        "xla_dot_f32",
    ),
    "blackwell": (
        "blackwell_tcgen05_bf16",
        "blackwell_tcgen05_fp8",
        "blackwell_tcgen05_mxfp8",
        "blackwell_tcgen05_mxfp6",
        "blackwell_tcgen05_mxfp4",
        "blackwell_tcgen05_nvfp4",
        "xla_dot_f32",
    ),
    "tpu": ("tpu_mxu_bf16", "tpu_mxu_fp8", "tpu_mxu_int8", "xla_dot_f32"),
}


#: Weights in an order of their own -> how they are undone, and the kernels that `kernel=None` means for them, by their
#: format; none: as for the format itself.
_PREPARED: dict[type, tuple[str, dict[str, str]]] = {
    ShuffledWeights: ("unshuffle_weights", {}),
    FoldedWeights: (
        "unfold_weights",
        {
            "mxfp4": "hopper_wgmma_w4a8_folded",
            "mxfp6_e2m3": "hopper_wgmma_w6a8_folded",
            "mxfp6_e3m2": "hopper_wgmma_w6a8_folded",
        },
    ),
}


def kernels() -> tuple[str, ...]:
    """Names of all kernels, sorted."""
    return kernel_names()


def gemm(
    a: Operand,
    b: Operand | ShuffledWeights | FoldedWeights,
    *,
    kernel: str | None = None,
    out_dtype: DTypeLike = jnp.bfloat16,
    config: Any = None,
    epilogue: Epilogue | None = None,
) -> jax.Array:
    """C[m,n] = Σ_k a[m,k]·b[n,k], block and tensor scales included, as an (m, n) array of `out_dtype`.

    With one more axis before them, (g, m, k) and (g, n, k), it is g products in one launch, (g, m, n); a stack of
    quantised operands is what `jax.vmap` of `quantize` gives.

    a, b:      (m, k) and (n, k), K contiguous: plain arrays of f32, bf16, f16, float8 or int8, or `QuantizedArray`s;
               b also `ShuffledWeights`, which the kernels `hopper_wgmma_w*` take and no other does, or
               `FoldedWeights`, which `hopper_wgmma_w4a8_folded` and `_w6a8_folded` alone take.
    kernel:    one of `narrowgemm.kernels()`; None: this device's own kernel for these formats, this m and an epilogue.
    out_dtype: f32, bf16, f16, float8_e4m3fn or float8_e5m2; FP8 saturates.
    config:    the kernel's `Config`; None: the one tuned for this shape on this model of device, else the first
               candidate that the kernel admits.
    epilogue:  what becomes of C in FP32 before it is rounded to `out_dtype`, in the same kernel; None: nothing.

    Traceable under jit. Not differentiable for quantised operands, whose codes have a gradient of zero and no error:
    wrap it in `jax.custom_vjp`.
    Raises ValueError for operands or an epilogue that do not fit, an unknown kernel or dtype, and another kernel's
    config; UnsupportedError for what the kernel or the device cannot do. Nothing else is ever run instead.
    """
    if epilogue is not None:
        epilogue = _fitting(epilogue)
    undone_by, made_for = _PREPARED.get(type(b), (None, {}))
    if undone_by is None and (is_stack(a) or is_stack(b)):
        return _batch(a, b, kernel, out_dtype, config, epilogue)
    qa = as_quantized(a, "a")
    qb = fitting(b, "b") if isinstance(b, ShuffledWeights | FoldedWeights) else as_quantized(b, "b")
    problem = _problem(qa, qb, out_dtype)
    kernel = made_for.get(problem.b_format) if kernel is None else kernel
    chosen = _default_kernel(problem, epilogue) if kernel is None else kernel_named(kernel)
    check_formats(chosen, problem)
    check_device(chosen)
    if undone_by is not None and chosen.prepare_b is None:
        rule, remedy = "is an order that this kernel does not take", f"pass narrowgemm.{undone_by}(b)"
        raise UnsupportedError(chosen.name, {"b": type(b).__name__}, rule, remedy)
    if epilogue is not None:
        epilogue.check(problem)
    matmul = matmul_with(chosen, epilogue)
    if config is None:
        config, _ = chosen_config(chosen, problem, epilogue)
    elif isinstance(config, chosen.config_type):
        _check(chosen, problem, config, epilogue)
    else:
        raise ValueError(f"{chosen.name}: config {config!r} is not a {chosen.config_type.__qualname__} of its module")
    result: jax.Array = matmul(as_given(qa), as_given(qb), config, problem.out_format)
    return result


def _batch(
    a: Any, b: Any, kernel: str | None, out_dtype: DTypeLike, config: Any, epilogue: Epilogue | None
) -> jax.Array:
    """`gemm` of stacks."""
    if epilogue is not None:
        rule, remedy = "is nothing that batches have", "apply it to the result"
        raise UnsupportedError("gemm", {"epilogue": epilogue.name}, rule, remedy)
    sa, sb = as_stack("a", a), as_stack("b", b)
    (count, m, k), (b_count, n, b_k) = sa.shape, sb.shape
    if (count, k) != (b_count, b_k):
        raise ValueError(f"gemm: a has shape {sa.shape} and b {sb.shape}: their first or their last axes differ")
    problem = GemmProblem(m, n, k, sa.format, sb.format, _out_format(out_dtype))
    products, config = chosen_products("batched", problem, count, kernel, config)
    result: jax.Array = products.matmul(sa, sb, config, problem.out_format)
    return result


def gemm_grouped(
    a: Operand,
    b: StackOperand,
    sizes: jax.Array,
    *,
    kernel: str | None = None,
    out_dtype: DTypeLike = jnp.bfloat16,
    config: Any = None,
) -> jax.Array:
    """C[r,n] = Σ_k a[r,k]·b[g(r),n,k]: consecutive groups of rows of a, each times its own b (mixture of experts).

    a:      (m, k); its first sizes[0] rows are group 0's, the next sizes[1] group 1's, and so on.
    b:      (g, n, k), an array or what `jax.vmap` of `quantize` gives.
    sizes:  (g,) INT32 on the device, none negative; they may be zero and sum to at most m. Rows beyond the last group
            are zero in C. Sizes that sum to more, or negative ones, give wrong results and no error, but where they
            are a NumPy array, which can be looked at.
    kernel, out_dtype, config: as for `gemm`, of the kernels that have groups.

    Traceable under jit, sizes too; not differentiable for quantised operands, as `gemm`. Raises as `gemm` does.
    """
    qa, sb = as_quantized(a, "a"), as_stack("b", b)
    (m, k), (count, n, b_k) = qa.shape, sb.shape
    if k != b_k:
        raise ValueError(f"gemm_grouped: a has shape {qa.shape} and b {sb.shape}: their K, the last axis, differ")
    _check_sizes(sizes, count, m)
    problem = GemmProblem(m, n, k, qa.format, sb.format, _out_format(out_dtype))
    products, config = chosen_products("grouped", problem, count, kernel, config)
    result: jax.Array = products.matmul(qa, sb, jnp.asarray(sizes), config, problem.out_format)
    return result


def _check_sizes(sizes: Any, count: int, m: int) -> None:
    """Raises ValueError for sizes that do not fit; their values are seen where they are on the host."""
    if not hasattr(sizes, "shape") or not hasattr(sizes, "dtype"):
        wanted = "pass an array, jnp.array(sizes, jnp.int32)"
        raise ValueError(f"gemm_grouped: sizes is a {type(sizes).__name__}, not int32({count},); {wanted}")
    if tuple(sizes.shape) != (count,) or sizes.dtype != jnp.int32:
        raise ValueError(f"gemm_grouped: sizes is {sizes.dtype}{tuple(sizes.shape)}, not int32({count},) as b has it")
    if isinstance(sizes, np.ndarray) and (sizes.min() < 0 or sizes.sum() > m):
        listed = f"from {sizes.min()}, {sizes.sum()} in all"
        raise ValueError(f"gemm_grouped: sizes are {listed}, where none may be negative and a has {m} rows")


def _fitting(epilogue: Any) -> Epilogue:
    """The epilogue, made anew and so checked: JAX transformations rebuild it without looking."""
    if not isinstance(epilogue, Epilogue):
        raise ValueError(f"gemm: epilogue is {epilogue!r}, not a narrowgemm.Epilogue(...) or None")
    return replace(epilogue)


def chosen_products(
    many: Many, problem: GemmProblem, count: int, kernel: str | None, config: Any = None
) -> tuple[Products, Any]:
    """How these products are done, and the config: the one given, or the first candidate that the kernel admits.

    problem: one product of a batch, or all rows of groups with one B. Raises as `gemm` does.
    """
    chosen = _default_kernel(problem, many=many) if kernel is None else kernel_named(kernel)
    products = products_of(chosen.name, many)
    if products is None:
        remedy = f"use one of {', '.join(kernels_of_many(many))}"
        raise UnsupportedError(chosen.name, {"products": many}, "is not what it does in one launch", remedy)
    check_formats(chosen, problem)
    check_device(chosen)
    if config is None:
        config = next(iter(products.candidates(problem, count)), None)
    elif not isinstance(config, chosen.config_type):
        raise ValueError(f"{chosen.name}: config {config!r} is not a {chosen.config_type.__qualname__} of its module")
    if config is None:
        values: dict[str, object] = {"m": problem.m, "n": problem.n, "k": problem.k, "count": count}
        raise UnsupportedError(chosen.name, values, "is a shape that no config does", "pad the operands")
    products.check(problem, count, config)
    return products, config


def matmul_with(kernel: Kernel, epilogue: Epilogue | None) -> Callable[..., jax.Array]:
    """The kernel's `matmul`, with the epilogue in it. Raises UnsupportedError for a kernel that has none."""
    if epilogue is None:
        return kernel.matmul
    check_epilogue(kernel, epilogue.name)
    return partial(_with, kernel, epilogue)


def _with(kernel: Kernel, epilogue: Epilogue, a: Any, b: Any, config: Any, out_format: str) -> jax.Array:
    assert kernel.matmul_epilogue is not None
    result: jax.Array = kernel.matmul_epilogue(a, b, config, out_format, epilogue)
    return result


def check_epilogue(kernel: Kernel, name: str) -> None:
    """Raises UnsupportedError, naming those that can, for a kernel that has no epilogues."""
    if kernel.matmul_epilogue is None:
        able = [other for other in kernel_names() if kernel_named(other).matmul_epilogue is not None]
        rule, remedy = "is not what it can do to C", f"use one of {', '.join(able)}, or apply it to the result"
        raise UnsupportedError(kernel.name, {"epilogue": name}, rule, remedy)


def gemm_quantized(
    a: Operand,
    b: Operand,
    out_format: str,
    *,
    tensor_scale: jax.Array | None = None,
    kernel: str | None = None,
    config: Any = None,
) -> QuantizedArray:
    """The product as `gemm` computes it, quantised by the kernel to a format with block scales along n.

    out_format:   such as mxfp8_e4m3 or nvfp4.
    tensor_scale: for nvfp4 alone, its FP32 scale, which the kernel cannot find for itself: largest |C| / (448 · 6).
    kernel, config: as for `gemm`; None: this device's own kernel, and the kernel's first choice.

    The next product takes the result as its a. Traceable under jit. Raises as `gemm` does.
    """
    qa, qb = as_quantized(a, "a"), as_quantized(b, "b")
    problem = _problem(qa, qb, jnp.bfloat16)
    chosen = _default_kernel(problem) if kernel is None else kernel_named(kernel)
    check_formats(chosen, problem)
    check_device(chosen)
    if chosen.matmul_quantised is None:
        able = [name for name in kernel_names() if kernel_named(name).matmul_quantised is not None]
        rule = "is not what its epilogue can store"
        raise UnsupportedError(chosen.name, {"out_format": out_format}, rule, f"use one of {', '.join(able)}")
    out: QuantizedArray = chosen.matmul_quantised(qa, qb, config, out_format, tensor_scale)
    return out


def _problem(a: QuantizedArray, b: QuantizedArray | ShuffledWeights | FoldedWeights, out_dtype: Any) -> GemmProblem:
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"gemm: a has shape {a.shape} and b {b.shape}: their K, the second axis of each, differ")
    return GemmProblem(a.shape[0], b.shape[0], a.shape[1], a.format, b.format, _out_format(out_dtype))


def _out_format(out_dtype: Any) -> str:
    try:
        dtype = None if out_dtype is None else np.dtype(out_dtype)  # NumPy takes None for float64
    except TypeError:
        dtype = None
    if dtype not in _OUT_FORMAT_OF:
        known = ", ".join(map(str, _OUT_FORMAT_OF))
        raise ValueError(f"gemm: out_dtype {out_dtype if dtype is None else dtype} is not one of {known}")
    return _OUT_FORMAT_OF[dtype]


def as_given[Prepared: (ShuffledWeights, FoldedWeights)](
    operand: QuantizedArray | Prepared,
) -> jax.Array | QuantizedArray | Prepared:
    """What kernels take: a plain array where there is nothing beside the codes."""
    if not isinstance(operand, QuantizedArray):
        return operand
    plain = operand.scales is None and operand.tensor_scale is None and not operand.spec.is_packed
    return operand.codes if plain else operand


def _default_kernel(problem: GemmProblem, epilogue: Epilogue | None = None, many: Many | None = None) -> Kernel:
    """The first of the device's own for these formats that has the epilogue and does `many` products at once."""
    able_names = kernel_names() if many is None else kernels_of_many(many)
    arch = arch_of(default_device())
    for name in _DEFAULTS.get(arch, _PORTABLE):
        kernel = kernel_named(name)
        finishes = name in able_names and (epilogue is None or kernel.matmul_epilogue is not None)
        if finishes and accepts(kernel, problem) and (kernel.max_m is None or problem.m <= kernel.max_m):
            return kernel
    here = [kernel for kernel in map(kernel_named, able_names) if kernel.arch in ("any", arch)]
    if epilogue is not None:
        here = [kernel for kernel in here if kernel.matmul_epilogue is not None]
    able = ", ".join(kernel.name for kernel in here if accepts(kernel, problem)) or "none"
    values: dict[str, object] = {"a": problem.a_format, "b": problem.b_format, "out": problem.out_format}
    values |= {"device": arch} if epilogue is None else {"device": arch, "epilogue": epilogue.name}
    raise UnsupportedError(
        "gemm",
        values,
        "have no default kernel",
        f"name one with kernel=; those of this device that take these formats: {able}; "
        f"all of this device{' with epilogues' if epilogue else ''}: {', '.join(kernel.name for kernel in here)}",
    )


def _check(kernel: Kernel, problem: GemmProblem, config: Any, epilogue: Epilogue | None) -> None:
    kernel.check(problem, config)
    if epilogue is not None and kernel.check_epilogue is not None:
        kernel.check_epilogue(problem, config, epilogue)


def chosen_config(kernel: Kernel, problem: GemmProblem, epilogue: Epilogue | None = None) -> tuple[Any, str | None]:
    """The config tuned for exactly this problem on the default device's model, and the SHA-256 of the table it is from.

    Where none is tuned, or that one has no room for the epilogue: the first candidate that the kernel admits, and None.
    Raises UnsupportedError where it admits none, and ValueError, naming file and field, for a table that cannot be read
    or does not fit the kernel.
    """
    device = slugged(default_device().device_kind)
    choices = table.lookup(kernel.name, problem, device)
    if choices is None:
        return first_admitted(kernel, problem, epilogue), None
    where = f"{table.path_of(kernel.name, device)}: config of {problem}"
    names = [field.name for field in fields(kernel.config_type)]
    for name in choices:
        if name not in names:
            raise ValueError(f"{where}: {unknown_name('field', name, names)}")
    try:
        config = kernel.config_type(**choices)
        kernel.check(problem, config)
    except (TypeError, ValueError, UnsupportedError) as error:
        raise ValueError(f"{where} is none that the kernel admits: {error}; tune it again") from error
    try:
        _check(kernel, problem, config, epilogue)
    except UnsupportedError:
        return first_admitted(kernel, problem, epilogue), None
    return config, table.table_sha256(kernel.name, device)


def first_admitted(kernel: Kernel, problem: GemmProblem, epilogue: Epilogue | None = None) -> Any:
    """The first candidate that the kernel admits with the epilogue. Raises UnsupportedError with the last refusal."""
    refusal = UnsupportedError(
        kernel.name,
        {"m": problem.m, "n": problem.n, "k": problem.k},
        "is a shape that no config of this kernel does",
        "use another kernel or pad the operands",
    )
    for config in kernel.candidates(problem):
        try:
            _check(kernel, problem, config, epilogue)
        except UnsupportedError as error:
            refusal = error
        else:
            return config
    raise refusal
