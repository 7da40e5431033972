"""Jobs: every case of one kernel and suite on one device, the device's roofs, and interleaved comparisons.

A fault of one case becomes a row with its reason, and the job goes on. A job that was stopped goes on with the cases
that have no row yet; where a kernel's own code or the config tuned for a case has changed, the case is measured again,
in a new row beside the old one, and so are cases that were `unstable`.
"""

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from narrowbench.config import Campaign, PlanEntry, Protocol, Setting, Shape, load_suite, parse
from narrowbench.errors import ConfigError
from narrowbench.measure.bench import Bench, open_bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.gemm import Prepared, prepare
from narrowbench.measure.many import prepare_many
from narrowbench.measure.named import (
    can_be_prepared_beside,
    formats_of,
    is_of_another_library,
    kernel_sha256,
    module_of,
)
from narrowbench.measure.progress import say, telling
from narrowbench.measure.recording import failure, rows_of
from narrowbench.measure.roofs import Roof, measure_roof, nominal_work, roof_case, roofs_of
from narrowbench.measure.vendor.prepared import prepare_baseline
from narrowbench.names import INTERLEAVED
from narrowbench.store import jsonl
from narrowbench.store.counters import CountersCase
from narrowbench.store.groups import Groups
from narrowbench.store.rows import CompileCase, GemmCase, Mode, RoofCase, Row, TuningCase
from narrowbench.store.space import SpaceCase
from narrowgemm.errors import unknown_name
from narrowgemm.problem import NO_EPILOGUE
from narrowgemm.slug import slugged
from narrowgemm.tune import table


@dataclass(frozen=True)
class JobReport:
    """What a job did: cases by status, cases that were there already, and cases left for another run, by name."""

    done: dict[str, int]
    skipped: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Part of a campaign: the jobs of these kernels and suites; None leaves all. Roofs belong to the whole alone."""

    kernels: Sequence[str] | None = None
    suites: Sequence[str] | None = None

    @property
    def is_whole(self) -> bool:
        return not self.kernels and not self.suites

    def of(self, jobs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those of `jobs`, kernel and suite each, that belong. Raises ValueError for names that no job has."""
        for kind, names, known in (
            ("kernel of this campaign", self.kernels, {kernel for kernel, _ in jobs}),
            ("suite of this campaign", self.suites, {suite for _, suite in jobs}),
        ):
            for name in names or ():
                if name not in known:
                    raise ValueError(unknown_name(kind, name, sorted(known)))
        found = [
            (kernel, suite)
            for kernel, suite in jobs
            if (not self.kernels or kernel in self.kernels) and (not self.suites or suite in self.suites)
        ]
        if jobs and not found:
            asked = f"{', '.join(self.kernels or ())} × {', '.join(self.suites or ())}"
            raise ValueError(f"this campaign has no job {asked}; `narrowbench plan` lists those that it has")
        return found


WHOLE = Part()


def run_campaign(
    device: LocalDevice,
    campaign: Campaign,
    protocol: Protocol,
    raw: Path,
    budget_s: float | None,
    part: Part = WHOLE,
) -> Iterator[tuple[Path, JobReport]]:
    """Measure every job of the campaign's part, and of the whole the device's roofs, each into its file below `raw`.

    Jobs go in the plan's order, so that what a budget cuts off is what the plan names last; another run goes on there.
    Yields the file and what was done, job by job. Raises as `run_job`, ValueError for a part that the campaign does not
    have, and ConfigError where it plans something, but nothing for such a device.
    """
    jobs = part.of(campaign.jobs(device.device_class))
    if campaign.plan and not jobs:
        raise ConfigError(
            f"campaign {campaign.title!r} plans nothing for {device.slug}, of class {device.device_class}; it plans for"
            f" {', '.join(campaign.plan)}: measure on such a device, or add a plan for this one"
        )
    deadline_s = None if budget_s is None else time.monotonic() + budget_s
    folder = raw / device.slug

    def within_budget() -> Campaign:
        if deadline_s is None:
            return campaign
        return campaign.model_copy(update={"job_budget_s": max(0.0, deadline_s - time.monotonic())})

    for kernel, suite in jobs:
        out = folder / kernel / f"{suite}.jsonl"
        yield out, run_job(device, kernel, suite, within_budget(), protocol, out)
    if part.is_whole:
        out = folder / "roofs.jsonl"
        yield out, run_roofs(device, within_budget(), protocol, out)


def run_job(
    device: LocalDevice, kernel: str, suite: str, campaign: Campaign, protocol: Protocol, out: Path
) -> JobReport:
    """Measure every case that the campaign plans for this kernel and suite on this device, appending rows to `out`.

    Raises ValueError, naming the nearest known ones, for an unknown kernel or suite, ConfigError where the campaign
    plans nothing of the kind, DeviceBusyError where another process measures on
    the device, StoreError where `out` cannot be resumed, and OSError where it cannot be written; every other fault is
    a row.
    """
    settings = campaign.settings(device.device_class, kernel, suite)
    if not settings:
        module_of(kernel)
        load_suite(suite)
        planned = ", ".join(" × ".join(job) for job in campaign.jobs(device.device_class)) or "nothing"
        raise ConfigError(
            f"campaign {campaign.title!r} has no {kernel} × {suite} for devices of class {device.device_class}; "
            f"add it, or measure what is planned: {planned}"
        )
    cases = [
        case_of(kernel, suite, shape, setting, campaign.seed)
        for shape in load_suite(suite).shapes
        for setting in settings
    ]
    todo = missing(device, cases, out)
    tasks = [_single(case) for case in todo]
    if not tasks:
        return JobReport({}, len(cases), ())
    with_energy = any(case.mode == "sustained" for case in todo)
    with open_bench(device, protocol, with_energy) as bench:
        done, left = run_tasks(f"{kernel} {suite}", tasks, bench, out, campaign.job_budget_s)
    return JobReport(done, len(cases) - len(todo), left)


def run_roofs(device: LocalDevice, campaign: Campaign, protocol: Protocol, out: Path) -> JobReport:
    """Measure the device's own roofs in the campaign's modes and formats; rows go to `out`. Raises as `run_job`."""
    roofs = roofs_of(device.device_class, campaign.roof_modes, campaign.roof_formats)
    known = [row for row in _resumed(out) if counts(row)]
    todo = [roof for roof in roofs if not any(roof.is_of(row.case) for row in known)]
    tasks = [_roof(roof) for roof in todo]
    if not tasks:
        return JobReport({}, len(roofs), ())
    with open_bench(device, protocol, "sustained" in campaign.roof_modes) as bench:
        done, left = run_tasks("roofs", tasks, bench, out, campaign.job_budget_s)
    return JobReport(done, len(roofs) - len(todo), left)


def shape_given(shape: tuple[int, int, int], groups: Groups | None = None) -> Shape:
    """A shape that is no suite's. Raises ConfigError for one that is none."""
    extents = dict(zip("mnk", shape, strict=True))
    return parse(Shape, extents | {"name": INTERLEAVED, "origin": "given by hand", "groups": groups}, "versus: shape")


def run_compare(
    device: LocalDevice,
    kernels: Sequence[str],
    shapes: Sequence[Shape],
    modes: Sequence[Mode],
    protocol: Protocol,
    out: Path,
    out_format: str = "bf16",
    distribution: str = "normal",
    seed: int = 0,
    epilogue: str = NO_EPILOGUE,
    budget_s: float | None = None,
) -> JobReport:
    """Measure several kernels on each shape, sample by sample in random order, appending a row of each to `out`.

    Rows of one shape and mode share a `session`: their samples of equal number are pairs, for `paired_ratio`. A shape
    of which a row is missing is measured again as a whole; no shape is begun after `budget_s` seconds.
    Raises ConfigError for fewer than two kernels, one given twice, and a format or data that is none.
    """
    if len(kernels) < 2 or len(set(kernels)) < len(kernels):
        raise ConfigError(f"versus: kernels {', '.join(kernels)} are not two or more, each once; name others")
    plan = {"kernels": list(kernels), "suites": [INTERLEAVED], "modes": list(modes)}
    chosen = {"distributions": [distribution], "out_formats": [out_format], "epilogues": [epilogue]}
    parse(PlanEntry, plan | chosen, "versus")
    settings = [
        Setting(
            mode=mode,
            distribution=distribution,
            out_format=out_format,
            epilogue=epilogue,
            operands=None,
            cache="rotated",
        )
        for mode in modes
    ]
    together = [
        [case_of(kernel, INTERLEAVED, shape, setting, seed) for kernel in kernels]
        for shape in shapes
        for setting in settings
    ]
    todo = [cases for cases in together if missing(device, cases, out)]
    tasks = [_together(cases) for cases in todo]
    if not tasks:
        return JobReport({}, len(together) * len(kernels), ())
    with open_bench(device, protocol, "sustained" in modes) as bench:
        done, left = run_tasks("interleaved", tasks, bench, out, budget_s)
    return JobReport(done, (len(together) - len(todo)) * len(kernels), left)


@dataclass(frozen=True)
class Task:
    """Something to be measured, in two steps.

    prepare:     compiles and checks; beside other tasks' where `beside` says that this harms none of them.
    measure:     samples, alone on host and device.
    """

    name: str
    prepare: Callable[[Bench], Any]
    measure: Callable[[Any, Bench], list[Row]]
    beside: bool = False


#: Tasks prepared side by side. Compiling is most of a case's time on an accelerator and uses the host alone; more would
#: only hold more operands in memory.
PREPARED_TOGETHER = 6


def run_tasks(
    title: str, tasks: Sequence[Task], bench: Bench, out: Path, budget_s: float | None
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Run tasks, each measured alone, storing the rows of each at once: rows by status, and tasks left over by name."""
    deadline_s = math.inf if budget_s is None else time.monotonic() + budget_s
    done: Counter[str] = Counter()
    left = list(tasks)
    with telling(title, len(tasks)) as tell, ThreadPoolExecutor(PREPARED_TOGETHER) as pool:
        while left and time.monotonic() < deadline_s:
            batch = left[: PREPARED_TOGETHER if all(task.beside for task in left[:PREPARED_TOGETHER]) else 1]
            # All are ready before the first is measured: nothing else then runs on the host or the device.
            ready = list(pool.map(lambda task: task.prepare(bench), batch))
            for task, prepared in zip(batch, ready, strict=True):
                if time.monotonic() >= deadline_s:
                    break
                tell.begin(task.name)
                rows = task.measure(prepared, bench)
                for row in rows:
                    jsonl.append(out, row)
                    done[row.status] += 1
                tell.end("; ".join(outcome_of(row) for row in rows))
                left.remove(task)
    return dict(done), tuple(task.name for task in left)


def case_of(kernel: str, suite: str, shape: Shape, setting: Setting, seed: int) -> GemmCase:
    """One case of a plan; formats that it leaves open are the kernel's first."""
    a_format, b_format = setting.operands or formats_of(kernel)
    return GemmCase(
        kernel=kernel,
        suite=suite,
        m=shape.m,
        n=shape.n,
        k=shape.k,
        a_format=a_format,
        b_format=b_format,
        out_format=setting.out_format,
        epilogue=setting.epilogue,
        distribution=setting.distribution,
        seed=seed,
        mode=setting.mode,
        cache=setting.cache,
        window_s=setting.window_s,
        repeat=setting.repeat,
        groups=shape.groups,
    )


def name_of(case: GemmCase) -> str:
    windows = "" if case.window_s is None else f" windows of {case.window_s:g} s"
    repeat = "" if case.repeat is None else f" repeat {case.repeat}"
    epilogue = "" if case.epilogue == NO_EPILOGUE else f" {case.epilogue}"
    groups = "" if case.groups is None else f" {case.groups}"
    work = f"{case.kernel} {case.m}×{case.n}×{case.k}{groups}{epilogue}"
    return f"{work} {case.mode} {case.distribution} {case.cache}{windows}{repeat}"


def missing[Case: GemmCase | TuningCase | CountersCase](
    device: LocalDevice, cases: Sequence[Case], out: Path
) -> list[Case]:
    """The cases that `out` has no row of that counts, in order. A torn last line of the file is cut off."""
    known = {row.key for row in _resumed(out) if counts(row)}
    return [case for case in cases if f"{device.slug}/{case.model_dump_json()}" not in known]


def _resumed(out: Path) -> tuple[Row, ...]:
    """The rows of a file that is about to be appended to. What was cut off it, or cannot be read, is told."""
    out.parent.mkdir(parents=True, exist_ok=True)  # where that cannot be, nothing is measured for it
    found = jsonl.resume(out)
    if found.torn_bytes:
        say(f"{out}: the last line was torn; its {found.torn_bytes} bytes are cut off")
    for fault in found.faults:
        say(f"{fault}; the line stays, and its case is measured again")
    return found.rows


def counts(row: Row) -> bool:
    """Whether a row still stands: its case need not be measured again."""
    case = row.case
    if isinstance(case, CompileCase) or row.status == "unstable":
        return False
    if isinstance(case, RoofCase):
        return True
    if row.provenance.kernel_sha256 != kernel_sha256(case.kernel, case.many):
        return False
    chosen_by_hand = isinstance(case, CountersCase) and case.config is not None
    return isinstance(case, TuningCase | SpaceCase) or chosen_by_hand or not _is_tuned_since(row, case)


def _is_tuned_since(row: Row, case: GemmCase | CountersCase) -> bool:
    """Whether another config is tuned for the case than the row's; none is for many products."""
    if case.many is not None:
        return False
    tuned = table.lookup(case.kernel, case.problem, slugged(row.provenance.device_kind))
    return tuned is not None and row.config is not None and not tuned.items() <= row.config.items()


def outcome_of(row: Row) -> str:
    """A row in a few words."""
    if row.timing is None:
        return f"{row.status}: {row.reason}"
    told = f"{row.status}, {float(np.median(row.timing.samples_s)) * 1e6:.4g} µs"
    return f"{told}, best of {len(row.tuning.trials)}: {row.config}" if row.tuning else told


def _roof(roof: Roof) -> Task:
    def measure(_: None, bench: Bench) -> list[Row]:
        try:
            return measure_roof(roof, bench)
        except Exception as error:
            return [failure(roof_case(roof, nominal_work(roof, bench)), bench.device, error)]

    return Task(str(roof), lambda _: None, measure)


def _single(case: GemmCase) -> Task:
    return _task([case], None)


def _together(cases: list[GemmCase]) -> Task:
    return _task(cases, uuid.uuid4().hex[:16])


def _task(cases: Sequence[GemmCase], session: str | None) -> Task:
    """Cases that are sampled in turn. A case that cannot be prepared has its row, and the others go on."""

    def prepare_all(bench: Bench) -> list[Prepared | Exception]:
        return [_prepared(case, bench) for case in cases]

    def measure(ready: list[Prepared | Exception], bench: Bench) -> list[Row]:
        pairs = list(zip(cases, ready, strict=True))
        good = [(case, item) for case, item in pairs if isinstance(item, Prepared)]
        rows = [failure(case, bench.device, item) for case, item in pairs if isinstance(item, Exception)]
        try:
            return [*rows, *rows_of(good, bench, session)]
        except Exception as error:
            return [*rows, *(failure(case, bench.device, error) for case, _ in good)]

    beside = all(can_be_prepared_beside(case.kernel) for case in cases)
    return Task(" against ".join(name_of(case) for case in cases), prepare_all, measure, beside)


def _prepared(case: GemmCase, bench: Bench) -> Prepared | Exception:
    try:
        if is_of_another_library(case.kernel):
            return prepare_baseline(case, bench)
        return prepare(case, bench) if case.groups is None else prepare_many(case, bench)
    except Exception as error:
        return error
