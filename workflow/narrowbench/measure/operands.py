"""Operands of a case, drawn on the device from a seed and then quantised to the case's formats."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from narrowbench.measure.orders import in_order
from narrowbench.measure.text import embedded_text
from narrowbench.models.toggles import ORDERED, BitToggles, lanes, toggles_of
from narrowgemm.errors import UnsupportedError, unknown_name
from narrowgemm.formats.quantize import QuantizedArray, quantize
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem

#: What a set of operands is for. Checks and timing never see the same numbers.
Purpose = Literal["timing", "check"]
_PURPOSES = {"timing": 0, "check": 1}

#: One element in so many of `normal_outliers` is this many times larger: activations of language models look like it.
_OUTLIER_EVERY, _OUTLIER_FACTOR = 1000, 64.0


def _normal_outliers(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    values, where = jax.random.split(key)
    is_outlier = jax.random.bernoulli(where, 1 / _OUTLIER_EVERY, shape)
    return jax.random.normal(values, shape) * jnp.where(is_outlier, _OUTLIER_FACTOR, 1.0)


def _heavy_tailed(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Student's t with 3 degrees of freedom: finite variance, no fourth moment. By its definition, from normals.

    `jax.random.t` draws by rejection, a thousand times slower on a CPU.
    """
    normals: jax.Array = jax.random.normal(key, (4, *shape))
    return normals[0] * jnp.sqrt(3 / jnp.sum(normals[1:] ** 2, axis=0))


def _text(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Passages of real text, one a row, as the vectors of their words one after the other."""
    vectors, words = embedded_text()
    rows, k = shape
    a_row = -(-k // vectors.shape[1])
    first = jax.random.randint(key, (), 0, len(words))
    places = (first + jnp.arange(rows * a_row)) % len(words)
    return jnp.asarray(vectors)[jnp.asarray(words)[places]].reshape(rows, -1)[:, :k]


#: Name -> how values are drawn, f32. Small integers are exact in every element format, down to E2M1.
DISTRIBUTIONS: dict[str, Callable[[jax.Array, tuple[int, int]], jax.Array]] = {
    "normal": lambda key, shape: jax.random.normal(key, shape),
    "uniform": lambda key, shape: jax.random.uniform(key, shape),
    "small_integers": lambda key, shape: jax.random.randint(key, shape, -4, 5).astype(jnp.float32),
    "zeros": lambda _, shape: jnp.zeros(shape),
    "ones": lambda _, shape: jnp.ones(shape),
    "normal_outliers": _normal_outliers,
    "heavy_tailed": _heavy_tailed,
    "text": _text,
}

#: Every name that a case may give its data: those that are drawn, and those that are drawn and then ordered.
NAMES = (*DISTRIBUTIONS, *ORDERED)

#: Distributions that would hide unwritten outputs and wrong indices: kernels are checked on `normal` instead.
_CONSTANT = frozenset({"zeros", "ones"})


def check_distribution(distribution: str) -> str:
    """The distribution that a kernel is checked on before it is timed on `distribution`: of ordered data, as drawn."""
    base = drawn_as(distribution)
    return "normal" if base in _CONSTANT else base


def drawn_as(distribution: str) -> str:
    """The distribution that the values are drawn from, before they are ordered. Raises ValueError for no known one."""
    _known(distribution)
    return ORDERED[distribution].base if distribution in ORDERED else distribution


def is_one_sided(distribution: str) -> bool:
    """Whether all values have one sign, so that the rounding of long sums adds up instead of cancelling."""
    return distribution in ("uniform", "ones")


def originals(
    problem: GemmProblem, distribution: str, seed: int, purpose: Purpose, number: int
) -> tuple[jax.Array, jax.Array]:
    """Set `number` of A (m, k) and B (n, k), f32. Every seed, purpose and number gives other values."""
    _known(distribution)
    drawn: tuple[jax.Array, jax.Array] = _draw(key_of(seed, purpose, number), distribution, problem)
    return drawn


def quantised(problem: GemmProblem, a: jax.Array, b: jax.Array) -> tuple[QuantizedArray, QuantizedArray]:
    """A and B in the problem's formats. Raises UnsupportedError for a k that blocks of the format do not divide."""
    _check_blocks(problem)
    return quantize(a, problem.a_format), quantize(b, problem.b_format)


def operand_sets(
    problem: GemmProblem, distribution: str, seed: int, count: int
) -> list[tuple[QuantizedArray, QuantizedArray]]:
    """`count` different sets of quantised operands for timing. Raises as `quantised` does."""
    _known(distribution)
    _check_blocks(problem)
    return [_quantised_draw(key_of(seed, "timing", number), distribution, problem) for number in range(count)]


def toggles(problem: GemmProblem, operands: tuple[QuantizedArray, QuantizedArray]) -> tuple[BitToggles, BitToggles]:
    """Bits that change from code to code in A and in B, counted on the host."""
    a, b = (toggles_of(np.asarray(operand.codes), operand.format, problem.k, lanes(problem)) for operand in operands)
    return a, b


def operand_shapes(problem: GemmProblem) -> tuple[QuantizedArray, QuantizedArray]:
    """A set of operands without data: `jax.ShapeDtypeStruct`s in place of arrays. Raises as `quantised` does."""
    _check_blocks(problem)
    shapes: tuple[QuantizedArray, QuantizedArray] = jax.eval_shape(
        lambda key: _quantised_draw(key, "normal", problem), jax.random.key(0)
    )
    return shapes


def _known(distribution: str) -> None:
    if distribution not in NAMES:
        raise ValueError(unknown_name("distribution", distribution, NAMES))


def _check_blocks(problem: GemmProblem) -> None:
    for name in (problem.a_format, problem.b_format):
        spec = format_named(name)
        block = spec.block
        if block is not None and problem.k % block and not spec.is_ragged:
            raise UnsupportedError(
                name,
                {"k": problem.k},
                f"is no multiple of the format's block of {block}",
                f"pad k to {-(-problem.k // block) * block}",
            )


def key_of(seed: int, purpose: Purpose, number: int) -> jax.Array:
    """Key of one set; another for every seed, purpose and number."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _PURPOSES[purpose]), number)


@partial(jax.jit, static_argnums=(1, 2))
def _draw(key: jax.Array, distribution: str, problem: GemmProblem) -> tuple[jax.Array, jax.Array]:
    a_key, b_key = jax.random.split(key)
    draw = DISTRIBUTIONS[drawn_as(distribution)]
    a, b = draw(a_key, (problem.m, problem.k)), draw(b_key, (problem.n, problem.k))
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return in_order(a, b, ORDERED[distribution].order, lanes(problem)) if distribution in ORDERED else (a, b)


@partial(jax.jit, static_argnums=(1, 2))
def _quantised_draw(key: jax.Array, distribution: str, problem: GemmProblem) -> tuple[QuantizedArray, QuantizedArray]:
    """One call a set: hundreds of small sets would else take longer to make than to measure."""
    a, b = _draw(key, distribution, problem)
    return quantize(a, problem.a_format), quantize(b, problem.b_format)
