"""Energy of a GEMM as a sum of what its work, its traffic and its time cost, and the rooflines that follow. No JAX.

E = W·ε_flop(format, data) + Q_hbm·ε_hbm + Q_l2·ε_l2 + P_0·T, after Choi, Bedard, Fowler and Vuduc, «A Roofline Model of
Energy» (IPDPS 2013), with one ε_flop for each format and data distribution, because toggling bits cost energy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from narrowbench.models.prediction import Check, ShapeMnk, check_predictions
from narrowbench.models.roofline import Roofs
from narrowbench.models.statistics import Interval

#: Coefficients that all groups share. The others are J/FLOP and are called `flop_j:<group>`.
HBM, L2, P0 = "hbm_j_per_byte", "l2_j_per_byte", "p0_w"
FLOP = "flop_j:"

#: Columns whose smallest singular value lies below this share of the largest cannot be told apart in double precision
#: data of a per-cent accuracy.
_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True)
class EnergySample:
    """What one case did and cost, a launch.

    group:  format and data distribution, for example «fp8_e4m3 normal».
    kernel: None for a launch that only moves bytes.
    """

    name: str
    shape: ShapeMnk
    group: str
    flop: float
    hbm_bytes: float
    l2_bytes: float
    time_s: float
    energy_j: float
    kernel: str | None = None

    @property
    def terms(self) -> dict[str, float]:
        """What each coefficient multiplies; a launch without arithmetic has no term of it."""
        work = {FLOP + self.group: self.flop} if self.flop else {}
        return work | {HBM: self.hbm_bytes, L2: self.l2_bytes, P0: self.time_s}


@dataclass(frozen=True)
class Coefficient:
    """A coefficient in the unit its key names; `interval` is None where it was given without one."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class EnergyModel:
    """Coefficients by key."""

    coefficients: dict[str, Coefficient]

    def terms_j(self, sample: EnergySample) -> dict[str, float]:
        """Joules of each term. Raises ValueError for a group that the model was not fitted on."""
        if not sample.terms.keys() <= self.coefficients.keys():
            known = ", ".join(sorted(key.removeprefix(FLOP) for key in self.coefficients if key.startswith(FLOP)))
            raise ValueError(f"{sample.name}: no ε_flop for {sample.group!r}; fitted: {known}")
        return {key: self.coefficients[key].value * amount for key, amount in sample.terms.items()}

    def energy_j(self, sample: EnergySample) -> float:
        """Joules of a launch."""
        return sum(self.terms_j(sample).values())


def fit_energy(
    samples: Sequence[EnergySample], known: Mapping[str, Coefficient] | None = None, confidence: float = 0.95
) -> EnergyModel:
    """Coefficients by least squares on relative errors, each with its interval.

    samples:   measured cases, of any groups.
    known:     coefficients held at a value measured otherwise, by key (idle power, bytes of a copy).
    Raises ValueError for too few samples, or naming the coefficients that these samples cannot tell apart.
    Intervals assume independent relative errors of one size; a coefficient whose interval holds 0 is not established.
    """
    given = dict(known or {})
    keys = sorted({key for sample in samples for key in sample.terms} - given.keys())
    energy = np.array([sample.energy_j for sample in samples])
    design = np.array([[sample.terms.get(key, 0.0) for key in keys] for sample in samples])
    held_j = np.array([sum(c.value * s.terms.get(key, 0.0) for key, c in given.items()) for s in samples])
    if len(samples) <= len(keys):
        raise ValueError(f"fit_energy: {len(samples)} samples for {len(keys)} coefficients; more samples are needed")
    values, deviations = _least_squares(design / energy[:, None], 1 - held_j / energy, keys)
    reach = special.stdtrit(len(samples) - len(keys), (1 + confidence) / 2) * deviations
    fitted = {
        key: Coefficient(float(value), Interval(float(value - r), float(value + r), confidence))
        for key, value, r in zip(keys, values, reach, strict=True)
    }
    return EnergyModel(fitted | given)


def _least_squares(design: np.ndarray, target: np.ndarray, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Solution and standard deviations. Columns are scaled to length one first: their units differ by 14 decades."""
    lengths = np.linalg.norm(design, axis=0)
    if not np.all(lengths > 0):
        raise ValueError(f"fit_energy: no sample has any {keys[int(np.argmin(lengths))]}; give its value in `known`")
    scaled = design / lengths
    _, singular, rows = np.linalg.svd(scaled, full_matrices=False)
    if singular[-1] < _RANK_TOLERANCE * singular[0]:
        alike = [key for key, share in zip(keys, rows[-1], strict=True) if abs(share) > 0.1]
        raise ValueError(
            f"fit_energy: these samples cannot tell apart {', '.join(alike)}; "
            "add samples where they differ, or give one of them in `known`"
        )
    solution, *_ = np.linalg.lstsq(scaled, target, rcond=None)
    residual = target - scaled @ solution
    variance = residual @ residual / (len(target) - len(keys))
    covariance = variance * np.linalg.inv(scaled.T @ scaled)
    return solution / lengths, np.sqrt(np.diag(covariance)) / lengths


def check_energy(model: EnergyModel, samples: Sequence[EnergySample]) -> Check:
    """Relative errors of the model on samples, by name."""
    predicted = [model.energy_j(sample) for sample in samples]
    return check_predictions([s.name for s in samples], predicted, [s.energy_j for s in samples])


@dataclass(frozen=True)
class EnergyRoofline:
    """Rate, power and efficiency over arithmetic intensity, of one device, format and data distribution.

    flop_j, byte_j, p0_w: coefficients of the model; bytes are those of memory.
    roofs:                memory and arithmetic, without power, which follows here from `cap_w`.
    """

    flop_j: float
    byte_j: float
    p0_w: float
    cap_w: float
    roofs: Roofs

    def work_j_per_flop(self, intensity_flop_per_byte: float) -> float:
        """Energy of a FLOP and of its share of the traffic, without constant power."""
        return self.flop_j + self.byte_j / intensity_flop_per_byte

    def power_roof_flop_per_s(self, intensity_flop_per_byte: float) -> float:
        """Rate at which constant power and work together reach the limit."""
        return (self.cap_w - self.p0_w) / self.work_j_per_flop(intensity_flop_per_byte)

    def rate_flop_per_s(self, intensity_flop_per_byte: float) -> float:
        """Attainable rate under all three roofs."""
        other = self.roofs.attainable_flop_per_s(intensity_flop_per_byte)
        return min(other, self.power_roof_flop_per_s(intensity_flop_per_byte))

    def power_w(self, intensity_flop_per_byte: float) -> float:
        """Power at the attainable rate."""
        rate = self.rate_flop_per_s(intensity_flop_per_byte)
        return self.p0_w + rate * self.work_j_per_flop(intensity_flop_per_byte)

    def efficiency_flop_per_j(self, intensity_flop_per_byte: float) -> float:
        """FLOP a joule at the attainable rate: the energy roofline."""
        return self.rate_flop_per_s(intensity_flop_per_byte) / self.power_w(intensity_flop_per_byte)

    @property
    def balance_flop_per_byte(self) -> float:
        """Intensity at which traffic costs as much energy as arithmetic."""
        return self.byte_j / self.flop_j
