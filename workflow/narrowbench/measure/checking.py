"""Every kernel on every shape of a campaign against float64, with nothing timed: a report to read before a campaign.

Kernels of this library alone: a baseline of another library is checked where it is measured, on the choice that was
found fastest.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from narrowbench.config import Campaign, Protocol, load_suite
from narrowbench.measure.accuracy import WrongResultError, check
from narrowbench.measure.bench import Bench, open_bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.epilogues import drawn
from narrowbench.measure.gemm import admitted, launch_of
from narrowbench.measure.many import check_many, chosen_launch
from narrowbench.measure.named import can_be_prepared_beside, is_of_another_library
from narrowbench.measure.progress import telling
from narrowbench.measure.runner import PREPARED_TOGETHER, WHOLE, Part, case_of
from narrowbench.store.rows import Accuracy, GemmCase
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.api import chosen_config
from narrowgemm.gemm.registry import kernel_named

type Verdict = Literal["right", "wrong", "unsupported", "failed"]

#: What is drawn to be multiplied: values of both signs and all sizes, which hide no mistake.
DISTRIBUTION = "normal"
_COLUMNS = ("kernel", "M×N×K", "A × B → C", "epilogue", "result", "error", "allowed", "config or reason")


@dataclass(frozen=True)
class Found:
    """What a check found. `error` and `allowed` are relative to the norm of C; a wrong result's are in the reason."""

    case: GemmCase
    verdict: Verdict
    detail: str
    error: float | None = None
    allowed: float | None = None

    @property
    def line(self) -> str:
        """As a line of the report's table."""
        case = self.case
        figures = ["" if value is None else f"{value:.2e}" for value in (self.error, self.allowed)]
        cells = [
            case.kernel,
            _shape(case),
            f"{case.a_format} × {case.b_format} → {case.out_format}",
            case.epilogue,
            self.verdict,
            *figures,
            self.detail.replace("|", "\\|"),
        ]
        return f"| {' | '.join(cells)} |"


def cases_to_check(campaign: Campaign, device: LocalDevice, part: Part = WHOLE) -> list[GemmCase]:
    """Each kernel, problem and epilogue of the campaign's part once, in the plan's order.

    Raises ValueError for a part that the campaign does not have, or that has no kernel of this library.
    """
    found: dict[tuple[object, ...], GemmCase] = {}
    for kernel, suite in part.of(campaign.jobs(device.device_class)):
        if is_of_another_library(kernel):
            continue
        for shape in load_suite(suite).shapes:
            for setting in campaign.settings(device.device_class, kernel, suite):
                case = case_of(kernel, suite, shape, setting, campaign.seed)
                found.setdefault((kernel, case.problem, case.epilogue, case.groups), case)
    if not found:
        asked = dict.fromkeys(kernel for kernel, _ in part.of(campaign.jobs(device.device_class)))
        raise ValueError(
            f"check: no kernel of this library is among what is asked for on devices of class {device.device_class} "
            f"({', '.join(asked) or 'nothing is planned'}); baselines of other libraries are checked where they are "
            "measured: name another kernel or campaign"
        )
    return list(found.values())


def run_checks(
    device: LocalDevice, cases: Sequence[GemmCase], protocol: Protocol, seed: int, out: Path
) -> Counter[Verdict]:
    """Check the cases on operands drawn from `seed`, into outputs full of NaN; how many came out how.

    The report at `out`, Markdown, gets its line as soon as a case is done. Raises DeviceBusyError where another process
    measures on the device, and OSError where `out` cannot be written.
    """
    counts: Counter[Verdict] = Counter()
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_bench(device, protocol, with_energy=False) as bench, out.open("w", encoding="utf-8") as report:
        rule = "|".join([""] + [" --- "] * len(_COLUMNS) + [""])
        head = [f"# {device.kind}: {len(cases)} cases against float64", "", f"Operands: {DISTRIBUTION}, seed {seed}."]
        report.write("\n".join([*head, "", f"| {' | '.join(_COLUMNS)} |", rule, ""]))
        with telling("checks", len(cases)) as tell:
            for found in _in_order(cases, seed, bench):
                counts[found.verdict] += 1
                tell.begin(f"{found.case.kernel} {_shape(found.case)}")
                tell.end(found.verdict)
                report.write(f"{found.line}\n")
                report.flush()
        report.write(f"\n{told(counts)}.\n")
    return counts


def told(counts: Counter[Verdict]) -> str:
    """The counts in words."""
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "nothing to check"


def _in_order(cases: Sequence[GemmCase], seed: int, bench: Bench) -> Iterator[Found]:
    """Compiled a few at a time where this harms none of them; each runs alone."""
    for beside, alike in groupby(cases, lambda case: can_be_prepared_beside(case.kernel)):
        with ThreadPoolExecutor(PREPARED_TOGETHER if beside else 1) as pool:
            yield from pool.map(lambda case: _checked(case, seed, bench), alike)


def _shape(case: GemmCase) -> str:
    return f"{case.m}×{case.n}×{case.k}" + ("" if case.groups is None else f" {case.groups}")


def _checked(case: GemmCase, seed: int, bench: Bench) -> Found:
    try:
        config, accuracy = _compared(case, seed, bench)
    except UnsupportedError as error:
        return Found(case, "unsupported", str(error))
    except WrongResultError as error:
        return Found(case, "wrong", str(error))
    except Exception as error:  # a fault of one kernel is its own line, as it is its own row of a campaign
        return Found(case, "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")
    return Found(case, "right", str(config), accuracy.kernel_error, accuracy.tolerance)


def _compared(case: GemmCase, seed: int, bench: Bench) -> tuple[Any, Accuracy]:
    """The config, and the errors of a right result."""
    if case.groups is not None:
        launch, config = chosen_launch(case)
        return config, check_many(launch, case, DISTRIBUTION, seed).accuracy
    kernel, problem = kernel_named(case.kernel), case.problem
    admitted(kernel, problem, case.cache, bench, case.epilogue)
    epilogue = drawn(case.epilogue, problem, seed, "check", 0)
    config, _ = chosen_config(kernel, problem, epilogue)
    launch = launch_of(kernel, config, problem.out_format)
    return config, check(launch, problem, DISTRIBUTION, seed, kernel.prepared, epilogue).accuracy
