"""Search spaces: every config has its outcome, a stopped run goes on, and no compiler is needed to show it."""

from pathlib import Path

import pytest

from narrowbench.config import CONFIGS, Campaign, load_campaign, parse
from narrowbench.measure import space
from narrowbench.store import jsonl
from narrowgemm import aot
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import kernel_named, kernel_names
from narrowgemm.machine_code import MachineCode
from narrowgemm.problem import GemmProblem
from narrowgemm.targets import TARGETS

KERNEL = "blackwell_tcgen05_bf16"
SQUARE = GemmProblem(8192, 8192, 8192, "bf16", "bf16", "bf16")


@pytest.fixture
def campaign() -> Campaign:
    entry = {"kernels": [KERNEL], "suites": ["compiled"], "targets": ["b300", "b200", "h200"]}
    return parse(Campaign, {"title": "t", "plan": {}, "space": [entry], "roof_modes": ["burst"]}, "test")


def _code(case: aot.CompileCase) -> MachineCode:
    counts = {"UTCHMMA": 4, "UTMALDG.2D": 2, "LDTM": 8}
    resources = {"registers": 64, "spill_bytes": 0, "shared_memory_bytes": 1024, "tensor_memory_columns": 512}
    others = {"threads": 192, "code_bytes": 4096, "instructions": counts, "instruction_count": 100}
    versions = {"ptxas": "13"}
    return MachineCode(
        case.target, "sm_100a", dict(case.config or {}), **resources, **others, compile_s=1.23456, versions=versions
    )


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[aot.CompileCase]:
    """Cases that were compiled; those of one block alone fail."""
    done: list[aot.CompileCase] = []

    def compile_each(cases):
        for case in cases:
            done.append(case)
            if case.config["ctas"] == 1:
                yield aot.Outcome(case, "failed", None, "synthetic:\n  " + "long " * 200)
            else:
                yield aot.Outcome(case, "ok", _code(case), None)

    monkeypatch.setattr(aot, "compile_each", compile_each)
    return done


def _rows(raw: Path, device: str) -> list:
    return jsonl.read([raw / device / "space" / f"{KERNEL}.jsonl"])


def test_every_config_has_its_outcome_in_the_kernels_order(campaign, compiled, tmp_path: Path) -> None:
    lines = list(space.run_space(KERNEL, campaign, tmp_path))
    offered = [vars(config) for config in kernel_named(KERNEL).candidates(SQUARE)]
    for device in ("nvidia-b200", "nvidia-b300"):
        rows = _rows(tmp_path, device)
        configs = [config for row in rows for config in row.space.configs]
        assert [config.config for config in configs] == offered
        assert all((config.status == "ok") == (config.config["ctas"] == 2) for config in configs)
        assert {row.provenance.device for row in rows} == {device}
        assert {row.evidence for row in rows} == {"compiled"}
        assert rows[0].provenance.versions["ptxas"] == "13"
    assert not (tmp_path / "nvidia-h200").exists()
    assert [case.target for case in compiled] == ["b200"] * len(offered) + ["b300"] * len(offered)
    assert lines[0].startswith(f"{KERNEL} for b200, configs from 0: ")

    config = next(config for config in configs if config.status == "ok")
    assert (config.multiplies, config.compile_s, config.tensor_memory_columns) == ({"UTCHMMA": 4}, 1.235, 512)
    refused = next(config for config in configs if config.status == "failed")
    assert refused.registers is None
    assert refused.reason.startswith("synthetic: long")
    assert len(refused.reason) == 300


def test_a_run_goes_on_where_one_stopped_and_compiles_nothing_twice(campaign, compiled, tmp_path: Path) -> None:
    run = space.run_space(KERNEL, campaign, tmp_path)
    next(run)
    run.close()
    first = len(compiled)
    assert first == space.CONFIGS_IN_ROW
    list(space.run_space(KERNEL, campaign, tmp_path))
    offered = len(kernel_named(KERNEL).candidates(SQUARE))
    assert len(compiled) == 2 * offered
    assert list(space.run_space(KERNEL, campaign, tmp_path)) == []
    rows = [*_rows(tmp_path, "nvidia-b200"), *_rows(tmp_path, "nvidia-b300")]
    assert len({row.key for row in rows}) == len(rows)


def test_a_changed_kernel_is_compiled_again(campaign, compiled, tmp_path: Path, monkeypatch) -> None:
    list(space.run_space(KERNEL, campaign, tmp_path))
    before = len(compiled)
    monkeypatch.setattr("narrowbench.measure.runner.kernel_sha256", lambda *_: "another")
    list(space.run_space(KERNEL, campaign, tmp_path))
    assert len(compiled) == 2 * before


def test_a_shape_without_configs_says_why(tmp_path: Path, compiled) -> None:
    entry = {"kernels": ["hopper_wgmma_fp8_decode"], "suites": ["compiled"], "targets": ["h200"]}
    wide = parse(Campaign, {"title": "t", "plan": {}, "space": [entry], "roof_modes": ["burst"]}, "test")
    list(space.run_space("hopper_wgmma_fp8_decode", wide, tmp_path))
    (row,) = jsonl.read([tmp_path / "nvidia-h200" / "space" / "hopper_wgmma_fp8_decode.jsonl"])
    assert (row.status, row.space, row.case.count) == ("unsupported", None, None)
    assert "m=8192" in row.reason
    assert not compiled


def test_without_the_packages_nothing_is_stored(campaign, tmp_path: Path, monkeypatch) -> None:
    def refuse(_cases):
        raise UnsupportedError("aot", {"missing": ["bin/ptxas"]}, "are needed", "install the extra `aot`")
        yield

    monkeypatch.setattr(aot, "compile_each", refuse)
    with pytest.raises(UnsupportedError, match="install the extra `aot`"):
        list(space.run_space(KERNEL, campaign, tmp_path))
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_campaign_covers_every_kernel_on_every_gpu_that_it_is_for() -> None:
    planned = load_campaign(CONFIGS / "space.yaml")
    for name in kernel_names():
        kernel = kernel_named(name)
        targets = {target.name for target in TARGETS.values() if target.arch == kernel.arch}
        if kernel.arch in ("hopper", "blackwell") and not kernel.is_baseline:
            parts = list(space.parts_of(kernel, planned))
            assert {part.target for part in parts} == targets, name
            assert all(part.configs for part in parts), name
