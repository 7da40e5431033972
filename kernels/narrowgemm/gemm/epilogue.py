"""What is done to a product before it is stored: scales, bias, activation, residual.

    y = act(acc · row_scale[:, None] · column_scale + bias) + residual

in FP32, where acc is the FP32 accumulator times the operands' tensor scales; y, divided by out_scale where it is stored
in FP8, is rounded once. GELU is the tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from narrowgemm.errors import unknown_name
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import ACTIVATIONS, NO_EPILOGUE, GemmProblem, epilogue_parts

_ARRAYS = ("row_scale", "column_scale", "bias", "residual", "out_scale")
_FP32 = (np.dtype(np.float32),)
_RESIDUALS = tuple(format_named(name).element.dtype for name in ("f32", "bf16", "f16"))


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class Epilogue:
    """y = act(acc · row_scale[:, None] · column_scale + bias) + residual, stored once; what is None is left out.

    row_scale:    (m,) FP32.
    column_scale: (n,) FP32.
    bias:         (n,) FP32.
    activation:   "relu", "gelu" (the tanh form) or "silu".
    residual:     (m, n) of f32, bf16 or f16.
    out_scale:    FP32 scalar, for a result in FP8 alone: codes of y / out_scale are stored, saturated, so that the
                  result is the `QuantizedArray` of the codes with this tensor scale.

    Raises ValueError for an unknown activation and for arrays of another dtype or number of axes; `check` for shapes.
    JAX transformations rebuild it unchecked, for its leaves need not be arrays.
    """

    row_scale: jax.Array | None = None
    column_scale: jax.Array | None = None
    bias: jax.Array | None = None
    activation: str | None = None
    residual: jax.Array | None = None
    out_scale: jax.Array | None = None

    def __post_init__(self) -> None:
        if self.activation is not None and self.activation not in ACTIVATIONS:
            raise ValueError(unknown_name("activation", self.activation, ACTIVATIONS))
        for name in _ARRAYS:
            value = getattr(self, name)
            if value is None:
                continue
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise ValueError(f"Epilogue: {name} is {value!r}, not an array or None")
            known = _RESIDUALS if name == "residual" else _FP32
            if np.dtype(value.dtype) not in known:
                raise ValueError(f"Epilogue: {name} has dtype {value.dtype}, not {' or '.join(map(str, known))}")

    @property
    def name(self) -> str:
        """What a benchmark calls it, such as scales_bias_gelu (`narrowgemm.problem.epilogue_parts`)."""
        has = {name: getattr(self, name) is not None for name in _ARRAYS}
        both = has["row_scale"] and has["column_scale"]
        parts = [
            *(["scales"] if both else []),
            *(["rowscale"] if has["row_scale"] and not both else []),
            *(["columnscale"] if has["column_scale"] and not both else []),
            *(["bias"] if has["bias"] else []),
            *([self.activation] if self.activation else []),
            *(["residual"] if has["residual"] else []),
            *(["outscale"] if has["out_scale"] else []),
        ]
        return "_".join(parts) or NO_EPILOGUE

    def check(self, problem: GemmProblem) -> None:
        """Raises ValueError, with both values, for a shape that is not the problem's and an out_scale without FP8."""
        shapes = {
            "row_scale": (problem.m,),
            "column_scale": (problem.n,),
            "bias": (problem.n,),
            "residual": (problem.m, problem.n),
            "out_scale": (),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"Epilogue: {name} has shape {tuple(value.shape)}, not {shape} as the product has it")
        if self.out_scale is not None and format_named(problem.out_format).element.bits != 8:
            raise ValueError(
                f"Epilogue: out_scale with a result in {problem.out_format}, which is not FP8; leave it out"
            )

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], str | None]:
        """Leaves with their names, and what is static."""
        return tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _ARRAYS), self.activation

    @classmethod
    def tree_unflatten(cls, activation: str | None, leaves: tuple[Any, ...]) -> "Epilogue":
        """The epilogue again, unchecked."""
        epilogue = object.__new__(cls)
        for name, value in zip((*_ARRAYS, "activation"), (*leaves, activation), strict=True):
            object.__setattr__(epilogue, name, value)
        return epilogue


def shapes(problem: GemmProblem, name: str) -> Epilogue:
    """The epilogue called `name` of the problem: `jax.ShapeDtypeStruct`s in place of arrays.

    A residual has the result's dtype, or BF16 beside a result in FP8. Raises ValueError for what is no epilogue's name.
    """
    parts = epilogue_parts(name)
    element = format_named(problem.out_format).element

    def array(wanted: tuple[str, ...], shape: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype) if set(wanted) & set(parts) else None

    return Epilogue(
        row_scale=array(("scales", "rowscale"), (problem.m,)),
        column_scale=array(("scales", "columnscale"), (problem.n,)),
        bias=array(("bias",), (problem.n,)),
        activation=next((part for part in parts if part in ACTIVATIONS), None),
        residual=array(("residual",), (problem.m, problem.n), jnp.bfloat16 if element.bits == 8 else element.dtype),
        out_scale=array(("outscale",), ()),
    )


_JAX_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": lambda x: jnp.maximum(x, 0),
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
}


def rows_of(epilogue: Epilogue, rows: slice) -> Epilogue:
    """The epilogue of these rows of a product."""
    row_scale, residual = (None if x is None else x[rows] for x in (epilogue.row_scale, epilogue.residual))
    return replace(epilogue, row_scale=row_scale, residual=residual)


def apply(product: jax.Array, epilogue: Epilogue) -> jax.Array:
    """What is to be stored, unrounded, in the dtype of `product` (m, n): the epilogue as JAX functions."""
    value = product
    if epilogue.row_scale is not None:
        value = value * epilogue.row_scale.astype(value.dtype)[:, None]
    if epilogue.column_scale is not None:
        value = value * epilogue.column_scale.astype(value.dtype)
    if epilogue.bias is not None:
        value = value + epilogue.bias.astype(value.dtype)
    if epilogue.activation is not None:
        value = _JAX_ACTIVATIONS[epilogue.activation](value)
    if epilogue.residual is not None:
        value = value + epilogue.residual.astype(value.dtype)
    if epilogue.out_scale is not None:
        value = value / epilogue.out_scale.astype(value.dtype)
    return value
