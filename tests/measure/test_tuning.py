"""Searches on this CPU with a kernel that is as slow, or as wrong, as its config says; and the tables they make."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from narrowbench.config import Protocol, merged_protocol
from narrowbench.measure import lock, runner, tuned, tuning
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.tuning import run_tune, tuning_cases
from narrowbench.store import jsonl
from narrowbench.store.rows import Row, Trial, Tuning, TuningCase
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm import api, registry
from narrowgemm.gemm.registry import Kernel
from narrowgemm.problem import GemmProblem
from narrowgemm.tune import table

KERNEL = "xla_dot_f32"
_FINAL = {"train_s": 0.001, "idle_s": 0.0, "warm_up_s": 0.0, "stop": {"min_samples": 6, "max_samples": 6}}
_QUICK = {"tuning": {"trains": 1, "train_s": 0.001, "idle_s": 0.0, "warm_up_s": 0.0, "finalists": 2, "final": _FINAL}}


@dataclasses.dataclass(frozen=True)
class Config:
    """passes: how often the product is computed. fault: what goes wrong."""

    passes: int = 1
    fault: str | None = None


#: A hundred times the work: no load of the machine turns their order round.
SLOW, QUICK = Config(passes=200), Config(passes=2)


def matmul(a: jax.Array, b: jax.Array, config: Config, out_format: str) -> jax.Array:
    del out_format
    if config.fault == "refuses":
        raise UnsupportedError(KERNEL, {"fault": config.fault}, "is not done", "leave it")
    if config.fault == "breaks":
        raise RuntimeError("no\n registers left")

    def again(_: Any, product: jax.Array) -> jax.Array:
        return a @ (b + 0 * product[0, 0]).T

    product: jax.Array = jax.lax.fori_loop(0, config.passes, again, jnp.zeros((a.shape[0], b.shape[0])))
    return product.at[0, 0].add(1.0) if config.fault == "errs" else product


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(table, "TUNED", tmp_path / "tuned")


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    """A function that puts a kernel with these candidates in the place of a real one."""
    real = registry.kernel_named(KERNEL)

    def put(*configs: Config) -> Kernel:
        kernel = dataclasses.replace(
            real, arch="cpu", config_type=Config, candidates=lambda _: configs, check=lambda *_: None, matmul=matmul
        )
        monkeypatch.setattr(tuning, "kernel_named", lambda _: kernel)
        return kernel

    return put


@pytest.fixture
def run(cpu: LocalDevice, tmp_path: Path) -> Callable[..., runner.JobReport]:
    def once(top: int | None = None, **options: Any) -> runner.JobReport:
        cases = tuning_cases(KERNEL, "smoke", top, out_format="f32")
        protocol: Protocol = merged_protocol(_QUICK)
        ((_, report),) = run_tune(cpu, [(tmp_path / "new" / "rows.jsonl", cases)], protocol, 2, **options)
        return report

    return once


def _rows(tmp_path: Path) -> list[Row]:
    return jsonl.read([tmp_path / "new" / "rows.jsonl"])


def _tuning(row: Row) -> Tuning:
    assert row.tuning is not None
    return row.tuning


def _told(trial: Trial) -> tuple[object, ...]:
    return trial.config["passes"], trial.config["fault"], trial.rank, trial.status, trial.reason


def test_every_shape_gets_the_fastest_config_and_keeps_every_trial(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    offer(Config(fault="refuses"), SLOW, QUICK, Config(fault="breaks"))
    assert run() == runner.JobReport({"ok": 2}, 0, ())
    assert run() == runner.JobReport({}, 2, ())
    rows = _rows(tmp_path)
    assert [(row.case.kind, row.case.m) for row in rows if isinstance(row.case, TuningCase)] == [
        ("tuning", 128),
        ("tuning", 33),
    ]
    for row in rows:
        assert row.config == {"passes": 2, "fault": None}
        assert row.tuned_table_sha256 is None
        assert row.accuracy is not None
        assert row.accuracy.poisoned
        assert row.timing is not None
        assert len(row.timing.samples_s) == 6
        assert row.provenance.device_kind == "cpu"  # as JAX says it
        assert row.provenance.kernel_sha256 is not None
        assert [_told(trial) for trial in _tuning(row).trials] == [
            (2, None, 2, "ok", None),
            (200, None, 1, "ok", None),
            (1, "refuses", 0, "unsupported", f"{KERNEL}: fault=refuses is not done; leave it"),
            (1, "breaks", 3, "failed", "RuntimeError: no registers left"),
        ]
        assert [trial.final_s is None for trial in _tuning(row).trials] == [False, False, True, True]
        assert _tuning(row).compile_threads == 2
    assert not list(tmp_path.glob("new/*.trying"))


def test_a_wrong_config_is_not_chosen_however_fast(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    offer(Config(passes=1, fault="errs"), SLOW)
    assert run().done == {"ok": 2}
    row = _rows(tmp_path)[0]
    assert row.config == {"passes": 200, "fault": None}
    wrong = _tuning(row).trials[0]
    assert (wrong.status, wrong.config["fault"]) == ("failed", "errs")
    assert wrong.time_s is not None
    assert "tolerance" in (wrong.reason or "")


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ((Config(fault="errs"), Config(passes=2, fault="errs")), "none of the 2 fastest configs is right; the first: "),
        ((Config(fault="breaks"), Config(fault="refuses")), "none of 2 configs ran; the first: RuntimeError: no reg"),
    ],
)
def test_without_a_config_that_is_right_the_row_fails_and_keeps_the_trials(
    offer: Callable[..., Kernel],
    run: Callable[..., runner.JobReport],
    tmp_path: Path,
    configs: tuple[Config, ...],
    reason: str,
) -> None:
    offer(*configs)
    assert run().done == {"failed": 2}
    for row in _rows(tmp_path):
        assert row.config is None
        assert reason in (row.reason or "")
        assert len(_tuning(row).trials) == 2


def test_a_shape_without_candidates_is_unsupported(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    offer()
    assert run().done == {"unsupported": 2}
    assert _tuning(_rows(tmp_path)[0]).trials == []


def test_top_is_another_search_and_tries_the_first_guesses_alone(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    offer(SLOW, QUICK)
    run(top=1)
    assert [[trial.rank for trial in _tuning(row).trials] for row in _rows(tmp_path)] == [[0], [0]]
    assert run() == runner.JobReport({"ok": 2}, 0, ())


def test_a_budget_ends_the_job_between_shapes(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(QUICK)
    seconds = iter(range(0, 1000, 10))
    with monkeypatch.context() as clock:
        clock.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        clock.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: 0, perf_counter=time.perf_counter))
        assert run(budget_s=25.0) == runner.JobReport({"ok": 1}, 0, (f"{KERNEL} 33×256×192",))
    assert run() == runner.JobReport({"ok": 1}, 1, ())


def test_several_jobs_share_a_budget_and_each_has_its_file(
    offer: Callable[..., Kernel], cpu: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(QUICK)
    jobs = [(tmp_path / f"{top}.jsonl", tuning_cases(KERNEL, "smoke", top, out_format="f32")) for top in (1, 2)]
    seconds = iter([0.0, 10.0, 70.0])
    monkeypatch.setattr(
        tuning, "time", SimpleNamespace(monotonic=lambda: next(seconds), perf_counter=time.perf_counter)
    )
    reports = list(run_tune(cpu, jobs, merged_protocol(_QUICK), 2, budget_s=60.0))
    assert [out for out, _ in reports] == [out for out, _ in jobs]
    assert [(report.done, len(report.left)) for _, report in reports] == [({"ok": 2}, 0), ({}, 2)]


def test_an_interrupted_search_leaves_whole_rows_and_tells_what_it_tried(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(QUICK, SLOW)
    plain = tuning.short_time_s
    calls = iter(range(100))

    def interrupted(*arguments: Any) -> float:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "short_time_s", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert len(_rows(tmp_path)) == 1
    assert "Config(passes=200" in (tmp_path / "new" / "rows.trying").read_text()
    with (tmp_path / "new" / "rows.jsonl").open("ab") as file:
        file.write(b'{"schema_version": "1.1", "case"')
    assert run() == runner.JobReport({"ok": 1}, 1, ())
    assert len({row.key for row in _rows(tmp_path)}) == 2


def test_a_lost_device_ends_the_job_behind_the_row_that_lost_it(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(Config(fault="breaks"))
    calls = iter(range(100))

    def zeros(*_: Any) -> jax.Array:
        if next(calls):
            raise RuntimeError("illegal memory access")
        return jnp.zeros(())

    monkeypatch.setattr(tuning, "jnp", SimpleNamespace(zeros=zeros))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run()
    assert [row.status for row in _rows(tmp_path)] == ["failed"]


def test_a_compiling_process_that_died_ends_the_job_without_a_row(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configs came to no outcome, so that no row may say that they failed."""
    offer(QUICK)

    def died(_: Any) -> None:
        raise BrokenProcessPool("a child process terminated abruptly")

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "wait_for", died)
        with pytest.raises(BrokenProcessPool):
            run()
    assert not (tmp_path / "new" / "rows.jsonl").exists()
    assert run().done == {"ok": 2}


def test_a_gpu_without_a_timer_of_its_own_is_refused() -> None:
    timer = SimpleNamespace(method="wall_clock", reason="CUPTI is used by another tool")
    bench: Any = SimpleNamespace(device=SimpleNamespace(platform="cuda", slug="nvidia-h200"), timer=timer)
    with pytest.raises(UnsupportedError, match="no timer that tells single launches apart: CUPTI is used"):
        tuning._check_timer(bench)


@pytest.mark.parametrize(("operands", "out_format"), [(("bf16", "f32"), "f32"), (None, "f64"), (("f23", "f32"), "f32")])
def test_formats_that_the_kernel_does_not_take_are_told_at_once(
    operands: tuple[str, str] | None, out_format: str
) -> None:
    with pytest.raises((UnsupportedError, ValueError), match=r"bf16|f64|f23"):
        tuning_cases(KERNEL, "smoke", None, operands, out_format)


def test_the_tables_have_the_newest_search_of_each_problem_and_gemm_takes_it(
    offer: Callable[..., Kernel], run: Callable[..., runner.JobReport], tmp_path: Path
) -> None:
    kernel = offer(SLOW, QUICK)
    run(top=1)
    older = _rows(tmp_path)
    run()
    newer = _rows(tmp_path)[2:]
    broken = [row.model_copy(update={"timing": None, "config": None, "status": "failed"}) for row in newer]
    path = table.path_of(KERNEL, "cpu")
    assert tuned.write_tables(older) == [f"{path}: 2 added, 0 replaced, 0 as before"]
    assert tuned.write_tables([*newer, *older, *broken]) == [f"{path}: 0 added, 2 replaced, 0 as before"]
    before = path.read_bytes()
    assert tuned.write_tables(newer) == [f"{path}: 0 added, 0 replaced, 2 as before"]
    assert path.read_bytes() == before

    problem = GemmProblem(128, 128, 128, "f32", "f32", "f32")
    assert api.chosen_config(kernel, problem) == (QUICK, table.table_sha256(KERNEL, "cpu"))
    (entry,) = (entry for entry in table.entries(KERNEL, "cpu") if entry.problem == problem)
    assert entry.tried == 2
    assert entry.origin.jax == jax.__version__
    assert entry.origin.protocol_sha256 == tuning.protocol_sha256(merged_protocol(_QUICK))
    assert entry.origin.protocol_sha256 != tuning.protocol_sha256(merged_protocol({}))


def test_a_killed_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A real one, from the command line, killed once its first row is there."""
    slug = local_devices()[-1].slug
    out = tmp_path / slug / "tuning" / KERNEL / "smoke.jsonl"
    job = ["--device", slug, "--kernel", KERNEL, "--suite", "smoke", "--out-format", "f32", "--raw", str(tmp_path)]
    command = [sys.executable, "-m", "narrowbench", "tune", *job]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
        deadline_s = time.monotonic() + 120
        while not jsonl.scan(out).rows:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    survived = jsonl.scan(out).rows
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    assert f"{len(survived)} already there" in again.stdout
    rows = jsonl.read([out])
    assert {_tuning(row).compile_threads for row in rows} == {1}  # XLA chooses by timing while it compiles
    assert len(rows) == len({row.key for row in rows}) == 2
    assert rows[: len(survived)] == list(survived)
