"""The energy model of figures: fitted on half of a device's shapes, tested on the rest. No Matplotlib."""

from dataclasses import dataclass

import pandas as pd

from narrowbench.models.energy import (
    FLOP,
    HBM,
    L2,
    P0,
    Coefficient,
    EnergyModel,
    EnergyRoofline,
    EnergySample,
    check_energy,
    fit_energy,
)
from narrowbench.models.prediction import Check, halves
from narrowbench.models.samples import energy_samples, group_of, memory_samples
from narrowbench.models.statistics import summarise
from narrowbench.models.toggles import ORDERED
from narrowbench.report.held_roofs import HeldPoint
from narrowbench.report.load import Material
from narrowbench.report.select import Place, at, places, timed
from narrowbench.report.units import number

#: Coefficients that all formats share: name for people, unit, what makes SI of it.
COEFFICIENTS = {HBM: ("ε_hbm", "pJ/byte", 1e-12), L2: ("ε_l2", "pJ/byte", 1e-12), P0: ("P_0", "W", 1.0)}


@dataclass(frozen=True)
class EnergyFit:
    """The model of a place, or why there is none.

    samples:      that the fit saw, or would have seen: GEMMs of half of the shapes, and reads and copies.
    fitted:       its GEMMs.
    tested:       GEMMs of the other half whose format and data the fit knows.
    check:        errors on those; None where there are none.
    l2_per_flop:  bytes from the L2 a FLOP of each group, in its case of highest intensity.
    """

    model: EnergyModel | None
    why_not: str
    samples: int
    fitted: tuple[EnergySample, ...]
    tested: tuple[EnergySample, ...]
    check: Check | None
    l2_per_flop: dict[str, float]

    def roofline(self, point: HeldPoint) -> EnergyRoofline | None:
        """The energy roofline of a case's formats and data; None without a model of them."""
        group = group_of(point.line)
        if self.model is None or FLOP + group not in self.model.coefficients:
            return None
        value = {key: coefficient.value for key, coefficient in self.model.coefficients.items()}
        flop_j = value[FLOP + group] + value[L2] * self.l2_per_flop[group]
        return EnergyRoofline(flop_j, value[HBM], value[P0], float(point.line.power_limit_w), point.roofs)


def metered_places(material: Material) -> list[Place]:
    """Places of the record where the energy of a GEMM was measured, the fastest first."""
    record = material.origin("record")
    return [place for place in places(record) if at(timed(record), place).energy_j.notna().any()]


def energy_fit(material: Material, place: Place) -> EnergyFit:
    """The model of sustained cases, rotated operands, on any data, and of reads and copies.

    P_0 is held at the idle power that was read: where the power limit sets every launch's time, energy is the limit
    times time, which a free P_0 fits whatever the work was. Ordered operands stay out: each order would have one case,
    and a coefficient of its own that fits it whatever it is.
    """
    lines = at(material.origin("record"), place)
    gemms = timed(lines)
    gemms = gemms[~gemms.distribution.isin(ORDERED)]
    gemms = gemms[(gemms.cache == "rotated") & (gemms.epilogue == "none")]
    fitted, tested = halves(energy_samples(gemms, material.profiles))
    samples = fitted + memory_samples(lines, material.profiles)
    ordered = sorted(fitted, key=lambda sample: sample.flop / sample.hbm_bytes)
    l2_per_flop = {sample.group: sample.l2_bytes / sample.flop for sample in ordered}
    try:
        model = _sound_model(samples, {P0: _idle(gemms)})
    except ValueError as error:
        return EnergyFit(
            None, str(error).removeprefix("fit_energy: "), len(samples), tuple(fitted), (), None, l2_per_flop
        )
    known = tuple(sample for sample in tested if sample.terms.keys() <= model.coefficients.keys())
    check = check_energy(model, known) if known else None
    return EnergyFit(model, "", len(samples), tuple(fitted), known, check, l2_per_flop)


def _idle(gemms: pd.DataFrame) -> Coefficient:
    """Power without work, of all readings. Raises ValueError where none was taken."""
    readings = gemms.idle_w.dropna().to_numpy(float)
    if not len(readings):
        raise ValueError("idle power, which the model takes as it was read, was not read")
    summary = summarise(readings)
    return Coefficient(summary.median, summary.interval)


def _sound_model(samples: list[EnergySample], known: dict[str, Coefficient]) -> EnergyModel:
    """The fit. Raises ValueError where there are too few samples, or where a coefficient would be no energy at all.

    Arithmetic on other than normal data may cost so little that its coefficient is not told from nought: that is a
    finding, and its interval says so.
    """
    keys = {key for sample in samples for key in sample.terms} - known.keys()
    if len(samples) <= len(keys):
        raise ValueError(f"too few runs: {len(samples)} of {len(keys) + 1} that {len(keys)} coefficients need")
    model = fit_energy(samples, known)
    below = [
        key.replace(FLOP, "ε_flop of ")
        for key, coefficient in model.coefficients.items()
        if coefficient.value <= 0 and (key in (HBM, L2) or key.endswith(", normal"))
    ]
    if below:
        raise ValueError(
            f"the fit of {len(samples)} samples makes {', '.join(below)} no positive number; more samples are needed"
        )
    return model


def bounds(found: Coefficient, scale: float) -> tuple[float, float, float]:
    """A coefficient and its interval's ends over `scale`."""
    interval = found.interval
    low, high = (found.value, found.value) if interval is None else (interval.low, interval.high)
    return found.value / scale, low / scale, high / scale


def in_words(found: Coefficient, scale: float) -> str:
    """A coefficient and its interval to three digits, without a unit."""
    middle, low, high = (number(value, 3) for value in bounds(found, scale))
    return f"{middle} [{low}, {high}]"
