"""The energy model on synthetic launches whose coefficients are known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from narrowbench.models.energy import (
    FLOP,
    HBM,
    L2,
    P0,
    Coefficient,
    EnergyRoofline,
    EnergySample,
    check_energy,
    fit_energy,
)
from narrowbench.models.prediction import check_predictions, halves
from narrowbench.models.roofline import Roofs

TRUE = {FLOP + "bf16 normal": 0.6e-12, FLOP + "fp8 normal": 0.35e-12, HBM: 40e-12, L2: 8e-12, P0: 150.0}
SHAPES = [(m, n, k) for m in (16, 256, 2048, 8192) for n in (2048, 8192) for k in (2048, 4096, 16384)]


def _samples(noise: float = 0.0, seed: int = 0, shapes: Sequence[tuple[int, int, int]] = SHAPES) -> list[EnergySample]:
    rng = np.random.default_rng(seed)
    samples = []
    for group, size in (("bf16 normal", 2), ("fp8 normal", 1)):
        for m, n, k in shapes:
            flop, hbm = 2.0 * m * n * k, float(size * (m * k + n * k) + 2 * m * n)
            time = flop / (7e14 * 2 / size) + hbm / 4e12 + 3e-6
            l2 = flop * size / min(m, 128)  # small M has small tiles: with one tile for all, L2 would follow FLOP
            s = EnergySample(f"{group} {m}x{n}x{k}", (m, n, k), group, flop, hbm, l2, time, 1.0)
            joules = sum(TRUE[key] * amount for key, amount in s.terms.items())
            samples.append(replace(s, energy_j=joules * (1 + noise * rng.standard_normal())))
    return samples


def test_exact_launches_give_the_coefficients_back() -> None:
    model = fit_energy(_samples())
    for key, value in TRUE.items():
        assert model.coefficients[key].value == pytest.approx(value, rel=1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rounds = 200
    inside = dict.fromkeys(TRUE, 0)
    for seed in range(rounds):
        for key, coefficient in fit_energy(_samples(0.02, seed)).coefficients.items():
            assert coefficient.interval is not None
            inside[key] += coefficient.interval.contains(TRUE[key])
    for key, count in inside.items():
        assert 0.90 <= count / rounds <= 0.99, key


def test_a_model_of_one_half_predicts_the_other() -> None:
    first, second = halves(_samples(0.02))
    assert not {s.shape for s in first} & {s.shape for s in second}
    assert {s.group for s in first} == {s.group for s in second}
    check = check_energy(fit_energy(first), second)
    assert len(check.errors) == len(second)
    assert check.median_absolute < 0.03
    assert abs(check.bias) < 0.02


def test_a_wrong_model_shows_where_it_fails() -> None:
    samples = _samples()
    heated = [replace(s, energy_j=2 * s.energy_j) if s.shape == (16, 2048, 2048) else s for s in samples]
    worst = [name for name, _ in check_energy(fit_energy(samples), heated).worst(2)]
    assert {name.split()[-1] for name in worst} == {"16x2048x2048"}


def test_a_known_coefficient_is_held() -> None:
    model = fit_energy(_samples(), known={P0: Coefficient(150.0, None)})
    assert model.coefficients[P0] == Coefficient(150.0, None)
    assert model.coefficients[HBM].value == pytest.approx(TRUE[HBM], rel=1e-6)


def test_coefficients_that_cannot_be_told_apart_are_named() -> None:
    proportional = [replace(s, time_s=s.hbm_bytes / 4e12) for s in _samples()]
    with pytest.raises(ValueError, match=r"hbm_j_per_byte, p0_w.*`known`"):
        fit_energy(proportional)


def test_an_absent_term_and_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no sample has any l2_j_per_byte.*`known`"):
        fit_energy([replace(s, l2_bytes=0.0) for s in _samples()])
    with pytest.raises(ValueError, match="4 samples for 4 coefficients"):
        fit_energy(_samples(shapes=SHAPES[:4])[:4])


def test_an_unknown_group_is_refused() -> None:
    sample = replace(_samples()[0], group="fp4 zeros")
    with pytest.raises(ValueError, match=r"fp4 zeros.*bf16 normal, fp8 normal"):
        fit_energy(_samples()).energy_j(sample)


def test_predictions_need_names_and_positive_measurements() -> None:
    with pytest.raises(ValueError, match="no predictions"):
        check_predictions([], [], [])
    with pytest.raises(ValueError, match="not positive"):
        check_predictions(["a"], [1], [0])


def test_energy_roofline_by_hand() -> None:
    """100 W + 1 pJ/FLOP and 50 pJ/byte under 700 W: power binds above 50 FLOP/byte or so, memory far below."""
    line = EnergyRoofline(1e-12, 50e-12, 100.0, 700.0, Roofs(4e12, 1e15))
    assert line.balance_flop_per_byte == 50
    assert line.rate_flop_per_s(10) == 4e13
    assert line.power_w(10) == pytest.approx(100 + 4e13 * 6e-12)
    assert line.power_roof_flop_per_s(100) == pytest.approx(600 / 1.5e-12)
    assert line.rate_flop_per_s(1e6) == pytest.approx(600 / 1.00005e-12)
    assert line.power_w(1e6) == pytest.approx(700)
    assert line.efficiency_flop_per_j(1e6) == pytest.approx(line.rate_flop_per_s(1e6) / 700)
