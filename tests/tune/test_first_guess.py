"""The kernels' first guesses, against the searches that the record keeps: what leaving the table out would cost."""

from pathlib import Path

import pytest

from narrowbench.config import ROOT
from narrowbench.models.statistics import geometric_mean
from narrowbench.store import jsonl
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem

SEARCHES = sorted((ROOT / "results" / "record").glob("*/tuning/*/*.jsonl"))
#: How many times as long as the quickest config the first guess may take: in geometric mean, and at any shape.
MEAN, MOST = 1.02, 1.12


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_first_guess_is_close_to_the_quickest_config_that_was_found(path: Path) -> None:
    kernel = kernel_named(path.parent.name)
    ratios = []
    for row in jsonl.read([path]):
        if row.status != "ok" or row.tuning is None:
            continue
        case = row.case
        problem = GemmProblem(case.m, case.n, case.k, case.a_format, case.b_format, case.out_format)
        guess = kernel.candidates(problem)[0]
        # A field that came after the search has its default in what was searched.
        seconds = [
            (kernel.config_type(**trial.config) == guess, trial.time_s)
            for trial in row.tuning.trials
            if trial.time_s is not None
        ]
        guessed = [time_s for is_guess, time_s in seconds if is_guess]
        assert guessed, f"{problem}: the first guess {guess} was not in the search"
        ratios.append(guessed[0] / min(time_s for _, time_s in seconds))
    assert geometric_mean(ratios) < MEAN
    assert max(ratios) < MOST
