"""The energy model of figures: fitted on half of a device's shapes, tested on the rest. No Matplotlib."""

from dataclasses import dataclass

from narrowbench.models.energy import FLOP, HBM, L2, P0, EnergyModel, EnergyRoofline, check_energy, fit_energy
from narrowbench.models.prediction import Check, halves
from narrowbench.models.samples import energy_samples, memory_samples
from narrowbench.report.held_roofs import HeldPoint
from narrowbench.report.load import Material
from narrowbench.report.select import Place, at, usual


@dataclass(frozen=True)
class EnergyFit:
    """The model of a place, or why there is none.

    check:        errors on the half of the shapes that the fit did not see; None where none of them can be predicted.
    l2_per_flop:  bytes from the L2 a FLOP of each group, in its case of highest intensity.
    """

    model: EnergyModel | None
    why_not: str
    samples: int
    check: Check | None
    l2_per_flop: dict[str, float]

    def roofline(self, point: HeldPoint) -> EnergyRoofline | None:
        """The energy roofline of a case's formats and data; None without a model of them."""
        group = f"{point.line.a_format} × {point.line.b_format}, {point.line.distribution}"
        if self.model is None or FLOP + group not in self.model.coefficients:
            return None
        value = {key: coefficient.value for key, coefficient in self.model.coefficients.items()}
        flop_j = value[FLOP + group] + value[L2] * self.l2_per_flop[group]
        return EnergyRoofline(flop_j, value[HBM], value[P0], float(point.line.power_limit_w), point.roofs)


def energy_fit(material: Material, place: Place) -> EnergyFit:
    """The model of sustained cases on normal data and of reads of memory."""
    lines = at(material.origin("record"), place)
    fitted, tested = halves(energy_samples(usual(lines), material.profiles))
    samples = fitted + memory_samples(lines, material.profiles)
    ordered = sorted(fitted, key=lambda sample: sample.flop / sample.hbm_bytes)
    l2_per_flop = {sample.group: sample.l2_bytes / sample.flop for sample in ordered}
    try:
        model = fit_energy(samples)
    except ValueError as error:
        return EnergyFit(None, str(error).removeprefix("fit_energy: "), len(samples), None, l2_per_flop)
    below = [key for key, coefficient in model.coefficients.items() if coefficient.value <= 0]
    if below:
        why = f"the fit of {len(samples)} samples makes {', '.join(below)} no positive number; more samples are needed"
        return EnergyFit(None, why, len(samples), None, l2_per_flop)
    known = [sample for sample in tested if sample.terms.keys() <= model.coefficients.keys()]
    return EnergyFit(model, "", len(samples), check_energy(model, known) if known else None, l2_per_flop)
