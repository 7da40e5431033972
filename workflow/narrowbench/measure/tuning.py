"""Tuning jobs: for each shape of a suite the fastest config of a kernel on this device, one row a shape.

A shape's candidates are compiled side by side. Then, with nothing else running, each is timed in a few short trains,
and the best few again in turn, as bursts. The fastest of those that passes the oracle is the row's config; the row
keeps every trial, because a quicker way to choose has to be judged against all of them.
"""

import hashlib
import json
import math
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from narrowbench.config import Protocol, single_shapes
from narrowbench.measure.accuracy import WrongResultError, check
from narrowbench.measure.ahead import Compilers, compilers, launch_shapes, wait_for
from narrowbench.measure.bench import Bench, open_bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.gemm import Prepared, admitted, compiled_of, launch_of, prepared_sets
from narrowbench.measure.launches import workload_of_compiled
from narrowbench.measure.recording import failure, row_of
from narrowbench.measure.runner import JobReport, Task, missing, run_tasks
from narrowbench.measure.sampling import Sampled, burst, short_time_s
from narrowbench.measure.timing import Train, Workload
from narrowbench.sources import sources_sha256
from narrowbench.store.rows import Row, StopRule, Trial, Tuning, TuningCase
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import check_formats, kernel_module, kernel_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tune.search import Trial as Outcome
from narrowgemm.tune.search import search

_DISTRIBUTION, _SEED = "normal", 0
#: Of a trial's reason: compilers print whole modules.
_LONGEST_REASON = 300


def tuning_cases(
    kernel: str, suite: str, top: int | None = None, operands: tuple[str, str] | None = None, out_format: str = "bf16"
) -> list[TuningCase]:
    """A search for each shape of the suite; formats of a and b that are left open are the kernel's first.

    Raises UnsupportedError for formats that the kernel does not take.
    """
    chosen = kernel_named(kernel)
    a_format, b_format = operands or (chosen.a_formats[0], chosen.b_formats[0])
    check_formats(chosen, GemmProblem(1, 1, 1, a_format, b_format, out_format))
    return [
        TuningCase(
            kernel=kernel,
            suite=suite,
            m=shape.m,
            n=shape.n,
            k=shape.k,
            a_format=a_format,
            b_format=b_format,
            out_format=out_format,
            distribution=_DISTRIBUTION,
            seed=_SEED,
            top=top,
        )
        for shape in single_shapes(suite)
    ]


def run_tune(
    device: LocalDevice,
    jobs: Sequence[tuple[Path, Sequence[TuningCase]]],
    protocol: Protocol,
    compile_threads: int,
    compile_processes: int | None = None,
    budget_s: float | None = None,
) -> Iterator[tuple[Path, JobReport]]:
    """Search every case that its file has no row of, appending a row each; no case is begun after `budget_s` of all.

    compile_processes: compile in so many processes instead of on threads.

    Yields each file and what was done. Raises UnsupportedError for a GPU without a timer of its own and for processes
    that cannot compile for the device, DeviceBusyError where another process measures on it, StoreError where a file
    cannot be resumed, BrokenProcessPool where a compiling process died, and what JAX raises once a config has taken the
    device down: the row of that case is stored, and another run goes on behind it. Every other fault is a row.
    """
    deadline_s = None if budget_s is None else time.monotonic() + budget_s
    with compilers(device, compile_threads, compile_processes) as side_by_side, compilers(device, 1) as by_turns:
        for out, cases in jobs:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            # XLA times its choices on the device while it compiles, and must do so undisturbed.
            is_timed = any(kernel_named(case.kernel).arch == "any" for case in cases)
            chosen = by_turns if is_timed else side_by_side
            yield out, _run_job(device, cases, protocol, out, chosen, left_s)


def _run_job(
    device: LocalDevice,
    cases: Sequence[TuningCase],
    protocol: Protocol,
    out: Path,
    compiling: Compilers,
    budget_s: float | None,
) -> JobReport:
    todo = missing(device, cases, out)
    if not todo:
        return JobReport({}, len(cases), ())
    with open_bench(device, protocol, with_energy=False) as bench:
        _check_timer(bench)
        trying = out.with_suffix(".trying")
        trying.parent.mkdir(parents=True, exist_ok=True)
        tasks = [_task(case, _Means(compiling, trying)) for case in todo]
        done, left = run_tasks(f"tuning {device.slug}", tasks, bench, out, budget_s)
        trying.unlink(missing_ok=True)
    return JobReport(done, len(cases) - len(todo), left)


def protocol_sha256(protocol: Protocol) -> str:
    """Digest of what decides how configs are timed."""
    told = protocol.model_dump(mode="json", include={"tuning", "rotation_l2_multiple"})
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@cache
def _sources_sha256(kernel: str) -> str:
    return sources_sha256([__name__, kernel_module(kernel)])


def _check_timer(bench: Bench) -> None:
    if bench.device.platform != "cpu" and bench.timer.method != "cupti":
        raise UnsupportedError(
            "tune",
            {"device": bench.device.slug},
            f"has no timer that tells single launches apart: {bench.timer.reason}",
            "tune on an NVIDIA GPU with JAX's CUDA plugin",
        )


@dataclass(frozen=True)
class _Means:
    """What compiles, and a file that names the config that is being timed, should the job hang."""

    compilers: Compilers
    trying: Path


def _task(case: TuningCase, means: _Means) -> Task:
    name = f"{case.kernel} {case.m}×{case.n}×{case.k}"
    return Task(name, lambda _: None, lambda _, bench: [_tune(case, means, bench)])


def _tune(case: TuningCase, means: _Means, bench: Bench) -> Row:
    # A config can take the device down, after which every call fails: that ends the job here, not in rows without end.
    jax.block_until_ready(jnp.zeros(()) + 1)
    started_s = time.perf_counter()
    trials: list[Trial] = []
    try:
        row = _searched(case, means, bench, trials)
    except BrokenProcessPool:
        raise
    except Exception as error:
        row = failure(case, bench.device, error)
    tuning = Tuning(
        trials=trials,
        wall_s=time.perf_counter() - started_s,
        compile_threads=means.compilers.at_once,
        protocol_sha256=protocol_sha256(bench.protocol),
    )
    # The table's folder is named after what JAX calls the device, which is how `gemm` will look for it.
    known = {"device_kind": jax.devices()[0].device_kind, "sources_sha256": _sources_sha256(case.kernel)}
    return row.model_copy(update={"tuning": tuning, "provenance": row.provenance.model_copy(update=known)})


def _searched(case: TuningCase, means: _Means, bench: Bench, trials: list[Trial]) -> Row:
    """The row of the best config. `trials` gets what became of each, also where this raises in the end."""
    kernel, problem, settings = kernel_named(case.kernel), case.problem, bench.protocol.tuning
    platform = bench.device.platform
    sizes = admitted(kernel, problem, "rotated", bench)
    operands = launch_shapes(kernel, problem)
    compiling = {
        config: means.compilers.begin(kernel, config, case.out_format, operands, platform)
        for config in kernel.candidates(problem)[: case.top]
    }
    if kernel.arch == "any":
        wait_for(compiling.values())  # XLA times its choices while it compiles: drawing operands would disturb it
    sets = prepared_sets(kernel, problem, case.distribution, case.seed, sizes.sets)
    wait_for(compiling.values())  # nothing else runs while configs are timed

    def workload(config: Any) -> Workload:
        return workload_of_compiled(compiling[config].function, sets, sizes.set_bytes, sizes.result_bytes, platform)

    def time_s(config: Any) -> float:
        means.trying.write_text(f"{case.kernel} {problem} {config}\n", encoding="utf-8")
        return short_time_s(workload(config), bench.timer, settings)

    try:
        found = search(problem, kernel, time_s, case.top)
        trials += [_trial(outcome) for outcome in found]
        finalists = [outcome.config for outcome in found if outcome.status == "ok"][: settings.finalists]
        if not finalists:
            raise RuntimeError(f"none of {len(found)} configs ran; the first: {trials[0].reason}")
        workloads = [workload(config) for config in finalists]
        rng = np.random.default_rng(zlib.crc32(case.model_dump_json().encode()))
        poll_s = bench.protocol.energy.poll_s
        sampled, stop = burst(workloads, bench.timer, bench.source, settings.final, poll_s, rng)
    finally:
        bench.timer.close()
    return _best(case, bench, list(zip(finalists, workloads, sampled, strict=True)), stop, trials)


def _best(
    case: TuningCase, bench: Bench, finalists: list[tuple[Any, Workload, Sampled]], stop: StopRule, trials: list[Trial]
) -> Row:
    """The row of the fastest finalist that passes the oracle. Finalists are the first of `trials`, in their order."""
    others = bench.share.others()
    times_s = [_median_s(sampled.kept) for _, _, sampled in finalists]
    for index, time_s in enumerate(times_s):
        trials[index] = trials[index].model_copy(update={"final_s": time_s})
    for index in sorted(range(len(finalists)), key=lambda index: times_s[index] or math.inf):
        config, workload, sampled = finalists[index]
        kernel = kernel_named(case.kernel)
        launch = launch_of(kernel, config, case.out_format)
        try:
            checked = check(launch, case.problem, case.distribution, case.seed, kernel.prepared)
        except WrongResultError as error:
            trials[index] = trials[index].model_copy(update={"status": "failed", "reason": str(error)})
            continue
        prepared = Prepared(workload, checked.accuracy, compiled_of(checked), asdict(config), None)
        return row_of(case, prepared, sampled, stop, bench, others, None)
    raise WrongResultError(f"none of the {len(finalists)} fastest configs is right; the first: {trials[0].reason}")


def _median_s(trains: Sequence[Train]) -> float | None:
    return median(train.device_s or train.wall_s for train in trains) if trains else None


def _trial(outcome: Outcome) -> Trial:
    reason = None if outcome.reason is None else " ".join(outcome.reason.split())[:_LONGEST_REASON]
    return Trial(
        config=asdict(outcome.config),
        rank=outcome.rank,
        status=outcome.status,
        reason=reason,
        time_s=outcome.time_s,
        final_s=None,
    )
