"""Rows of kernels compiled for chips that need not be there: resources and instructions, and nothing run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from narrowbench.config import Campaign, CompileEntry, single_shapes
from narrowbench.errors import ConfigError
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.provenance import provenance_of
from narrowbench.store import jsonl
from narrowbench.store.rows import CompileCase, Compiled, Provenance, Row
from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import Kernel, kernel_named
from narrowgemm.problem import GemmProblem
from narrowgemm.slug import slugged
from narrowgemm.targets import Target, target_named


def run_compile(kernel_name: str, campaign: Campaign, out: Path) -> dict[str, int]:
    """Compile what the campaign plans for this kernel, one row a shape, config and target; returns rows by status.

    A case without the packages of the extra `aot` or `tpu` is `unsupported`, as is one that the kernel refuses.
    """
    kernel = kernel_named(kernel_name)
    cases, suites = [], []
    for case, suite in _planned(kernel, campaign):
        cases.append(case)
        suites.append(suite)
    host = local_devices()[-1]
    counts: dict[str, int] = {}
    for outcome, suite in zip(_outcomes(cases), suites, strict=True):
        row = _row(outcome, suite, host)
        jsonl.append(out, row)
        counts[row.status] = counts.get(row.status, 0) + 1
    return counts


def _planned(kernel: Kernel, campaign: Campaign) -> Iterator[tuple[aot.CompileCase, str]]:
    """Cases with their suites."""
    for target, suite, problem in planned_problems(kernel, campaign.compile):
        for config in _leading(kernel, problem):
            yield aot.CompileCase(kernel.name, target, problem, config), suite


def planned_problems(kernel: Kernel, plan: Sequence[CompileEntry]) -> Iterator[tuple[str, str, GemmProblem]]:
    """Target, suite and problem of all that a plan has of a kernel, target by target, as `compile_each` wants them.

    Raises ConfigError, naming the kernels that are planned, where the plan has nothing of this one.
    """
    entries = [entry for entry in plan if kernel.name in entry.kernels]
    targets = {(target, suite): None for entry in entries for target in entry.targets for suite in entry.suites}
    pairs = [pair for pair in targets if target_named(pair[0]).arch == kernel.arch]
    if not pairs:
        planned = ", ".join(sorted({name for entry in plan for name in entry.kernels})) or "none"
        raise ConfigError(
            f"the campaign compiles {kernel.name} for no target of its architecture, {kernel.arch}; add one, or name "
            f"a kernel that it compiles: {planned}"
        )
    for target, suite in sorted(pairs, key=lambda pair: pair[0]):
        for shape in single_shapes(suite):
            a_format, b_format = kernel.a_formats[0], kernel.b_formats[0]
            yield target, suite, GemmProblem(shape.m, shape.n, shape.k, a_format, b_format, "bf16")


def _leading(kernel: Kernel, problem: GemmProblem) -> list[dict[str, object] | None]:
    """The best guess, and the best one for each other number of blocks that make a tile together."""
    try:
        configs = kernel.candidates(problem)
    except UnsupportedError:
        return [None]  # the compiling process says it again, for its row
    leading: dict[object, dict[str, object]] = {}
    for config in configs:
        leading.setdefault(getattr(config, "ctas", None), asdict(config))
    return list(leading.values())


def _outcomes(cases: list[aot.CompileCase]) -> Iterator[aot.Outcome]:
    try:
        yield from aot.compile_each(cases)
    except UnsupportedError as error:  # raised before the first case, without the packages
        yield from (aot.Outcome(case, "unsupported", None, str(error)) for case in cases)


def _row(outcome: aot.Outcome, suite: str, host: LocalDevice) -> Row:
    case, code = outcome.case, outcome.code
    target = target_named(case.target)
    config = case.config if code is None else code.config
    versions = {} if code is None else code.versions
    return Row(
        case=CompileCase(kernel=case.kernel, suite=suite, config=config, **asdict(case.problem)),
        config=config,
        evidence="compiled",
        status=outcome.status,
        reason=outcome.reason,
        compile=None
        if code is None
        else Compiled(
            hlo_calls=[],
            upcast=None,
            registers=code.registers,
            spill_bytes=code.spill_bytes,
            shared_memory_bytes=code.shared_memory_bytes,
            tensor_memory_columns=code.tensor_memory_columns,
            code_bytes=code.code_bytes,
            compile_s=code.compile_s,
            instructions=code.instructions,
            target=code.architecture,
        ),
        provenance=provenance_for(target, host, [__name__], case.kernel, versions),
    )


def provenance_for(
    target: Target, host: LocalDevice, modules: Sequence[str], kernel: str, versions: Mapping[str, str]
) -> Provenance:
    """Provenance of a row that `modules` made on `host` for a device that need not be there; `versions` are added."""
    origin = provenance_of(host, modules, kernel)
    changes = {"device": slugged(target.kind), "device_kind": target.kind, "device_uuid_hash": None}
    return origin.model_copy(update=changes | {"versions": {**origin.versions, **versions}})
