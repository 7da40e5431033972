"""Many products in one launch made ready to be timed: a batch, or groups of rows of one A, each with its own B."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from narrowbench.measure.accuracy import Checked, Drawn, Part, check_on
from narrowbench.measure.bench import Bench
from narrowbench.measure.gemm import Prepared, Sizes, ready
from narrowbench.measure.launches import rotation_sets
from narrowbench.measure.operands import DISTRIBUTIONS, Purpose, check_distribution, drawn_as, key_of
from narrowbench.store.groups import Groups
from narrowbench.store.rows import GemmCase
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray, quantize
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.stack import as_stack
from narrowgemm.gemm.api import chosen_products
from narrowgemm.gemm.registry import Products
from narrowgemm.problem import NO_EPILOGUE, GemmProblem

#: Rows of C of one group that are compared at once, at most: each number of them is a program of its own.
_MOST_COMPARED = 1024


def prepare_many(case: GemmCase, bench: Bench) -> Prepared:
    """The case, which has groups, on the bench's device.

    No table is tuned for such products: the kernel's first choice is measured. Raises UnsupportedError for what kernel
    or device cannot do, WrongResultError for a kernel that fails the oracle.
    """
    assert case.groups is not None
    problem, groups = case.problem, case.groups
    launch, config = chosen_launch(case)
    sizes = _sizes_of(case, bench)
    same = (case.kernel, problem, groups, config, check_distribution(case.distribution), case.seed)
    if same not in bench.passed:
        bench.passed[same] = check_many(launch, case, case.distribution, case.seed)
    checked = bench.passed[same]
    sets = [_operands(problem, groups, case.distribution, case.seed, number) for number in range(sizes.sets)]
    return ready(launch, sets, sizes, checked, config, bench)


def chosen_launch(case: GemmCase) -> tuple[Callable[..., jax.Array], Any]:
    """The case's products as a function of A, B and the sizes of groups, and the kernel's first choice of a config.

    Raises UnsupportedError for what kernel or device cannot do.
    """
    assert case.groups is not None
    _admit(case)
    problem, groups = case.problem, case.groups
    one = replace(problem, m=problem.m // groups.count) if groups.kind == "batched" else problem
    products, config = chosen_products(groups.many, one, groups.count, case.kernel)
    return _launch_of(products, config, problem), config


def check_many(launch: Callable[..., jax.Array], case: GemmCase, distribution: str, seed: int) -> Checked:
    """As `accuracy.check`, of every group with its own B. Raises WrongResultError where the result is wrong."""
    assert case.groups is not None
    drawn = drawn_groups(case.problem, case.groups, distribution, seed)
    return check_on(launch, case.problem, drawn, drawn.operands)


def _admit(case: GemmCase) -> None:
    if case.epilogue != NO_EPILOGUE:
        rule, remedy = "is nothing that many products in one launch have", "leave it away"
        raise UnsupportedError(case.kernel, {"epilogue": case.epilogue}, rule, remedy)
    if drawn_as(case.distribution) != case.distribution:
        rule, remedy = "is an order of one product's operands", "use the distribution that it orders"
        raise UnsupportedError(case.kernel, {"distribution": case.distribution}, rule, remedy)


def _sizes_of(case: GemmCase, bench: Bench) -> Sizes:
    """Sizes of the case: a set has the B of every group, of those without rows too."""
    assert case.groups is not None
    a, b, out = (format_named(name) for name in (case.a_format, case.b_format, case.out_format))
    set_bytes = a.storage_bytes(case.m, case.k) + case.groups.count * b.storage_bytes(case.n, case.k)
    count = rotation_sets(set_bytes, bench.device.cache_bytes, bench.protocol.rotation_l2_multiple, case.cache)
    return Sizes(count, set_bytes, out.code_bytes(case.m, case.n))


def _launch_of(products: Products, config: Any, problem: GemmProblem) -> Callable[..., jax.Array]:
    """The products as a function of A and B, and of the sizes of groups, to C (m, n): a batch's one below the other."""

    def launch(a: QuantizedArray, b: QuantizedArray, *sizes: jax.Array) -> jax.Array:
        rows = a if sizes else as_stack("a", a)
        result: jax.Array = products.matmul(rows, as_stack("b", b), *sizes, config, problem.out_format)
        return result.reshape(problem.m, problem.n)

    return launch


@dataclass(frozen=True)
class DrawnGroups(Drawn):
    """Operands of many products: stacks, but for the one A of groups of rows; `sizes` are the rows of each."""

    sizes: tuple[int, ...]
    is_batch: bool

    @property
    def operands(self) -> tuple[Any, ...]:
        """What a launch takes."""
        return self.quantised if self.is_batch else (*self.quantised, jnp.asarray(self.sizes, jnp.int32))

    def parts(self, out: jax.Array, most_rows: int) -> Iterator[Part]:
        """Each group's rows of C with its own B, so many at a time, zeros below the last: right wherever C is."""
        length = min(most_rows, _MOST_COMPARED, 1 << (max(self.sizes) - 1).bit_length())
        (qa, qb), (a, b) = self.quantised, self.originals
        start = 0
        for group, size in enumerate(self.sizes):
            own = start if self.is_batch else 0  # where rows of this A begin in C
            its_qa, its_a = (_member(qa, group), a[group]) if self.is_batch else (qa, a)
            for first in range(start, start + size, length):
                window = partial(_window, length=length)
                stop = min(first + length, start + size)
                codes = window(its_qa.codes, first - own, stop - own)
                rows = replace(its_qa, codes=codes, shape=(length, its_qa.shape[1]))
                yield Part(
                    slice(first, stop),
                    window(out, first, stop),
                    (rows, _member(qb, group)),
                    (window(its_a, first - own, stop - own), b[group]),
                )
            start += size


def drawn_groups(problem: GemmProblem, groups: Groups, distribution: str, seed: int) -> DrawnGroups:
    """Fresh operands to check on, of the sizes that are timed; normal ones where constant data would hide mistakes."""
    distribution = check_distribution(distribution)
    a_key, b_key = jax.random.split(key_of(seed, "check", 0))
    is_batch = groups.kind == "batched"
    count = groups.count if is_batch else None
    a = _originals(a_key, count, problem.m // (count or 1), problem.k, distribution)
    b = _originals(b_key, groups.count, problem.n, problem.k, distribution)
    quantised = _quantised(a, problem.a_format), _quantised(b, problem.b_format)
    return DrawnGroups(distribution, (a, b), quantised, groups.sizes(problem.m, seed), is_batch)


def _operands(problem: GemmProblem, groups: Groups, distribution: str, seed: int, number: int) -> tuple[Any, ...]:
    """Set `number` for timing, as `_launch_of` takes it."""
    purpose: Purpose = "timing"
    a_key, b_key = jax.random.split(key_of(seed, purpose, number))
    b = _quantised_draw(b_key, groups.count, problem.n, problem.k, distribution, problem.b_format)
    if groups.kind == "batched":
        rows = problem.m // groups.count
        return _quantised_draw(a_key, groups.count, rows, problem.k, distribution, problem.a_format), b
    a = _quantised_draw(a_key, None, problem.m, problem.k, distribution, problem.a_format)
    return a, b, jnp.asarray(groups.sizes(problem.m, seed), jnp.int32)


def _values(key: jax.Array, rows: int, k: int, distribution: str) -> jax.Array:
    return DISTRIBUTIONS[distribution](key, (rows, k)).astype(jnp.float32)


@partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _originals(key: jax.Array, count: int | None, rows: int, k: int, distribution: str) -> jax.Array:
    """Values (rows, k), or a stack of `count` of them, each by a key of its own."""
    draw = partial(_values, rows=rows, k=k, distribution=distribution)
    values: jax.Array = draw(key) if count is None else lax.map(draw, jax.random.split(key, count))
    return values


@partial(jax.jit, static_argnums=1)
def _quantised(values: jax.Array, format_name: str) -> QuantizedArray:
    one = partial(quantize, format=format_name)
    found: QuantizedArray = one(values) if values.ndim == 2 else lax.map(one, values)
    return found


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _quantised_draw(
    key: jax.Array, count: int | None, rows: int, k: int, distribution: str, format_name: str
) -> QuantizedArray:
    """One operand after the other, so that the FP32 values of one alone take memory."""

    def draw(its_key: jax.Array) -> QuantizedArray:
        return quantize(_values(its_key, rows, k, distribution), format_name)

    found: QuantizedArray = draw(key) if count is None else lax.map(draw, jax.random.split(key, count))
    return found


def _member(stack: QuantizedArray, index: int) -> QuantizedArray:
    scale = None if stack.tensor_scale is None else stack.tensor_scale[index]
    return replace(stack, codes=stack.codes[index], tensor_scale=scale)


@partial(jax.jit, static_argnames="length")
def _window(values: jax.Array, start: int, stop: int, length: int) -> jax.Array:
    """Rows `start` to `stop` of `values`, and zeros up to `length` rows."""
    rows = start + jnp.arange(length)
    taken = jnp.take(values, jnp.minimum(rows, stop - 1), axis=0)
    return jnp.where((rows < stop)[:, None], taken, jnp.zeros((), values.dtype))
