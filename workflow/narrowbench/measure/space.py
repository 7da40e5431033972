"""Jobs of search spaces: every config that a kernel offers, compiled for devices that need not be there; none runs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from narrowbench.config import Campaign
from narrowbench.measure.compiled import planned_problems, provenance_for
from narrowbench.measure.devices import local_devices
from narrowbench.measure.runner import counts
from narrowbench.store import jsonl
from narrowbench.store.promote import place
from narrowbench.store.rows import Provenance, Row
from narrowbench.store.space import Space, SpaceCase, SpaceConfig
from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import Kernel, kernel_named
from narrowgemm.machine_code import MULTIPLY
from narrowgemm.problem import GemmProblem
from narrowgemm.slug import slugged
from narrowgemm.targets import target_named

#: Configs in a row: few enough that a killed run loses a minute, enough that provenance is the smaller part of a row.
CONFIGS_IN_ROW = 16
#: Of a reason: compilers print whole modules.
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Part:
    """Some configs for one target, in the order of the candidates, and the case that their row is of."""

    target: str
    case: SpaceCase
    configs: tuple[dict[str, object], ...]
    refusal: str | None = None


def parts_of(kernel: Kernel, campaign: Campaign) -> Iterator[Part]:
    """All that the campaign plans of a kernel's search space, target by target."""
    for target, suite, problem in planned_problems(kernel, campaign.space):
        yield from _parts(kernel, target, suite, problem)


def _parts(kernel: Kernel, target: str, suite: str, problem: GemmProblem) -> Iterator[Part]:
    def case(first: int, count: int | None) -> SpaceCase:
        return SpaceCase(kernel=kernel.name, suite=suite, first=first, count=count, **asdict(problem))

    try:
        configs = [asdict(config) for config in kernel.candidates(problem)]
    except UnsupportedError as error:
        yield Part(target, case(0, None), (), str(error))
        return
    for first in range(0, len(configs), CONFIGS_IN_ROW):
        chosen = tuple(configs[first : first + CONFIGS_IN_ROW])
        yield Part(target, case(first, len(chosen)), chosen)


def run_space(kernel_name: str, campaign: Campaign, raw: Path) -> Iterator[str]:
    """Compile what has no row yet below `raw`, appending a row for each few configs; yields a line about each row.

    Raises UnsupportedError without the packages of the extra `aot`, StoreError where a file cannot be resumed.
    """
    kernel, host = kernel_named(kernel_name), local_devices()[-1]
    parts = list(parts_of(kernel, campaign))
    there = {target: _stored(kernel, target, raw) for target in {part.target for part in parts}}
    todo = [part for part in parts if part.case.model_dump_json() not in there[part.target]]
    cases = [
        aot.CompileCase(kernel.name, part.target, part.case.problem, config) for part in todo for config in part.configs
    ]
    outcomes = aot.compile_each(cases)
    for part in todo:
        found = list(islice(outcomes, len(part.configs)))
        versions = next((outcome.code.versions for outcome in found if outcome.code is not None), {})
        origin = provenance_for(target_named(part.target), host, [__name__], kernel.name, versions)
        row = _row(part, found, origin)
        jsonl.append(raw / place(row), row)
        statuses = Counter(outcome.status for outcome in found) or {row.status: 1}
        counted = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        yield f"{kernel.name} for {part.target}, configs from {part.case.first}: {counted}"


def _stored(kernel: Kernel, target: str, raw: Path) -> set[str]:
    """The cases of a kernel and target that have a row which counts, as JSON."""
    path = raw / slugged(target_named(target).kind) / "space" / f"{kernel.name}.jsonl"
    return {row.case.model_dump_json() for row in jsonl.resume(path).rows if counts(row)}


def _row(part: Part, outcomes: Sequence[aot.Outcome], origin: Provenance) -> Row:
    architectures = [outcome.code.architecture for outcome in outcomes if outcome.code is not None]
    return Row(
        case=part.case,
        evidence="compiled",
        status="ok" if outcomes else "unsupported",
        reason=part.refusal,
        space=Space(target=next(iter(architectures), None), configs=[*map(_config, part.configs, outcomes)])
        if outcomes
        else None,
        provenance=origin,
    )


def _config(config: dict[str, object], outcome: aot.Outcome) -> SpaceConfig:
    code, reason = outcome.code, outcome.reason
    return SpaceConfig(
        config=config,
        status=outcome.status,
        reason=None if reason is None else " ".join(reason.split())[:_LONGEST_REASON],
        registers=code and code.registers,
        spill_bytes=code and code.spill_bytes,
        shared_memory_bytes=code and code.shared_memory_bytes,
        tensor_memory_columns=code and code.tensor_memory_columns,
        code_bytes=code and code.code_bytes,
        compile_s=code and round(code.compile_s, 3),
        multiplies=code and {name: count for name, count in code.instructions.items() if MULTIPLY.match(name)},
    )
