"""Whether a kernel is right, before it is timed: on fresh random operands, into an output full of NaN, against float64.

What this catches: a result that is wrong anywhere, because every element is compared and has a bound of its own;
elements that were never written, because they are still NaN; NaN and infinity where there should be numbers. What it
cannot catch: an unwritten element of a temporary that XLA cuts off or overwrites; a race that did not happen in this
run; an output that XLA computes somewhere else and copies, for which `poisoned` is false.
"""

import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from narrowbench.measure.operands import check_distribution, is_one_sided, originals, quantised
from narrowbench.store.rows import Accuracy
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm import epilogue as epilogues
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.hlo import HloSummary, summarize
from narrowgemm.gemm.oracle import as_float64, scales_of, tolerance
from narrowgemm.problem import GemmProblem

#: A right kernel's errors scatter by at most the tolerance; among 10^8 of them none lies further out than 6 of those.
_LARGEST_OVER_TOLERANCE = 8.0
#: Cases are prepared side by side: this keeps other launches out while one is tried.
_ALONE = threading.Lock()
_GUESSES = 3
#: Elements of C that are compared at once: their float64 and those of a few temporaries are half a gigabyte each.
_CHUNK_ELEMENTS = 2**26


class WrongResultError(Exception):
    """The kernel ran and its result is wrong; the text says how, and is the reason of a `failed` row."""


@dataclass(frozen=True)
class Checked:
    """A kernel that passed: its errors, what the compiler made of it, and the host's time of one launch."""

    accuracy: Accuracy
    hlo: HloSummary
    compile_s: float
    launch_s: float


@dataclass
class _Sums:
    """Of the elements compared so far: sums of squares, largest error, and the largest over its element's bound.

    `product_square` is of the scaled product that an epilogue begins with.
    """

    error_square: float = 0.0
    exact_square: float = 0.0
    product_square: float = 0.0
    format_square: float = 0.0
    original_square: float = 0.0
    largest: float = 0.0
    largest_relative: float = 0.0
    not_finite: int = 0

    def add(self, part: dict[str, Any]) -> None:
        names = ("error_square", "exact_square", "product_square", "format_square", "original_square", "not_finite")
        for name in names:
            setattr(self, name, getattr(self, name) + part[name].item())
        self.largest = max(self.largest, part["largest"].item())
        self.largest_relative = max(self.largest_relative, part["largest_relative"].item())


def check(
    launch: Callable[..., Any],
    problem: GemmProblem,
    distribution: str,
    seed: int,
    prepared: Callable[[Any], Any] = lambda b: b,
    epilogue: Epilogue | None = None,
) -> Checked:
    """Run `launch(a, prepared(b))` once on operands of `distribution` and compare all of C.

    Constant data would hide mistakes: normal ones stand in for them. `prepared` is what is done to b off-line. An
    epilogue is the third argument of `launch`, and done to the float64 results too.
    Raises WrongResultError where the result is wrong, and whatever `launch` raises.
    """
    drawn = draw(problem, distribution, seed)
    a, b = drawn.quantised
    return check_on(launch, problem, drawn, (a, prepared(b), *(() if epilogue is None else (epilogue,))), epilogue)


def check_on(
    launch: Callable[..., Any],
    problem: GemmProblem,
    drawn: "Drawn",
    operands: tuple[Any, ...],
    epilogue: Epilogue | None = None,
) -> Checked:
    """As `check`, on operands that are drawn already; `launch` takes them as `operands`. Raises as `check`."""
    run = _Poisoned(launch, problem, *operands)
    accuracy = judged(problem, drawn, run, epilogue)
    with _ALONE:
        launch_s = min(run.timed_s() for _ in range(_GUESSES))
    bits = max(format_named(name).element.bits for name in (problem.a_format, problem.b_format))
    return Checked(accuracy, summarize(run.hlo_text, bits), run.compile_s, launch_s)


@dataclass(frozen=True)
class Part:
    """Some rows of C, and what they are the product of: A's rows and B, quantised and as drawn, f32."""

    rows: slice
    out: jax.Array
    quantised: tuple[QuantizedArray, QuantizedArray]
    originals: tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Drawn:
    """Operands to check a result on: A and B as drawn, f32, and quantised; `distribution` is what they are of."""

    distribution: str
    originals: tuple[jax.Array, jax.Array]
    quantised: tuple[QuantizedArray, QuantizedArray]

    def parts(self, out: jax.Array, most_rows: int) -> Iterator[Part]:
        """All of C, so many rows at a time."""
        (qa, qb), (a, b) = self.quantised, self.originals
        for first in range(0, out.shape[0], most_rows):
            rows = slice(first, min(first + most_rows, out.shape[0]))
            yield Part(rows, out[rows], (_rows_of(qa, rows), qb), (a[rows], b))


def draw(problem: GemmProblem, distribution: str, seed: int) -> Drawn:
    """Fresh operands of `distribution`, or of the normal one where constant data would hide mistakes."""
    distribution = check_distribution(distribution)
    a, b = originals(problem, distribution, seed, "check", 0)
    return Drawn(distribution, (a, b), quantised(problem, a, b))


def judged(
    problem: GemmProblem,
    drawn: Drawn,
    run: Callable[[float], tuple[jax.Array, bool]],
    epilogue: Epilogue | None = None,
) -> Accuracy:
    """Compare all of C with float64. `run` multiplies into an output full of the value that it is given.

    It returns that output, and whether it lies where the value was. Raises WrongResultError where the result is wrong.
    """
    with _ALONE:
        out, is_poisoned = run(math.nan)
    sums = _compared(problem, out, drawn, epilogue)
    if sums.not_finite:
        raise WrongResultError(_not_finite(out, run(0.0)[0], sums.not_finite))
    share = None if epilogue is None or not sums.exact_square else math.sqrt(sums.product_square / sums.exact_square)
    allowed = tolerance(problem, 1.0 if is_one_sided(drawn.distribution) else None, share)
    accuracy = _accuracy(problem, sums, allowed, is_poisoned)
    _judge(accuracy, sums)
    return accuracy


class _Poisoned:
    """Runs a launch whose output takes the place of an array that it is given, full of one value.

    The array is donated, so that XLA puts the output there; whether it did is told from the addresses. What the
    launch needs beside is NaN too, if the allocator hands out the memory that was freed last.
    """

    def __init__(self, launch: Callable[..., Any], problem: GemmProblem, *operands: Any) -> None:
        self._operands = operands
        self._shape = (problem.m, problem.n)
        self._dtype = format_named(problem.out_format).element.dtype
        function = jax.jit(lambda _, *operands: launch(*operands), donate_argnums=0, keep_unused=True)
        started_s = time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            self._compiled = function.lower(jax.ShapeDtypeStruct(self._shape, self._dtype), *operands).compile()
        self.compile_s = time.perf_counter() - started_s
        self.hlo_text = self._compiled.as_text() or ""

    def timed_s(self) -> float:
        """The host's time of one launch that it waits for: a first guess, its dispatch included."""
        poison = jax.block_until_ready(jnp.zeros(self._shape, self._dtype))
        started_s = time.perf_counter()
        jax.block_until_ready(self._compiled(poison, *self._operands))
        return time.perf_counter() - started_s

    def __call__(self, value: float) -> tuple[jax.Array, bool]:
        """The output, and whether it lies where the poison was."""
        poison = jnp.full(self._shape, value, self._dtype)
        self._poison_temporaries()
        address = jax.block_until_ready(poison).unsafe_buffer_pointer()
        out = jax.block_until_ready(self._compiled(poison, *self._operands))
        if out.shape != self._shape or out.dtype != self._dtype:
            raise WrongResultError(f"the result is {out.dtype}{out.shape}, not {self._dtype}{self._shape}")
        return out, out.unsafe_buffer_pointer() == address

    def _poison_temporaries(self) -> None:
        analysis = self._compiled.memory_analysis()
        size = analysis.temp_size_in_bytes if analysis is not None else 0
        if size:
            jax.block_until_ready(jnp.full(size, 0xFF, jnp.uint8)).delete()


def _compared(problem: GemmProblem, out: jax.Array, drawn: Drawn, epilogue: Epilogue | None) -> _Sums:
    """All of C against float64 of the quantised operands, and that against float64 of the originals, rows at a time."""
    sums = _Sums()
    most_rows = max(1, _CHUNK_ELEMENTS // problem.n)
    if jax.devices()[0].platform == "tpu":  # which has no float64
        host = jax.devices("cpu")[0]
        quantised, originals, out, epilogue = jax.device_put((drawn.quantised, drawn.originals, out, epilogue), host)
        drawn = replace(drawn, quantised=quantised, originals=originals)
    with jax.enable_x64(True):
        for part in drawn.parts(out, most_rows):
            finish = epilogue and epilogues.rows_of(epilogue, part.rows)
            sums.add(_compared_rows(part.out, *part.quantised, *part.originals, finish))
    return sums


@jax.jit
def _compared_rows(
    out: jax.Array, qa: QuantizedArray, qb: QuantizedArray, a: jax.Array, b: jax.Array, epilogue: Epilogue | None
) -> dict[str, jax.Array]:
    """Sums over some rows of C. An element's bound is its own size and the root of the sum of its squared products."""
    left, right = as_float64(qa), as_float64(qb)
    exact = product = left @ right.T
    original = a.astype(jnp.float64) @ b.astype(jnp.float64).T
    scatter = jnp.sqrt((left**2).astype(jnp.float32) @ (right**2).astype(jnp.float32).T)
    if epilogue is not None:
        row_scales, column_scales = scales_of(epilogue)
        scatter, product = (x * row_scales * column_scales for x in (scatter, exact))
        exact, original = epilogues.apply(exact, epilogue), epilogues.apply(original, epilogue)
    if out.dtype.itemsize == 1:
        largest = float(jnp.finfo(out.dtype).max)
        expected = jnp.clip(exact, -largest, largest)
    else:
        expected = exact
    result = out.astype(jnp.float64)
    is_finite = jnp.isfinite(result)
    error = jnp.where(is_finite, jnp.abs(result - expected), 0.0)
    bound = jnp.abs(expected) + scatter
    return {
        "error_square": jnp.sum(error**2),
        "exact_square": jnp.sum(expected**2),
        "product_square": jnp.sum(product**2),
        "format_square": jnp.sum((exact - original) ** 2),
        "original_square": jnp.sum(original**2),
        "largest": jnp.max(error),
        "largest_relative": jnp.max(jnp.where(bound > 0, error / jnp.where(bound > 0, bound, 1.0), error)),
        "not_finite": jnp.sum(~is_finite),
    }


def _rows_of(operand: QuantizedArray, rows: slice) -> QuantizedArray:
    scales = None if operand.scales is None else operand.scales[rows]
    codes = operand.codes[rows]
    return QuantizedArray(codes, scales, operand.tensor_scale, operand.format, (codes.shape[0], operand.shape[1]))


def _accuracy(problem: GemmProblem, sums: _Sums, allowed: float, is_poisoned: bool) -> Accuracy:
    rms = math.sqrt(sums.exact_square / (problem.m * problem.n))
    return Accuracy(
        kernel_error=math.sqrt(sums.error_square / sums.exact_square) if sums.error_square else 0.0,
        kernel_error_max=sums.largest / rms if sums.largest else 0.0,
        tolerance=allowed,
        format_error=math.sqrt(sums.format_square / sums.original_square) if sums.format_square else 0.0,
        checked_rows=problem.m,
        poisoned=is_poisoned,
    )


def _judge(accuracy: Accuracy, sums: _Sums) -> None:
    if accuracy.kernel_error > accuracy.tolerance:
        raise WrongResultError(
            f"relative error {accuracy.kernel_error:.3g} against float64 is above the tolerance of "
            f"{accuracy.tolerance:.3g}"
        )
    if sums.largest_relative > _LARGEST_OVER_TOLERANCE * accuracy.tolerance:
        raise WrongResultError(
            f"an element is off by {sums.largest_relative:.3g} of its scale, over {_LARGEST_OVER_TOLERANCE:g} times "
            f"the tolerance of {accuracy.tolerance:.3g}, while the whole is within it: some of C is wrong"
        )


def _not_finite(over_nan: jax.Array, over_zero: jax.Array, count: int) -> str:
    """Says which elements the kernel made NaN or infinite itself, and which it left as they were."""
    bad = ~np.isfinite(np.asarray(over_nan).astype(np.float32))
    still_bad = bad & ~np.isfinite(np.asarray(over_zero).astype(np.float32))
    computed, unwritten = int(still_bad.sum()), int(bad.sum() - still_bad.sum())
    row, column = (int(index) for index in np.argwhere(bad)[0])
    told = [f"{computed} came out NaN or infinite"] if computed else []
    told += [f"{unwritten} were left unwritten"] if unwritten else []
    return (
        f"{count} of {bad.size} elements are not finite: {' and '.join(told)}, the first at row {row}, column {column}"
    )
