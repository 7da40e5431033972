"""The time model of figures and tables: fitted on half of the record's shapes, tested on the rest. No Matplotlib."""

import functools
from dataclasses import dataclass, fields

from narrowbench.models.chosen import Modelled, load_chosen, modelled
from narrowbench.models.kerneltime import Coefficients, KernelRun, check_times, fit_coefficients
from narrowbench.models.prediction import Check, halves
from narrowbench.models.samples import kernel_runs
from narrowbench.report.load import Material
from narrowbench.report.select import once, usual

#: The device whose record the model is fitted on.
FITTED_ON = "nvidia-h200"
#: Least-squares needs more runs than it has coefficients.
NEEDED_RUNS = len(fields(Coefficients)) + 1


@dataclass(frozen=True)
class TimeModel:
    """Coefficients, and what they were taken from.

    coefficients: fitted, or where the record is too small for a fit those assumed in `Coefficients`.
    fitted, tested: runs of the two halves of the shapes.
    check:        errors on the tested half; None where nothing was fitted or there is nothing to test.
    """

    coefficients: Coefficients
    fitted: tuple[KernelRun, ...]
    tested: tuple[KernelRun, ...]
    check: Check | None

    @property
    def is_fitted(self) -> bool:
        return len(self.fitted) >= NEEDED_RUNS

    @property
    def shapes(self) -> int:
        """Shapes of both halves."""
        return len({run.shape for run in (*self.fitted, *self.tested)})

    @property
    def basis(self) -> str:
        """One sentence on where the coefficients come from."""
        if self.is_fitted:
            return f"Coefficients are fitted on {len(self.fitted)} runs on the H200, of half of the shapes."
        return f"Coefficients are assumed, not fitted: {self.holdings}."

    @property
    def holdings(self) -> str:
        """How many runs there are, and how many a fit needs."""
        runs = len(self.fitted) + len(self.tested)
        return (
            f"the record holds {runs} runs of {self.shapes} shapes on the H200, {len(self.fitted)} in the half for "
            f"fitting, which needs {NEEDED_RUNS}"
        )


def time_model(material: Material) -> TimeModel:
    """The model of the record: normal data, rotated operands, both modes, each run at the clock that it held."""
    return _time_model(material.of_record)


@functools.cache
def _time_model(record: Material) -> TimeModel:
    """Fitted once for all tables and numbers of a process."""
    frame = once(usual(record.frame))
    fitted, tested = halves(kernel_runs(frame[frame.device == FITTED_ON], record.profiles))
    if len(fitted) < NEEDED_RUNS:
        return TimeModel(Coefficients(), tuple(fitted), tuple(tested), None)
    coefficients = fit_coefficients(fitted)
    check = check_times(tested, coefficients) if tested else None
    return TimeModel(coefficients, tuple(fitted), tuple(tested), check)


def absent_kernels(material: Material, coefficients: Coefficients, leading_only: bool = True) -> list[Modelled]:
    """Modelled launches of the kernels and devices of `configs/modelled.yaml`."""
    profiles = material.profiles
    return list(modelled(load_chosen(profiles), profiles, coefficients, leading_only))
