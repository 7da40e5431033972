"""Epilogues of a case, drawn on the device from its seed: what they are made of is small beside the operands."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from narrowbench.measure.operands import Purpose, key_of
from narrowgemm.gemm import epilogue as epilogues
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.problem import NO_EPILOGUE, GemmProblem

#: Keys of an epilogue's arrays follow those of so many sets of operands.
_AFTER_OPERANDS = 1_000_000
#: Puts results near 1 on 1/75 of E4M3's range, so that few of them saturate. No power of two: dividing has to round.
_OUT_SCALE = 0.013


def drawn(name: str, problem: GemmProblem, seed: int, purpose: Purpose, number: int) -> Epilogue | None:
    """Number `number` of the epilogues called `name`; None for none.

    Scales make a sum of K products of standard normal values about 1, where activations bend; bias and residual are
    standard normal.
    """
    if name == NO_EPILOGUE:
        return None
    made: Epilogue = _drawn(key_of(seed, purpose, _AFTER_OPERANDS + number), name, problem)
    return made


def bytes_of(name: str, problem: GemmProblem) -> int:
    """Bytes of the arrays of such an epilogue."""
    leaves = jax.tree.leaves(epilogues.shapes(problem, name))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


@partial(jax.jit, static_argnums=(1, 2))
def _drawn(key: jax.Array, name: str, problem: GemmProblem) -> Epilogue:
    shapes = epilogues.shapes(problem, name)
    keys = iter(jax.random.split(key, 4))
    both = shapes.row_scale is not None and shapes.column_scale is not None
    least = problem.k ** (-0.25 if both else -0.5)

    def scales(like: Any) -> jax.Array | None:
        key = next(keys)
        return None if like is None else least * jax.random.uniform(key, like.shape, minval=0.7, maxval=1.4)

    def normal(like: Any) -> jax.Array | None:
        key = next(keys)
        return None if like is None else jax.random.normal(key, like.shape).astype(like.dtype)

    return Epilogue(
        row_scale=scales(shapes.row_scale),
        column_scale=scales(shapes.column_scale),
        bias=normal(shapes.bias),
        activation=shapes.activation,
        residual=normal(shapes.residual),
        out_scale=None if shapes.out_scale is None else jnp.float32(_OUT_SCALE),
    )
