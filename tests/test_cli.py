import importlib.metadata
import sys
from pathlib import Path

import pytest

from narrowbench import cli, doctor
from narrowbench.config import load_protocol
from narrowbench.measure import counters, runner, tuning
from narrowbench.measure.devices import local_devices
from narrowbench.measure.runner import JobReport
from narrowbench.store import jsonl
from narrowgemm.errors import UnsupportedError
from narrowgemm.tune import table

SHAPE = ["--shape", "128", "128", "128"]
SMOKE = str(cli.ROOT / "configs" / "smoke.yaml")


@pytest.fixture
def cpu() -> str:
    return next(device.slug for device in local_devices() if device.device_class == "cpu")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command line in an empty folder; returns its exit status, output and error output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["narrowbench", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["measure", "--device", "cpu"], "give either --kernel and --suite, or --roofs"),
        (["measure", "--device", "cpu", "--kernel", "x"], "give either --kernel and --suite, or --roofs"),
        (["measure", "--device", "nvidia-h300", "--roofs"], "unknown local device 'nvidia-h300'"),
        (["measure", "--device", "cpu", "--roofs", "--config", "absent.yaml"], "absent.yaml: no such file"),
        (["compile", "--kernel", "hoper_wgmma_fp8", "--out", "o"], "did you mean hopper_wgmma_fp8"),
        (["compile", "--kernel", "xla_dot_f32", "--out", "o"], "compiles xla_dot_f32 for no target"),
        (["space", "--kernel", "hoper_wgmma_fp8"], "did you mean hopper_wgmma_fp8"),
        (["space", "--kernel", "xla_dot_f32"], "name a kernel that it compiles: blackwell_tcgen05_bf16,"),
        (
            ["counters", "--device", "cpu", "--kernel", "xla_dot_f32", *SHAPE, "--out-format", "bf6"],
            "did you mean bf16",
        ),
        (
            ["counters", "--device", "cpu", "--kernel", "xla_dot_f32", *SHAPE, "--operands", "f3", "f32"],
            "did you mean f32",
        ),
        (["project", "--gain-in", "tim"], "unknown kind of gain 'tim'; did you mean time"),
        (["tune", "--device", "cpu", "--kernel", "hoper_wgmma_fp8", "--suite", "smoke"], "did you mean hopper_wgmma"),
        (["tune", "--device", "cpu", "--kernel", "xla_dot_f32", "--suite", "smok"], "did you mean smoke"),
        (["counters", "--device", "cpu", "--kernel", "hoper_wgmma_fp8", *SHAPE], "did you mean hopper_wgmma"),
        (["counters", "--device", "cpu", "--kernel", "xla_dot_f32", *SHAPE], "unknown local device 'cpu'"),
        (["tune-tables"], "no search below results/raw; run `narrowbench tune` first"),
        (["promote", "absent.jsonl"], "absent.jsonl: No such file or directory; check the path"),
        (["promote"], "nothing to promote"),
        (["figure", "fig_rooflien", "--frame", "f", "--out", "o"], "did you mean fig_roofline"),
        (["table", "tab_gem", "--frame", "f", "--out", "o"], "did you mean tab_gemm"),
    ],
)
def test_a_mistake_gets_one_message_and_status_2(run, arguments, told):
    status, _, error = run(*arguments)
    assert status == 2
    assert told in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["measure", "--kernel", "xla_dot_f3", "--suite", "smoke", "--config", SMOKE], "did you mean xla_dot_f32"),
        (["measure", "--kernel", "xla_dot_f32", "--suite", "smoek", "--config", SMOKE], "did you mean smoke"),
        (["campaign", "--kernel", "xla_dot_f3", "--config", SMOKE], "did you mean xla_dot_f32"),
        (["campaign", "--suite", "smoek", "--config", SMOKE], "did you mean smoke"),
        (["versus", "xla_dot_f3", "xla_dot_bf16", *SHAPE], "did you mean xla_dot_f32"),
        (["versus", "xla_dot_f32", "xla_dot_bf16", *SHAPE, "--distribution", "norml"], "did you mean normal"),
        (["versus", "xla_dot_f32", "xla_dot_bf16", *SHAPE, "--out-format", "bf6"], "did you mean bf16"),
    ],
)
def test_a_misspelt_name_is_told_the_nearest_on_a_device_that_is_here(run, cpu, arguments, told):
    status, _, error = run(*arguments, "--device", cpu)
    assert status == 2
    assert told in error
    assert not Path("results").exists()


def test_a_misspelt_device_is_told_the_nearest(run, cpu):
    for command in (["measure", "--roofs"], ["campaign"], ["doctor"]):
        assert f"did you mean {cpu}" in run(*command, "--device", cpu[1:])[2]


def test_a_refusal_of_the_library_reads_the_same(run, monkeypatch, cpu):
    def refuse(*_):
        raise UnsupportedError("hopper_wgmma_fp8", {"k": 4100}, "is no multiple of tile_k=128", "pad K to 4224")

    monkeypatch.setattr(runner, "run_roofs", refuse)
    status, _, error = run("measure", "--device", cpu, "--roofs")
    assert status == 2
    assert error == "narrowbench: hopper_wgmma_fp8: k=4100 is no multiple of tile_k=128; pad K to 4224\n"


def test_a_bug_keeps_its_traceback(monkeypatch, cpu):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(runner, "run_roofs", fail)
    monkeypatch.setattr(sys, "argv", ["narrowbench", "measure", "--device", cpu, "--roofs"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_measuring_says_what_it_did_and_sets_the_stamp(run, monkeypatch, cpu):
    asked = []

    def job(device, kernel, suite, campaign, protocol, out):
        asked.append((device.slug, kernel, suite, campaign.title, protocol.burst.stop.min_samples, out))
        return JobReport({"ok": 3, "unsupported": 1}, 2, ("square-16384",))

    monkeypatch.setattr(runner, "run_job", job)
    arguments = ["measure", "--device", cpu, "--kernel", "xla_dot_f32", "--suite", "smoke", "--config", SMOKE]
    status, output, _ = run(*arguments, "--out", "rows.jsonl")
    assert status == 0
    assert asked == [(cpu, "xla_dot_f32", "smoke", "Smoke", 6, Path("rows.jsonl"))]
    assert "3 ok, 1 unsupported, 2 already there, 1 left" in output
    assert "square-16384" in output
    assert Path("rows.done").exists()


def test_counting_says_what_it_did(run, monkeypatch, cpu):
    def count(device, cases, out):
        assert (device.slug, [case.config["tile_n"] for case in cases]) == (cpu, [128, 256])
        assert out == Path(f"results/raw/{cpu}/counters/hopper_wgmma_fp8.jsonl")
        return JobReport({"ok": 1}, 1, ())

    monkeypatch.setattr(counters, "run_counters", count)
    configs = ["--config", '{"tile_n": 128}', "--config", '{"tile_n": 256}']
    status, output, _ = run("counters", "--device", cpu, "--kernel", "hopper_wgmma_fp8", *SHAPE, *configs)
    assert status == 0
    assert output == f"results/raw/{cpu}/counters/hopper_wgmma_fp8.jsonl: 1 ok, 1 already there\n"


def test_a_failed_job_sets_no_stamp(run, monkeypatch, cpu):
    def fail(*_):
        raise ValueError("the device is busy")

    monkeypatch.setattr(runner, "run_roofs", fail)
    assert run("measure", "--device", cpu, "--roofs", "--out", "roofs.jsonl")[0] == 2
    assert not Path("roofs.done").exists()


def test_collecting_joins_record_and_own_rows_and_refuses_damage(run, make_row, tmp_path):
    from narrowbench.report import frame

    jsonl.append(tmp_path / "results/record/cpu/rows.jsonl", make_row(m=1))
    own = tmp_path / "results/raw/cpu/rows.jsonl"
    jsonl.append(own, make_row(m=1, utc_time="2026-03-01T00:00:00Z"))
    jsonl.append(own, make_row(m=1, utc_time="2026-03-02T00:00:00Z"))
    assert run("collect", "--out", "build/record.parquet")[0] == 0
    assert run("collect", "--out", "build/all.parquet", "--raw", "results/raw")[0] == 0
    assert list(frame.load(tmp_path / "build/record.parquet").origin) == ["record"]
    joined = frame.load(tmp_path / "build/all.parquet")
    assert sorted(zip(joined.origin, joined.utc_time, strict=True)) == [
        ("local", "2026-03-02T00:00:00Z"),
        ("record", "2026-01-01T00:00:00Z"),
    ]

    own.write_bytes(own.read_bytes() + b"{}\n")
    status, _, error = run("collect", "--out", "build/all.parquet", "--raw", "results/raw")
    assert status == 2
    assert "results/raw/cpu/rows.jsonl:3: schema_version" in error


def test_promoting_says_what_it_did(run, make_row, tmp_path):
    jsonl.append(tmp_path / "results/raw/cpu-test/rows.jsonl", make_row(m=1))
    status, output, _ = run("promote")
    assert status == 0
    assert output == "results/record/cpu-test/xla_dot_f32/smoke.jsonl: 1 added, 0 replaced, 0 already there\n"


def test_tuning_says_what_it_did_and_the_tables_follow(run, monkeypatch, cpu, make_tuning_row, tmp_path):
    def search(device, jobs, protocol, compile_threads, compile_processes, budget_s):
        given = device.slug, protocol, compile_threads, compile_processes, budget_s
        assert given == (cpu, load_protocol(), 3, None, 60.0)
        ((out, cases),) = jobs
        assert [(case.kernel, case.m, case.top) for case in cases] == [("xla_dot_f32", 128, 5), ("xla_dot_f32", 33, 5)]
        jsonl.append(out, make_tuning_row())
        yield out, JobReport({"ok": 1}, 0, ("xla_dot_f32 33×256×192",))

    monkeypatch.setattr(tuning, "run_tune", search)
    monkeypatch.setattr(table, "TUNED", tmp_path / "tuned")
    options = [
        "--kernel",
        "xla_dot_f32",
        "--suite",
        "smoke",
        "--top",
        "5",
        "--budget-s",
        "60",
        "--compile-threads",
        "3",
    ]
    status, output, _ = run("tune", "--device", cpu, *options)
    assert status == 0
    assert output == f"results/raw/{cpu}/tuning/xla_dot_f32/smoke.jsonl: 1 ok, 0 already there, 1 left\n"
    status, _, error = run("tune", "--device", cpu, *options, "--compile-processes", "2")
    assert status == 2
    assert "--compile-threads and --compile-processes exclude each other" in error
    status, output, _ = run("tune-tables")
    assert status == 0
    assert output == f"{tmp_path}/tuned/a-of-the-tests/hopper_wgmma_fp8.json: 1 added, 0 replaced, 0 as before\n"


def test_the_doctor_looks_at_everything_and_names_remedies(cpu):
    findings = list(doctor.examine())
    looked_at = {finding.topic for finding in findings}
    assert {"Python", "pinned packages", "sources", f"device {cpu}", f"device {cpu}, energy", "JAX on cpu"} <= looked_at
    assert all(finding.remedy for finding in findings if finding.state == "no")


def test_the_doctor_tells_missing_from_other_versions():
    assert doctor._pins("t", ["absent-package==1"], "r").state == "no"
    assert doctor._pins("t", ["numpy==0.0.1"], "r").seen.endswith("(pinned 0.0.1)")
    here = importlib.metadata.version("numpy")
    assert doctor._pins("t", [f"numpy=={here}; sys_platform == 'linux'"], "r").state == "yes"


def test_a_plan_is_told_job_by_job(run):
    status, out, _ = run("plan", "--config", SMOKE)
    assert status == 0
    title, *lines = out.splitlines()
    assert title.startswith(f"{SMOKE}: ")
    assert [line.partition(":")[0] for line in lines] == [
        "cpu xla_dot_f32 smoke",
        "cpu xla_dot_bf16 smoke",
        "cpu xla_dot_f32 smoke_groups",
        "cpu",
    ]
