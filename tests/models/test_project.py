"""The calculator against arithmetic by hand."""

from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from narrowbench.cli import app
from narrowbench.errors import ConfigError
from narrowbench.models import hardware
from narrowbench.models.project import (
    Scenario,
    check_factor,
    factor_text,
    load_projections,
    saving,
    saving_text,
    scenario_of,
)


def _scenario(**changes: Any) -> Scenario:
    inputs: dict[str, Any] = {
        "gpus": 10,
        "hours_per_day": 20,
        "gemm_share": 0.5,
        "gain": 0.25,
        "power_w": 500,
        "pue": 1.5,
        "price_per_kwh": 0.2,
        "carbon_kg_per_kwh": 0.3,
    }
    return Scenario(**(inputs | changes))


def test_a_gain_in_throughput_by_hand() -> None:
    """Half the step runs 1.25 times as fast: 0.5 × 0.2 = 0.1 of 200 GPU-hours."""
    day = saving(_scenario())
    assert day.share_of_step == pytest.approx(0.1)
    assert day.gpu_hours == pytest.approx(20)
    assert day.energy_kwh == pytest.approx(15)
    assert day.money == pytest.approx(3)
    assert day.carbon_kg == pytest.approx(4.5)


def test_a_gain_in_time_by_hand() -> None:
    assert saving(_scenario(gain_in="time")).share_of_step == pytest.approx(0.125)


def test_the_claim_of_256_gpus() -> None:
    """614 GPU-hours only if the step is nothing but GEMM and the gain is one of time."""
    projections = load_projections()
    assert saving(projections.scenarios["claim-22-as-written"]).gpu_hours == pytest.approx(614.4)
    assert saving(projections.scenarios["claim-22-with-a-step"]).gpu_hours == pytest.approx(256 * 24 * 0.6 / 11)


def test_the_text_shows_every_input_and_result() -> None:
    text = saving_text(_scenario(note="why"))
    for shown in ("why", "0.5 ×", "1 / 1.25", "10 GPUs", "20 h", "20.0 a day", "0.5 kW", "PUE 1.5", "15.0 kWh a day"):
        assert shown in text
    for shown in ("× 0.2 = 3.00 USD", "× 0.3 kg = 4.5 kg CO2e"):
        assert shown in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gemm_share": 1.1}, "gemm_share"),
        ({"gpus": 0}, "gpus"),
        ({"pue": 0.9}, "pue"),
        ({"gain": 1.0, "gain_in": "time"}, "gain=1.0 of time"),
        ({"gain": 0}, "gain"),
        ({"price_kwh": 1}, "did you mean price_per_kwh"),
    ],
)
def test_impossible_inputs_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _scenario(**change)


def test_inputs_replace_those_of_a_named_scenario() -> None:
    projections = load_projections()
    changed = scenario_of("claim-22-as-written", {"gpus": 512}, projections)
    assert saving(changed).gpu_hours == pytest.approx(1228.8)
    assert changed.note == ""
    with pytest.raises(ConfigError, match="project: claim-22-as-written: gemm_share"):
        scenario_of("claim-22-as-written", {"gemm_share": 2.0}, projections)
    with pytest.raises(ValueError, match="did you mean claim-22-as-written"):
        scenario_of("claim-22-as-writen", {}, projections)
    with pytest.raises(ConfigError, match=r"project: gemm_share: Field required"):
        scenario_of(None, {"gpus": 4}, projections)


def test_the_command_shows_the_claims_and_takes_inputs() -> None:
    worked = CliRunner().invoke(app, ["project"])
    assert "614.4 a day" in worked.stdout
    assert "8.5 times" in worked.stdout
    inputs = ["--gpus", "10", "--gemm-share", "0.5", "--gain", "0.25", "--power-w", "500", "--pue", "1.5"]
    prices = ["--price-per-kwh", "0.2", "--carbon-kg-per-kwh", "0.3", "--hours-per-day", "20", "--currency", "EUR"]
    assert "3.00 EUR a day" in CliRunner().invoke(app, ["project", *inputs, *prices]).stdout


def test_data_sheets_explain_a_small_part_of_25_times() -> None:
    """700/1978.9 over 1200/10000 = 2.95 a FLOP; 700/3.35 over 1200/8 × 0.5625 = 2.48 a weight; 25 / 2.95 = 8.5."""
    profiles = hardware.load_profiles()
    factor = load_projections().factors["claim-36"]
    found = check_factor(factor, profiles)
    assert found.compute == pytest.approx(2.948, rel=1e-3)
    assert found.memory == pytest.approx(2.476, rel=1e-3)
    assert found.rest == pytest.approx(8.48, rel=1e-3)
    assert "8.5 times" in factor_text(factor, profiles)


def test_a_device_without_the_rate_is_refused() -> None:
    factor = load_projections().factors["claim-36"].model_copy(update={"old_format": "nvfp4"})
    with pytest.raises(ValueError, match="no rate of nvfp4: no FP4 tensor-core"):
        check_factor(factor, hardware.load_profiles())
