"""Checks without timing: each kernel and problem once, wrong ones named, a report that a kill leaves readable."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrowbench import cli
from narrowbench.config import Campaign, Protocol
from narrowbench.measure import checking, gemm, many
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.runner import Part
from narrowgemm.gemm.registry import kernel_named

KERNELS = ["xla_dot_f32", "xla_dot_bf16"]


@pytest.fixture
def planned(campaign: Campaign) -> Campaign:
    entry = campaign.plan["cpu"][0].model_copy(update={"kernels": [*KERNELS, "cublaslt_bf16"]})
    return campaign.model_copy(update={"plan": {"cpu": [entry]}})


def _kernel(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """`name` is another kernel to the checks."""
    other = dataclasses.replace(kernel_named(name), **changes)
    monkeypatch.setattr(checking, "kernel_named", lambda asked: other if asked == name else kernel_named(asked))


def _report(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| xla")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_kernel_and_problem_is_checked_once_and_reported(
    cpu: LocalDevice, planned: Campaign, protocol: Protocol, tmp_path: Path
) -> None:
    cases = checking.cases_to_check(planned, cpu)
    assert len({(case.kernel, case.problem) for case in cases}) == len(cases)
    assert {case.kernel for case in cases} == set(KERNELS)
    out = tmp_path / "new" / "checks.md"
    assert checking.run_checks(cpu, cases, protocol, 7, out) == {"right": len(cases)}
    lines = _report(out)
    assert [line[0] for line in lines] == [case.kernel for case in cases]
    assert all(float(line[5]) <= float(line[6]) for line in lines)
    assert "seed 7" in out.read_text(encoding="utf-8")


def test_batches_and_groups_are_checked_as_such(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"kernels": [*KERNELS, "xla_scaled_dot_mxfp8"], "suites": ["smoke_groups"], "modes": ["burst"]}
    planned = campaign.model_copy(update={"plan": {"cpu": [campaign.plan["cpu"][0].model_copy(update=changes)]}})
    cases = checking.cases_to_check(planned, cpu)
    assert checking.run_checks(cpu, cases, protocol, 7, tmp_path / "checks.md") == {"right": 4, "unsupported": 2}
    assert [line[1] for line in _report(tmp_path / "checks.md")] == ["64×64×64 4 batched", "50×64×64 4 ragged"] * 3
    right = many.chosen_launch

    def spoilt(case: Any) -> Any:
        launch, config = right(case)
        return lambda *operands: launch(*operands).at[-1].add(1.0), config

    monkeypatch.setattr(checking, "chosen_launch", spoilt)
    assert checking.run_checks(cpu, cases[:2], protocol, 7, tmp_path / "checks.md") == {"wrong": 2}


def test_a_wrong_a_failing_and_a_refused_case_are_lines_of_their_own(
    cpu: LocalDevice, planned: Campaign, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = checking.cases_to_check(planned, cpu, Part(kernels=KERNELS[:1]))

    def verdicts(matmul: Callable[..., Any]) -> set[str]:
        with monkeypatch.context() as patch:
            _kernel(patch, KERNELS[0], matmul=matmul)
            checking.run_checks(cpu, cases, protocol, 1, tmp_path / "checks.md")
        return {line[4] for line in _report(tmp_path / "checks.md")}

    def broken(*_: object) -> None:
        raise RuntimeError("no such | luck")

    assert verdicts(lambda a, b, *_: 1.01 * (a @ b.T)) == {"wrong"}
    assert verdicts(broken) == {"failed"}
    monkeypatch.setattr(checking, "admitted", gemm.admitted)
    _kernel(monkeypatch, KERNELS[0], arch="hopper")
    assert checking.run_checks(cpu, cases, protocol, 1, tmp_path / "checks.md") == {"unsupported": len(cases)}


def test_fresh_operands_are_others_each_time(
    cpu: LocalDevice, planned: Campaign, protocol: Protocol, tmp_path: Path
) -> None:
    cases = checking.cases_to_check(planned, cpu, Part(kernels=KERNELS[:1]))[:1]

    def error(seed: int) -> str:
        checking.run_checks(cpu, cases, protocol, seed, tmp_path / "checks.md")
        return _report(tmp_path / "checks.md")[0][5]

    assert error(1) == error(1)
    assert error(1) != error(2)


def test_the_command_ends_with_status_1_where_a_kernel_is_wrong(
    cpu: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["check", "--device", cpu.slug, "--config", str(cli.ROOT / "configs" / "smoke.yaml")]
    arguments += ["--kernel", KERNELS[0], "--out", str(tmp_path / "checks.md")]
    from typer.testing import CliRunner

    assert CliRunner().invoke(cli.app, arguments).exit_code == 0
    _kernel(monkeypatch, KERNELS[0], matmul=lambda a, b, *_: 1.01 * (a @ b.T))
    told = CliRunner().invoke(cli.app, arguments)
    assert told.exit_code == 1
    assert "wrong" in told.output


def test_what_leaves_no_kernel_of_this_library_to_check_is_refused(cpu: LocalDevice, planned: Campaign) -> None:
    with pytest.raises(
        ValueError, match=r"class cpu \(cublaslt_bf16\); baselines of other libraries are checked where"
    ):
        checking.cases_to_check(planned, cpu, Part(kernels=["cublaslt_bf16"]))
    with pytest.raises(ValueError, match="nothing is planned"):
        checking.cases_to_check(planned.model_copy(update={"plan": {}}), cpu)


def test_a_pair_of_names_that_no_job_has_is_refused() -> None:
    jobs = [("one", "first"), ("two", "second")]
    assert Part(["one"], ["first"]).of(jobs) == jobs[:1]
    with pytest.raises(ValueError, match="no job one × second; `narrowbench plan` lists"):
        Part(["one"], ["second"]).of(jobs)
    assert Part().of([]) == []
