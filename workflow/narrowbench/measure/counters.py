"""Jobs of hardware counters: cases of one kernel launched in a child process under Nsight Compute, one row a case."""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from narrowbench.errors import CountersError
from narrowbench.measure import counter_launches, ncu
from narrowbench.measure.counter_launches import Answer, Job
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.lock import device_lock
from narrowbench.measure.ncu import Ncu
from narrowbench.measure.provenance import provenance_of
from narrowbench.measure.runner import JobReport, missing
from narrowbench.store import jsonl
from narrowbench.store.counters import CountedKernel, Counters, CountersCase
from narrowbench.store.rows import Provenance, Row
from narrowgemm.errors import unknown_name
from narrowgemm.gemm.registry import Kernel, check_formats, kernel_named
from narrowgemm.problem import GemmProblem

_DISTRIBUTION, _SEED = "normal", 0


def counters_cases(
    kernel: str,
    shape: tuple[int, int, int],
    configs: Sequence[str] = (),
    operands: tuple[str, str] | None = None,
    out_format: str = "bf16",
) -> list[CountersCase]:
    """A case for each config, given as JSON, or one with the kernel's own choice; M, N, K are the shape.

    A field that a config leaves out has the default of the kernel's `Config`. Formats that are left open are the
    kernel's first. Raises ValueError for a config that is none, UnsupportedError for formats that it does not take.
    """
    chosen = kernel_named(kernel)
    a_format, b_format = operands or (chosen.a_formats[0], chosen.b_formats[0])
    problem = GemmProblem(*shape, a_format, b_format, out_format)
    check_formats(chosen, problem)
    given: list[dict[str, object] | None] = [_config(chosen, text) for text in configs]
    return [
        CountersCase(kernel=kernel, **asdict(problem), distribution=_DISTRIBUTION, seed=_SEED, config=config)
        for config in given or [None]
    ]


def _config(kernel: Kernel, text: str) -> dict[str, object]:
    names = [field.name for field in fields(kernel.config_type)]
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"config {text!r} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"config {text!r} is not a mapping of {', '.join(names)}")
    for name in given:
        if name not in names:
            raise ValueError(f"config of {kernel.name}: {unknown_name('field', name, names)}")
    return asdict(kernel.config_type(**given))


def run_counters(device: LocalDevice, cases: Sequence[CountersCase], out: Path) -> JobReport:
    """Count every case that `out` has no row of, all in one process under the profiler, appending a row each.

    What the profiler printed stays beside `out`, as `<kernel>.csv`. Raises CountersError, with what helps, where
    counters cannot be read; DeviceBusyError where another process measures on the device; StoreError where `out` cannot
    be resumed.
    """
    todo = missing(device, cases, out)
    if not todo:
        return JobReport({}, len(cases), ())
    if device.platform != "cuda":
        raise CountersError(f"{device.slug}: counters are read of NVIDIA GPUs alone; name one, as `doctor` lists them")
    tool = ncu.open_ncu()
    with device_lock(device), tempfile.TemporaryDirectory() as folder:
        answers, counted = _counted(device, todo, tool, Path(folder), out.with_suffix(".csv"))
    done: Counter[str] = Counter()
    for row in _rows(device, todo, answers, counted, tool):
        jsonl.append(out, row)
        done[row.status] += 1
    return JobReport(dict(done), len(cases) - len(todo), ())


def _counted(
    device: LocalDevice, cases: Sequence[CountersCase], tool: Ncu, folder: Path, log: Path
) -> tuple[list[Answer], list[Counters]]:
    """What became of each case, and the counters of those that were launched."""
    (folder / counter_launches.JOB).write_text(Job(device=device.slug, cases=list(cases)).model_dump_json())
    # The profiler saves all memory that a kernel could write to before it replays it: JAX takes what it needs alone,
    # not three quarters of the GPU.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", counter_launches.__name__, str(folder)]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    try:
        text = ncu.count(tool, command, environment, log)
    except CountersError:
        answers = _answers(folder)
        if len(answers) == len(cases) and not any(answer.status == "ok" for answer in answers):
            return answers, []  # nothing was launched, so that there was nothing to count
        raise
    answers = _answers(folder)
    if len(answers) < len(cases):
        name = f"{cases[0].kernel}: {len(answers)} of {len(cases)} cases"
        raise CountersError(f"{name} were launched before the process ended; count fewer configs at a time")
    launches = sum(answer.status == "ok" for answer in answers)
    kernels, unread = ncu.read_csv(text, tool.metrics)
    without_value = {**tool.missing, **unread}
    return answers, [_counters(group, without_value) for group in ncu.of_launches(kernels, launches)]


def _answers(folder: Path) -> list[Answer]:
    path = folder / counter_launches.ANSWERS
    return [Answer.model_validate_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def _counters(kernels: list[CountedKernel], without_value: dict[str, str]) -> Counters:
    return Counters(
        kernels=kernels,
        missing=without_value,
        cache_control=ncu.CACHE_CONTROL,
        clock_control=ncu.CLOCK_CONTROL,
    )


def _rows(
    device: LocalDevice,
    cases: Sequence[CountersCase],
    answers: Sequence[Answer],
    counted: Sequence[Counters],
    tool: Ncu,
) -> Iterator[Row]:
    waiting = iter(counted)
    for case, answer in zip(cases, answers, strict=True):
        yield Row(
            case=case,
            evidence="measured",
            counters=next(waiting) if answer.status == "ok" else None,
            provenance=_provenance(case, device, tool),
            **dict(answer),
        )


def _provenance(case: CountersCase, device: LocalDevice, tool: Ncu) -> Provenance:
    origin = provenance_of(device, [__name__], case.kernel)
    return origin.model_copy(update={"versions": origin.versions | {"nsight-compute": tool.version}})
