"""The process that a profiler watches: it checks each case, launches it once warm, and once to be counted.

`python -m narrowbench.measure.counter_launches FOLDER` reads `job.json` of the folder and writes `answers.jsonl`, a
line a case. Only the counted launches lie between `cuProfilerStart` and `cuProfilerStop`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import jax

from narrowbench.measure.accuracy import WrongResultError, check
from narrowbench.measure.bench import use_with_jax
from narrowbench.measure.devices import device_named
from narrowbench.measure.gemm import compiled_of, launch_of, prepared_sets
from narrowbench.measure.launches import Platform, compile_launch
from narrowbench.measure.nvidia import Cuda
from narrowbench.store.counters import CountersCase
from narrowbench.store.rows import Accuracy, Compiled
from narrowbench.store.strict import Strict
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.api import chosen_config
from narrowgemm.gemm.device import check_device
from narrowgemm.gemm.registry import check_formats, kernel_named

JOB, ANSWERS = "job.json", "answers.jsonl"


class Job(Strict):
    """Cases to launch on a device, in order."""

    device: str
    cases: list[CountersCase]


class Answer(Strict):
    """What became of a case: only one that is `ok` was launched to be counted."""

    status: Literal["ok", "unsupported", "failed"]
    reason: str | None = None
    config: dict[str, object] | None = None
    tuned_table_sha256: str | None = None
    accuracy: Accuracy | None = None
    compile: Compiled | None = None


def launch(case: CountersCase, platform: Platform, counted: Callable[[], AbstractContextManager[None]]) -> Answer:
    """Launch a case on the default device, the second time within `counted()`. A fault of that one launch is raised."""
    try:
        answer, function, (warm, fresh) = _prepared(case, platform)
        jax.block_until_ready(function(*warm))
    except UnsupportedError as error:
        return Answer(status="unsupported", reason=str(error))
    except WrongResultError as error:
        return Answer(status="failed", reason=str(error))
    except Exception as error:  # any fault of a compiler or a device is this case's, and the others go on
        return Answer(status="failed", reason=" ".join(f"{type(error).__name__}: {error}".split())[:2000])
    jax.block_until_ready(fresh)
    with counted():
        jax.block_until_ready(function(*fresh))
    return answer


def _prepared(case: CountersCase, platform: Platform) -> tuple[Answer, Callable[..., Any], list[list[Any]]]:
    """What the oracle says, the compiled launch, and two sets of operands for it."""
    kernel, problem = kernel_named(case.kernel), case.problem
    check_formats(kernel, problem)
    check_device(kernel)
    if case.config is None:
        config, tuned_table_sha256 = chosen_config(kernel, problem)
    else:
        config, tuned_table_sha256 = kernel.config_type(**case.config), None
        kernel.check(problem, config)
    run = launch_of(kernel, config, problem.out_format)
    checked = check(run, problem, case.distribution, case.seed, kernel.prepared)
    sets = prepared_sets(kernel, problem, case.distribution, case.seed, 2)
    answer = Answer(
        status="ok",
        config=asdict(config),
        tuned_table_sha256=tuned_table_sha256,
        accuracy=checked.accuracy,
        compile=compiled_of(checked),
    )
    return answer, compile_launch(run, sets[0], platform), [jax.tree.leaves(operands) for operands in sets]


def main() -> None:
    folder = Path(sys.argv[1])
    job = Job.model_validate_json((folder / JOB).read_bytes())
    device = device_named(job.device)
    use_with_jax(device)
    cuda, reason = Cuda.open()
    if cuda is None or device.ordinal is None:
        raise RuntimeError(f"{device.slug}: {reason or 'CUDA does not number it'}: nothing to profile")
    ordinal = device.ordinal
    with (folder / ANSWERS).open("w", encoding="utf-8") as answers:
        for case in job.cases:
            answer = launch(case, device.platform, lambda: cuda.profiled(ordinal))
            answers.write(answer.model_dump_json() + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
