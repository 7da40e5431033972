"""A GEMM of this library made ready to be timed: admitted, checked against the oracle, its operands laid out."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import jax

from narrowbench.measure.accuracy import Checked, check
from narrowbench.measure.bench import Bench
from narrowbench.measure.epilogues import bytes_of, drawn
from narrowbench.measure.launches import rotation_sets, workload_of
from narrowbench.measure.operands import check_distribution, drawn_as, operand_sets
from narrowbench.measure.operands import toggles as counted_toggles
from narrowbench.measure.timing import Workload
from narrowbench.store.rows import Accuracy, Compiled, GemmCase, Toggles
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm.api import as_given, check_epilogue, chosen_config, matmul_with
from narrowgemm.gemm.device import check_device
from narrowgemm.gemm.epilogue import Epilogue
from narrowgemm.gemm.registry import Kernel, check_formats, kernel_named
from narrowgemm.problem import NO_EPILOGUE, GemmProblem


@dataclass(frozen=True)
class Prepared:
    """A case ready to be timed. Anything that makes one of these is measured like a kernel of this library.

    accuracy: of a GEMM, which has passed the oracle; None for a micro-benchmark that computes nothing.
    config:   choices of the kernel, as a row keeps them.
    tuned_table_sha256: of the table that the config is from; None for one that nobody tuned.
    toggles, drawn_toggles: of a sustained GEMM's operands, and of ordered ones as they were drawn.
    """

    workload: Workload
    accuracy: Accuracy | None
    compiled: Compiled | None
    config: dict[str, object] | None
    tuned_table_sha256: str | None
    toggles: Toggles | None = None
    drawn_toggles: Toggles | None = None


def prepare(case: GemmCase, bench: Bench) -> Prepared:
    """The case on the bench's device.

    Raises UnsupportedError for what kernel or device cannot do, WrongResultError for a kernel that fails the oracle.
    """
    kernel = kernel_named(case.kernel)
    problem = case.problem
    sizes = admitted(kernel, problem, case.cache, bench, case.epilogue)
    epilogue = drawn(case.epilogue, problem, case.seed, "check", 0)
    config, tuned_table_sha256 = chosen_config(kernel, problem, epilogue)
    launch = launch_of(kernel, config, problem.out_format)
    same = (case.kernel, problem, case.epilogue, config, check_distribution(case.distribution), case.seed)
    if same not in bench.passed:
        bench.passed[same] = check(launch, problem, case.distribution, case.seed, kernel.prepared, epilogue)
    checked = bench.passed[same]
    sets = prepared_sets(kernel, problem, case.distribution, case.seed, sizes.sets, case.epilogue)
    toggles, drawn_toggles = told_toggles(case)
    return replace(
        ready(launch, sets, sizes, checked, config, bench),
        tuned_table_sha256=tuned_table_sha256,
        toggles=toggles,
        drawn_toggles=drawn_toggles,
    )


def ready(
    launch: Callable[..., jax.Array],
    sets: Sequence[tuple[Any, ...]],
    sizes: "Sizes",
    checked: Checked,
    config: Any,
    bench: Bench,
) -> Prepared:
    """A launch that was checked, on its operand sets; its config is from no table."""
    return Prepared(
        workload=workload_of(
            launch, sets, sizes.set_bytes, sizes.result_bytes, bench.device.platform, checked.launch_s
        ),
        accuracy=checked.accuracy,
        compiled=compiled_of(checked),
        config=asdict(config),
        tuned_table_sha256=None,
    )


def told_toggles(case: GemmCase) -> tuple[Toggles | None, Toggles | None]:
    """Of a sustained case's operands, and of ordered ones as they were drawn; None for what a row does not tell."""
    if case.mode != "sustained":
        return None, None
    as_drawn = drawn_as(case.distribution)
    is_ordered = as_drawn != case.distribution
    return _toggles(case, case.distribution), _toggles(case, as_drawn) if is_ordered else None


def _toggles(case: GemmCase, distribution: str) -> Toggles:
    """Of the case's first set, drawn again: what the kernel was handed may be packed in its own way."""
    (first,) = operand_sets(case.problem, distribution, case.seed, 1)
    a, b = counted_toggles(case.problem, first)
    return Toggles(a_along_k=a.along_k, a_along_rows=a.along_rows, b_along_k=b.along_k, b_along_rows=b.along_rows)


def prepared_sets(
    kernel: Kernel, problem: GemmProblem, distribution: str, seed: int, count: int, epilogue: str = NO_EPILOGUE
) -> list[tuple[Any, ...]]:
    """`operand_sets` as `launch_of` takes them; what is done off-line is done here."""
    sets: list[tuple[Any, ...]] = [(a, kernel.prepared(b)) for a, b in operand_sets(problem, distribution, seed, count)]
    if epilogue == NO_EPILOGUE:
        return sets
    return [(*operands, drawn(epilogue, problem, seed, "timing", i)) for i, operands in enumerate(sets)]


@dataclass(frozen=True)
class Sizes:
    """How many operand sets a case goes through, and bytes of one set and of one result."""

    sets: int
    set_bytes: int
    result_bytes: int


def admitted(
    kernel: Kernel,
    problem: GemmProblem,
    cache: Literal["rotated", "warm"],
    bench: Bench,
    epilogue: str = NO_EPILOGUE,
) -> Sizes:
    """What a case needs. Raises UnsupportedError for formats, devices, epilogues and rotations that cannot be had."""
    check_formats(kernel, problem)
    check_device(kernel)
    if epilogue != NO_EPILOGUE:
        check_epilogue(kernel, epilogue)
    return sizes_of(problem, cache, bench, epilogue)


def sizes_of(
    problem: GemmProblem, cache: Literal["rotated", "warm"], bench: Bench, epilogue: str = NO_EPILOGUE
) -> Sizes:
    """Sizes of a problem with its epilogue. Raises UnsupportedError for a rotation that cannot be had."""
    a, b = format_named(problem.a_format), format_named(problem.b_format)
    set_bytes = a.storage_bytes(problem.m, problem.k) + b.storage_bytes(problem.n, problem.k)
    set_bytes += bytes_of(epilogue, problem)
    count = rotation_sets(set_bytes, bench.device.cache_bytes, bench.protocol.rotation_l2_multiple, cache)
    return Sizes(count, set_bytes, format_named(problem.out_format).code_bytes(problem.m, problem.n))


def compiled_of(checked: Checked) -> Compiled:
    """What the compiler made of a kernel that was checked, as a row keeps it."""
    device = jax.devices()[0]
    return Compiled(
        hlo_calls=list(checked.hlo.calls),
        upcast=checked.hlo.upcast,
        compile_s=checked.compile_s,
        target=str(getattr(device, "compute_capability", None) or device.device_kind),
    )


def launch_of(kernel: Kernel, config: Any, out_format: str) -> Callable[..., jax.Array]:
    """The kernel as a function of two operands, the second prepared, and of an epilogue where it is given one.

    A format that is nothing but its codes goes in as a plain array.
    """

    def launch(a: QuantizedArray, b: Any, epilogue: Epilogue | None = None) -> jax.Array:
        matmul = matmul_with(kernel, epilogue)
        result: jax.Array = matmul(as_given(a), as_given(b), config, out_format)
        return result

    return launch
