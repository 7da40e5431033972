"""What the rules do with what they are given; that they run is the smoke run's business."""

import re
import subprocess
import sys

import pytest
import yaml
from snakemake.cli import get_argument_parser

from narrowbench import pipeline, sources
from narrowbench.config import ROOT
from narrowbench.measure import named
from narrowgemm.gemm.registry import kernel_names
from narrowgemm.tune import table


def _dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--cores", "1", "--nolock", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("job_budgte_s=5", "unknown key 'job_budgte_s'; did you mean job_budget_s?"),
        ("job_budget_s=-5", "job_budget_s: Input should be greater than 0"),
        ("devices=[nvidia-h300]", "unknown device of this machine 'nvidia-h300'"),
    ],
)
def test_a_wrong_campaign_stops_the_pipeline_before_any_job(setting, told):
    done = _dry_run("--configfile", "configs/smoke.yaml", "--config", setting)
    assert done.returncode != 0
    assert told in done.stderr + done.stdout


def test_a_campaign_of_the_command_line_replaces_the_default():
    done = _dry_run("collect_all", "--configfile", "configs/smoke.yaml", "--forceall")
    assert done.returncode == 0, done.stderr
    assert "suite=smoke" in done.stderr + done.stdout
    assert "suite=cpu" not in done.stderr + done.stdout


def test_the_search_space_is_a_target_of_its_own():
    done = _dry_run("space", "--configfile", "configs/space.yaml", "--forceall")
    assert done.returncode == 0, done.stderr
    planned = re.findall(r"output: (\S+)", done.stderr + done.stdout)
    own = [name for name in kernel_names() if name.startswith(("hopper_", "blackwell_"))]
    assert sorted(planned) == [f"results/raw/space/{name}.done" for name in own]


def test_no_other_target_compiles_the_search_space():
    done = _dry_run("collect_all", "--configfile", "configs/space.yaml", "--forceall")
    assert done.returncode == 0, done.stderr
    assert "compile_space" not in done.stderr + done.stdout


def test_measuring_and_reporting_do_not_depend_on_each_other():
    """An edit of a figure measures nothing again; an edit of the timer redraws nothing but what was measured anew."""
    figures = (ROOT / "workflow" / "narrowbench" / "report").glob("fig_*.py")
    reporting = sources.closure(f"narrowbench.report.{path.stem}" for path in figures)
    measuring = sources.closure(["narrowbench.measure.runner"])
    assert not [name for name in measuring if name.startswith("narrowbench.report")]
    assert not [name for name in reporting if name.startswith("narrowbench.measure")]


def test_a_kernels_digest_is_its_own():
    one, other = (pipeline.job_digest(kernel, "smoke") for kernel in ("xla_dot_f32", "blackwell_tcgen05_bf16"))
    assert one == pipeline.job_digest("xla_dot_bf16", "smoke")  # of the same module
    assert one != other
    assert one != pipeline.job_digest("xla_dot_f32", "cpu")


def test_tuning_a_kernel_gives_its_jobs_something_to_do_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "TUNED", tmp_path)
    before = [pipeline.job_digest(kernel, "smoke") for kernel in ("xla_dot_f32", "xla_dot_bf16")]
    (tmp_path / "some-device").mkdir()
    (tmp_path / "some-device" / "xla_dot_f32.json").write_text("{}")
    after = [pipeline.job_digest(kernel, "smoke") for kernel in ("xla_dot_f32", "xla_dot_bf16")]
    assert before[0] != after[0]
    assert before[1] == after[1]


@pytest.mark.parametrize("name", ["default", "slurm", "kubernetes"])
def test_profiles_hold_options_that_snakemake_has(name):
    options = {name.lstrip("-") for action in get_argument_parser()._actions for name in action.option_strings}
    settings = yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text())
    assert set(settings) <= options


def test_the_default_profile_lets_one_job_measure_at_a_time():
    settings = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    assert settings["resources"] == ["gpu=1"]


def test_naming_another_kernel_changes_no_kernels_code():
    """A new kernel is listed in the registry, which every kernel imports."""
    skipped = {"narrowgemm.gemm.registry", "narrowgemm.gemm.api", "narrowgemm.gemm", "narrowgemm"}
    assert set(named._DISPATCH) == skipped
    assert "narrowgemm.gemm.registry" in sources.closure(["narrowgemm.gemm.xla_dot"])
    own = sources.closure(["narrowgemm.gemm.xla_dot"], skipped)
    assert "narrowgemm.formats.quantize" in own
    assert not own & skipped
