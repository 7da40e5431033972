"""A campaign in one process: its jobs in order, within a budget, whole or in part."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from narrowbench.config import Campaign, Protocol
from narrowbench.errors import ConfigError
from narrowbench.measure import runner
from narrowbench.measure.bench import Bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.store.rows import Row


def test_a_campaign_goes_through_its_jobs_and_leaves_what_its_budget_does_not_allow(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_roofs", lambda *_: runner.JobReport({}, 0, ()))
    entry = campaign.plan["cpu"][0].model_copy(update={"kernels": ["xla_dot_f32", "xla_dot_bf16"]})
    planned = campaign.model_copy(update={"plan": {"cpu": [entry]}})

    def reports(budget_s: float | None) -> list[runner.JobReport]:
        jobs = list(runner.run_campaign(cpu, planned, protocol, tmp_path, budget_s))
        files = [tmp_path / cpu.slug / name for name in ("xla_dot_f32/smoke", "xla_dot_bf16/smoke", "roofs")]
        assert [out for out, _ in jobs] == [file.with_suffix(".jsonl") for file in files]
        return [report for _, report in jobs[:-1]]

    assert [len(report.left) for report in reports(0.0)] == [4, 4]
    assert [report.done for report in reports(None)] == [{"ok": 4}] * 2
    assert [report.skipped for report in reports(None)] == [4, 4]


def test_part_of_a_campaign_is_its_jobs_of_these_kernels_without_the_roofs(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path
) -> None:
    entry = campaign.plan["cpu"][0].model_copy(update={"kernels": ["xla_dot_f32", "xla_dot_bf16"]})
    planned = campaign.model_copy(update={"plan": {"cpu": [entry]}})

    def files(part: runner.Part) -> list[Path]:
        return [out for out, _ in runner.run_campaign(cpu, planned, protocol, tmp_path, 0.0, part)]

    only = [tmp_path / cpu.slug / "xla_dot_bf16" / "smoke.jsonl"]
    assert files(runner.Part(kernels=["xla_dot_bf16"])) == only
    assert files(runner.Part(kernels=["xla_dot_bf16"], suites=["smoke"])) == only
    with pytest.raises(ValueError, match="did you mean xla_dot_f32"):
        files(runner.Part(kernels=["xla_dot_f23"]))
    with pytest.raises(ValueError, match="suite of this campaign"):
        files(runner.Part(suites=["square"]))


def test_a_plan_for_other_devices_alone_is_refused_and_one_for_none_has_the_roofs(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_roofs", lambda *_: runner.JobReport({}, 0, ()))
    elsewhere = campaign.model_copy(update={"plan": {"hopper": campaign.plan["cpu"]}})
    with pytest.raises(ConfigError, match="of class cpu; it plans for hopper"):
        list(runner.run_campaign(cpu, elsewhere, protocol, tmp_path, None))
    roofs_alone = campaign.model_copy(update={"plan": {}})
    ((out, _),) = runner.run_campaign(cpu, roofs_alone, protocol, tmp_path, None)
    assert out.name == "roofs.jsonl"


def test_a_budget_goes_to_the_jobs_that_the_plan_names_first(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = campaign.plan["cpu"][0].model_copy(update={"kernels": ["xla_dot_f32", "xla_dot_bf16"]})
    planned = campaign.model_copy(update={"plan": {"cpu": [entry]}})
    clock, budgets = SimpleNamespace(now=0.0), []

    def job(_device: object, _kernel: str, _suite: str, share: Campaign, *_: object) -> runner.JobReport:
        budgets.append(share.job_budget_s)
        clock.now += 60.0
        return runner.JobReport({}, 0, ())

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(runner, "run_job", job)
    monkeypatch.setattr(runner, "run_roofs", lambda _, share, *__: job(cpu, "", "", share))
    list(runner.run_campaign(cpu, planned, protocol, tmp_path, 100.0))
    assert budgets == [100.0, 40.0, 0.0]


def test_no_case_is_begun_after_the_budget_not_even_one_that_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)

    def measure(*_: object) -> list[Row]:
        clock.now += 60.0
        return []

    tasks = [runner.Task(str(i), lambda _: None, measure, beside=True) for i in range(4)]
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: clock.now))
    _, left = runner.run_tasks("four", tasks, Bench.__new__(Bench), tmp_path / "rows.jsonl", 100.0)
    assert left == ("2", "3")
