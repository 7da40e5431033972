"""How long a campaign keeps a device, by hand."""

import pytest

from narrowbench.config import CONFIGS, Campaign, load_campaign, load_protocol, parse
from narrowbench.models.boardtime import planned_jobs, told

STOP = {"min_samples": 10, "max_samples": 20, "budget_s": 120.0}
PROTOCOL = {
    "burst": {"train_s": 0.02, "idle_s": 0.05, "warm_up_s": 0.01, "stop": STOP | {"budget_s": 1.0}},
    "sustained": {"warm_up_s": 10.0, "window_s": 5.0, "start_jitter_s": 0.1, "stop": STOP},
}
ENTRY = {"kernels": ["xla_dot_f32"], "suites": ["smoke"], "modes": ["sustained"]}


def _seconds(**entry: object) -> tuple[int, float, float]:
    data = {"title": "t", "roof_modes": ["burst"], "plan": {"cpu": [ENTRY | entry]}, "protocol": PROTOCOL}
    campaign = parse(Campaign, data, "mine")
    (job,) = planned_jobs(campaign, load_protocol(campaign), "cpu")
    return job.cases, job.sampling_s.low, job.sampling_s.high


def test_a_sustained_case_takes_its_windows_and_at_most_the_warm_up_and_the_budget() -> None:
    assert _seconds() == (2, 2 * 50.0, pytest.approx(2 * (10 + 20 * 5.1)))
    assert _seconds(windows_s=[0.5]) == (2, 2 * 5.0, pytest.approx(2 * (10 + 20 * 0.6)))
    assert _seconds(windows_s=[10.0]) == (2, 2 * 100.0, pytest.approx(2 * (10 + 120 + 10.1)))


def test_a_burst_takes_its_trains_with_the_idling_before_them() -> None:
    assert _seconds(modes=["burst"]) == (2, pytest.approx(2 * 0.8), pytest.approx(2 * 1.08))


def test_the_campaign_of_energy_is_about_fifty_cases_of_about_a_minute() -> None:
    campaign = load_campaign(CONFIGS / "energy.yaml")
    jobs = planned_jobs(campaign, load_protocol(campaign), "hopper")
    cases = sum(job.cases for job in jobs)
    assert 45 <= cases <= 60
    assert 45 * cases < sum(job.sampling_s.low for job in jobs) < 60 * cases
    assert all(
        setting.mode == "sustained" for k, s in campaign.jobs("hopper") for setting in campaign.settings("hopper", k, s)
    )
    *lines, total = told(campaign, load_protocol(campaign))
    assert len(lines) == len(jobs)
    assert total.startswith(f"hopper: {cases} cases, ")
