"""A baseline of another library made ready to be timed, as `narrowbench.measure.gemm` does for kernels of this project.

Its operands, oracle, poisoned output and timer are those of every kernel. What differs is who launches: Python, one
launch at a time, where XLA goes through a compiled program. Device time has no part of that; a wall clock over short
launches does, which its row says.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from narrowbench.config import TuningSettings
from narrowbench.measure.accuracy import Drawn, WrongResultError, draw, judged
from narrowbench.measure.bench import Bench
from narrowbench.measure.gemm import Prepared, sizes_of, told_toggles
from narrowbench.measure.launches import RESULT_BYTES, calls_of
from narrowbench.measure.named import baseline_named
from narrowbench.measure.operands import operand_sets
from narrowbench.measure.sampling import short_time_s
from narrowbench.measure.timing import Timer, TrainPlan, Workload
from narrowbench.measure.vendor.baseline import Baseline, Library, Way
from narrowbench.measure.vendor.marks import CudaMarks, Marks
from narrowbench.store.rows import Accuracy, Compiled, GemmCase
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.gemm.device import arch_of, default_device
from narrowgemm.gemm.registry import kernels_of_many
from narrowgemm.problem import NO_EPILOGUE, GemmProblem

#: Calls of single launches in flight while ways are timed.
_IN_FLIGHT = 32


@dataclass(frozen=True)
class Queue:
    """Sets of operands bound to a library, to be launched on in turn. `kept` is the memory that they lie in."""

    bound: Sequence[Any]
    kept: Any
    set_bytes: int
    marks: Marks

    def workload(self, way: Way, launches_per_call: int = 1, calls_in_flight: int = _IN_FLIGHT) -> Workload:
        """Calls of one way's launches."""

        def enqueue(call: int) -> Any:
            self.marks.enter()
            for launch in range(call * launches_per_call, (call + 1) * launches_per_call):
                way.launch(self.bound[launch % len(self.bound)])
            return self.marks.mark()

        count = len(self.bound)
        return Workload(enqueue, self.marks.wait, launches_per_call, calls_in_flight, count, count * self.set_bytes)


def prepare_baseline(case: GemmCase, bench: Bench) -> Prepared:
    """The case, of a baseline of another library, on the bench's device, done in the fastest way that is right.

    Raises UnsupportedError for what library or device cannot do, or is not installed, and WrongResultError where the
    fastest ways all fail the oracle.
    """
    started_s = time.perf_counter()
    baseline, problem = baseline_named(case.kernel), case.problem
    if case.many is not None:
        remedy = f"use one of {', '.join(kernels_of_many(case.many))}"
        raise UnsupportedError(case.kernel, {"products": case.many}, "is not what it does in one launch", remedy)
    admit(baseline, problem, case.epilogue)
    sizes = sizes_of(problem, case.cache, bench)
    baseline.check(problem)
    baseline.load()
    marks = open_marks()
    library = baseline.open(problem)
    sets = operand_sets(problem, case.distribution, case.seed, sizes.sets)
    outs = [_filled(problem, 0.0) for _ in range(max(1, min(sizes.sets, RESULT_BYTES // sizes.result_bytes)))]
    bound = [library.bound(a, b, outs[index % len(outs)]) for index, (a, b) in enumerate(sets)]
    queue = Queue(bound, (sets, outs), sizes.set_bytes, marks)
    try:
        ways = library.ways(bound[0])
        found = fastest(ways, queue, bench.timer, bench.protocol.tuning)
        way, launch_s, accuracy = _first_right(
            found, library, problem, draw(problem, case.distribution, case.seed), marks
        )
        workload = queue.workload(way, *calls_of(launch_s))
        kernels = bench.timer.train(workload, TrainPlan(0.0, 1, 1), lambda: None).kernels
    finally:
        bench.timer.close()
    toggles, drawn_toggles = told_toggles(case)
    return Prepared(
        workload=workload,
        accuracy=accuracy,
        compiled=Compiled(
            hlo_calls=list(dict.fromkeys(map(plain_name, kernels))),
            upcast=None,
            compile_s=time.perf_counter() - started_s,
            target=str(getattr(default_device(), "compute_capability", None) or default_device().device_kind),
        ),
        config=way.config | {"ways_timed": len(ways)},
        tuned_table_sha256=None,
        toggles=toggles,
        drawn_toggles=drawn_toggles,
    )


def admit(baseline: Baseline, problem: GemmProblem, epilogue: str) -> None:
    """Raises UnsupportedError for a device, formats or an epilogue that the baseline is not for."""
    arch = arch_of(default_device())
    if arch not in baseline.arches:
        values: dict[str, object] = {"device": default_device().device_kind, "arch": arch}
        rule = f"is not what it runs on, {' or '.join(baseline.arches)}"
        raise UnsupportedError(baseline.name, values, rule, "use another baseline")
    operand = baseline.operand_format
    if (problem.a_format, problem.b_format) != (operand, operand) or problem.out_format not in baseline.out_formats:
        values = {"a_format": problem.a_format, "b_format": problem.b_format, "out_format": problem.out_format}
        remedy = f"use a and b in {operand} and out in {', '.join(baseline.out_formats)}, or another baseline"
        raise UnsupportedError(baseline.name, values, "are not all among its formats", remedy)
    if epilogue != NO_EPILOGUE:
        remedy = "use one of XLA's baselines"
        raise UnsupportedError(baseline.name, {"epilogue": epilogue}, "is not what it is asked to do to C", remedy)


def open_marks() -> Marks:
    """Marks on the device that JAX runs on."""
    return CudaMarks(default_device().local_hardware_id)


def fastest(ways: Sequence[Way], queue: Queue, timer: Timer, settings: TuningSettings) -> list[tuple[Way, float]]:
    """The few fastest ways, fastest first, with seconds of a launch: all in one short train, the best again in several.

    A way that a library offers and then cannot do is left out. Raises RuntimeError, with the first fault, where that
    is all of them.
    """
    faults: list[Exception] = []
    count = len(ways)
    if count > 1:
        quick = settings.model_copy(update={"trains": 1, "idle_s": 0.0})
        ways = [way for way, _ in _timed(ways, queue, timer, quick, faults)[: settings.finalists]]
    times = _timed(ways, queue, timer, settings, faults)
    if not times:
        raise RuntimeError(f"none of {count} ways ran; the first: {faults[0]}") from faults[0]
    return times


def _timed(
    ways: Sequence[Way], queue: Queue, timer: Timer, settings: TuningSettings, faults: list[Exception]
) -> list[tuple[Way, float]]:
    times: list[tuple[Way, float]] = []
    for way in ways:
        try:
            times.append((way, short_time_s(queue.workload(way), timer, settings)))
        except Exception as error:
            faults.append(error)
    return sorted(times, key=lambda timed: timed[1])


def _first_right(
    found: Sequence[tuple[Way, float]], library: Library, problem: GemmProblem, drawn: Drawn, marks: Marks
) -> tuple[Way, float, Accuracy]:
    """The fastest way that passes the oracle. Raises WrongResultError, the fastest one's, where none does."""
    wrong: list[WrongResultError] = []
    for way, launch_s in found:
        try:
            return way, launch_s, judged(problem, drawn, _poisoned(way, library, problem, drawn, marks))
        except WrongResultError as error:
            wrong.append(error)
    raise wrong[0]


def _poisoned(
    way: Way, library: Library, problem: GemmProblem, drawn: Drawn, marks: Marks
) -> Callable[[float], tuple[jax.Array, bool]]:
    """One launch into an output full of a value. The library writes where that value is: it knows no other place."""

    def run(value: float) -> tuple[jax.Array, bool]:
        out = _filled(problem, value)
        bound = library.bound(*drawn.quantised, out)
        marks.enter()
        way.launch(bound)
        marks.wait(marks.mark())
        return out, True

    return run


def _filled(problem: GemmProblem, value: float) -> jax.Array:
    dtype = format_named(problem.out_format).element.dtype
    filled: jax.Array = jax.block_until_ready(jnp.full((problem.m, problem.n), value, dtype))
    return filled


def plain_name(kernel: str) -> str:
    """A kernel's name without what a C++ compiler puts around it: the last part of a mangled nested name."""
    mangled = re.match(r"_ZN?K?", kernel)
    rest, last = kernel[mangled.end() :] if mangled else "", ""
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        last, rest = rest[length.end() : end], rest[end:]
    return last or kernel
