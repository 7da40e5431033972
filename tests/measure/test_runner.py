"""Jobs on this CPU, small and quick: rows of every outcome, resuming, two runs at once, and comparisons."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from narrowbench.config import Campaign, Protocol, load_suite
from narrowbench.errors import DeviceBusyError
from narrowbench.measure import bench, gemm, launches, lock, provenance, recording, runner, sampling, turns
from narrowbench.measure.devices import LocalDevice
from narrowbench.models.statistics import paired_ratio
from narrowbench.store import jsonl
from narrowbench.store.rows import Row
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import kernel_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tune import table


@pytest.fixture
def run(cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path) -> Callable[..., runner.JobReport]:
    def once(**changes: Any) -> runner.JobReport:
        planned = campaign.model_copy(update=changes)
        return runner.run_job(cpu, "xla_dot_f32", "smoke", planned, protocol, tmp_path / "rows.jsonl")

    return once


def _rows(tmp_path: Path) -> list[Row]:
    return jsonl.read([tmp_path / "rows.jsonl"])


def _replace_kernel(monkeypatch: pytest.MonkeyPatch, matmul: Callable[..., Any]) -> None:
    kernel = dataclasses.replace(kernel_named("xla_dot_f32"), matmul=matmul)
    monkeypatch.setattr(gemm, "kernel_named", lambda _: kernel)


def test_a_job_measures_every_case_once(run: Callable[..., runner.JobReport], tmp_path: Path) -> None:
    assert run() == runner.JobReport({"ok": 4}, 0, ())
    assert run() == runner.JobReport({}, 4, ())
    rows = _rows(tmp_path)
    assert len({row.key for row in rows}) == len(rows) == 4
    for row in rows:
        assert row.timing is not None
        assert len(row.timing.samples_s) == 6
        assert row.accuracy is not None
        assert row.accuracy.poisoned
        assert row.compile is not None
        assert row.compile.hlo_calls


def test_sustained_rows_say_how_many_bits_change_in_their_operands_and_in_those_as_drawn(
    run: Callable[..., runner.JobReport], campaign: Campaign, tmp_path: Path
) -> None:
    (planned,) = campaign.plan["cpu"]
    run(plan={"cpu": [planned.model_copy(update={"distributions": ["normal", "normal_k_ordered"]})]})
    found = {(row.case.mode, row.case.distribution): row for row in _rows(tmp_path)}
    assert all(row.toggles is None for (mode, _), row in found.items() if mode == "burst")
    drawn, ordered = (found["sustained", data] for data in ("normal", "normal_k_ordered"))
    assert drawn.drawn_toggles is None
    assert ordered.drawn_toggles == drawn.toggles
    assert ordered.toggles is not None
    assert ordered.toggles.b_along_k < ordered.drawn_toggles.b_along_k
    assert ordered.toggles.b_along_rows == pytest.approx(ordered.drawn_toggles.b_along_rows, rel=1e-9)


def test_an_edit_of_the_kernel_measures_its_cases_again_beside_the_old_rows(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.setattr(provenance, "kernel_sha256", lambda *_: "of other code")
    monkeypatch.setattr(runner, "kernel_sha256", lambda *_: "of other code")
    assert run() == runner.JobReport({"ok": 4}, 0, ())
    assert run() == runner.JobReport({}, 4, ())
    assert len(_rows(tmp_path)) == 8


def test_a_case_that_was_tuned_since_is_measured_again_with_that_config(
    cpu: LocalDevice,
    campaign: Campaign,
    protocol: Protocol,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "TUNED", tmp_path / "tuned")
    entry = {"kernels": ["xla_dot_fp8_e4m3"], "suites": ["smoke"], "modes": ["burst"]}
    planned = Campaign.model_validate(campaign.model_dump() | {"plan": {"cpu": [entry]}})
    as_jax_calls_it = dataclasses.replace(cpu, kind="cpu")

    def run_it() -> runner.JobReport:
        out = tmp_path / "rows.jsonl"
        return runner.run_job(as_jax_calls_it, "xla_dot_fp8_e4m3", "smoke", planned, protocol, out)

    assert run_it().done == {"ok": 2}
    problem = GemmProblem(128, 128, 128, "fp8_e4m3", "fp8_e4m3")
    origin = table.Origin("0.11.2", "2026-01-01", "0" * 64)
    table.merge("xla_dot_fp8_e4m3", "cpu", [table.Entry(problem, {"fuse_scale": True}, 1e-6, 2, origin)])
    assert run_it() == runner.JobReport({"ok": 1}, 1, ())
    assert run_it() == runner.JobReport({}, 2, ())
    digest = table.table_sha256("xla_dot_fp8_e4m3", "cpu")
    told = [(row.config, row.tuned_table_sha256) for row in _rows(tmp_path) if row.case.m == 128]
    assert told == [({"fuse_scale": False}, None), ({"fuse_scale": True}, digest)]


def test_cases_with_an_epilogue_are_measured_beside_those_without(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    entry = {"kernels": ["xla_dot_bf16"], "suites": ["smoke"], "modes": ["burst"]}

    def run_it(**changes: Any) -> runner.JobReport:
        planned = Campaign.model_validate(campaign.model_dump() | {"plan": {"cpu": [entry | changes]}})
        return runner.run_job(cpu, "xla_dot_bf16", "smoke", planned, protocol, out)

    assert run_it().done == {"ok": 2}
    both = {"epilogues": ["none", "scales_bias_gelu_residual"]}
    assert run_it(**both) == runner.JobReport({"ok": 2}, 2, ())
    assert run_it(**both) == runner.JobReport({}, 4, ())
    plain, finished = (
        [row for row in _rows(tmp_path) if row.case.epilogue == name] for name in ("none", "scales_bias_gelu_residual")
    )
    assert '"epilogue":"none"' in plain[0].key
    for row in finished:
        assert row.timing is not None
        assert row.timing.rotation_bytes > row.timing.rotation_sets * row.case.m * row.case.n * 2
        assert row.accuracy is not None
        assert row.accuracy.kernel_error <= row.accuracy.tolerance


def test_a_kernel_without_epilogues_is_an_unsupported_row(
    run: Callable[..., runner.JobReport], tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = dataclasses.replace(kernel_named("xla_dot_f32"), matmul_epilogue=None)
    monkeypatch.setattr(gemm, "kernel_named", lambda _: kernel)
    entry = campaign.plan["cpu"][0].model_copy(update={"epilogues": ["bias_relu"]})
    assert run(plan={"cpu": [entry]}).done == {"unsupported": 4}
    reason = _rows(tmp_path)[0].reason
    assert reason is not None
    assert "epilogue=bias_relu is not what it can do" in reason


def test_a_job_over_its_budget_names_the_cases_that_are_left(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(0, 1000, 10))
    with monkeypatch.context() as clock:
        clock.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        report = run(job_budget_s=25.0)
    assert report.done == {"ok": 1}
    assert len(report.left) == 3
    assert report.left[0] == "xla_dot_f32 128×128×128 sustained normal rotated"
    assert len(_rows(tmp_path)) == 1


def test_a_kernel_that_returns_nan_is_a_failed_row_and_is_not_timed(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _replace_kernel(monkeypatch, lambda a, b, *_: (a @ b.T).at[0, 0].set(jnp.nan))
    monkeypatch.setattr(gemm, "workload_of", lambda *_: pytest.fail("a wrong kernel was about to be timed"))
    assert run().done == {"failed": 4}
    row = _rows(tmp_path)[0]
    assert row.timing is None
    assert row.reason is not None
    assert "1 came out NaN or infinite" in row.reason


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (UnsupportedError("k", {"m": 3}, "is odd", "pad m"), "unsupported", "k: m=3 is odd; pad m"),
        (ZeroDivisionError("a bug\nin the kernel"), "failed", "ZeroDivisionError: a bug in the kernel"),
    ],
)
def test_a_fault_of_one_case_is_its_row_and_the_others_go_on(
    run: Callable[..., runner.JobReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    status: str,
    reason: str,
) -> None:
    plain = kernel_named("xla_dot_f32").matmul

    def odd(a: Any, b: Any, *rest: Any) -> Any:
        if a.shape[0] == 33:
            raise fault
        return plain(a, b, *rest)

    _replace_kernel(monkeypatch, odd)
    assert run().done == {"ok": 2, status: 2}
    told = [row for row in _rows(tmp_path) if row.status == status]
    assert {row.reason for row in told} == {reason}


def test_what_a_kernel_cannot_do_is_unsupported(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path
) -> None:
    entry = {"kernels": ["hopper_wgmma_bf16"], "suites": ["smoke"], "modes": ["burst"]}
    planned = Campaign.model_validate(campaign.model_dump() | {"plan": {"cpu": [entry]}})
    report = runner.run_job(cpu, "hopper_wgmma_bf16", "smoke", planned, protocol, tmp_path / "rows.jsonl")
    assert report.done == {"unsupported": 2}
    assert "is not what it runs on, hopper" in str(_rows(tmp_path)[0].reason)


def test_a_device_that_another_process_uses_gives_unstable_rows(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared:
        def others(self) -> int | None:
            return 2

    with monkeypatch.context() as shared:
        shared.setattr(bench, "open_share", lambda _: Shared())
        assert run().done == {"unstable": 4}
    assert _rows(tmp_path)[0].reason == "2 other processes used the device meanwhile"
    assert run() == runner.JobReport({"ok": 4}, 0, ()), "an unstable case is tried again"


def test_an_error_while_sampling_is_the_row_of_the_case(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(recording, "sustained", fails)
    assert run().done == {"ok": 2, "failed": 2}
    assert "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS" in {row.reason for row in _rows(tmp_path)}


def test_a_torn_line_is_cut_and_its_case_measured_again(run: Callable[..., runner.JobReport], tmp_path: Path) -> None:
    run()
    path = tmp_path / "rows.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert run() == runner.JobReport({"ok": 1}, 3, ())
    assert len({row.key for row in _rows(tmp_path)}) == 4


def test_nothing_is_prepared_while_something_is_measured(tmp_path: Path) -> None:
    order: list[str] = []

    def task(beside: bool) -> runner.Task:
        prepare, measure = (f"{step}{'' if beside else ' alone'}" for step in ("prepare", "measure"))
        return runner.Task("", lambda _: order.append(prepare), lambda _, __: [order.append(measure)][:0], beside)

    most = runner.PREPARED_TOGETHER
    tasks = [*[task(True)] * (most + 1), task(False), *[task(True)] * 2]
    runner.run_tasks("test", tasks, SimpleNamespace(), tmp_path / "rows.jsonl", None)
    batches = [["prepare"] * most, ["measure"] * most, ["prepare", "measure"], ["prepare alone", "measure alone"]]
    assert order == [step for batch in [*batches, ["prepare"] * 2, ["measure"] * 2] for step in batch]


def test_own_kernels_alone_are_prepared_side_by_side(campaign: Campaign) -> None:
    shape = load_suite("smoke").shapes[0]
    setting = campaign.settings("cpu", "xla_dot_f32", "smoke")[0]
    beside = {
        kernel: runner._single(runner.case_of(kernel, "smoke", shape, setting, 0)).beside
        for kernel in ("xla_dot_bf16", "xla_dot_fp8_e4m3", "hopper_wgmma_fp8", "blackwell_tcgen05_bf16")
    }
    assert [kernel for kernel, is_beside in beside.items() if is_beside] == [
        "hopper_wgmma_fp8",
        "blackwell_tcgen05_bf16",
    ]


def test_a_second_run_at_once_is_refused(run: Callable[..., runner.JobReport], cpu: LocalDevice) -> None:
    with lock.device_lock(cpu), pytest.raises(DeviceBusyError, match=f"{cpu.slug} is being measured by process"):
        run()


_KILLED = """
import sys, time, pathlib
from narrowbench.measure import lock, runner
from narrowbench.measure.devices import local_devices
from narrowbench.config import CONFIGS, Campaign, load_protocol
import dataclasses
folder = pathlib.Path(sys.argv[1])
lock.tempfile.gettempdir = lambda: str(folder)
campaign = Campaign.model_validate_json((folder / "campaign.json").read_text())
device = dataclasses.replace(local_devices()[-1], cache_bytes=2**16, cache_reason=None)
plain, count = runner.rows_of, 0
def slow_at_the_third(*arguments):
    global count
    count += 1
    if count == 3:
        print("third", flush=True)
        time.sleep(60)
    return plain(*arguments)
runner.rows_of = slow_at_the_third
runner.run_job(device, "xla_dot_f32", "smoke", campaign, load_protocol(campaign), folder / "rows.jsonl")
"""


def test_a_run_that_is_killed_goes_on_with_no_case_lost_or_doubled(
    run: Callable[..., runner.JobReport], campaign: Campaign, tmp_path: Path
) -> None:
    (tmp_path / "campaign.json").write_text(campaign.model_dump_json())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "third\n"
        process.send_signal(signal.SIGKILL)
    assert len(_rows(tmp_path)) == 2
    assert run() == runner.JobReport({"ok": 2}, 2, ())
    assert len({row.key for row in _rows(tmp_path)}) == 4


SHAPE = runner.shape_given((64, 64, 64))


def test_a_comparison_takes_turns_and_its_samples_are_pairs(
    cpu: LocalDevice, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SETTLE_S", 0.0)
    out = tmp_path / "rows.jsonl"
    kernels = ("xla_dot_f32", "xla_dot_bf16")
    report = runner.run_compare(cpu, kernels, [SHAPE], ("burst", "sustained"), protocol, out, out_format="f32")
    assert report.done == {"ok": 4}
    rows = _rows(tmp_path)
    sessions = {row.timing.session for row in rows if row.timing}
    assert len(sessions) == 2
    burst = [row.timing for row in rows if row.case.mode == "burst" and row.timing]
    assert burst[0].session == burst[1].session
    assert len(burst[0].samples_s) == len(burst[1].samples_s)
    assert paired_ratio(burst[0].samples_s, burst[1].samples_s).value > 0
    told = list(turns.ratios(rows, kernels, SHAPE))
    assert [line.partition(" (")[0].rpartition(": ")[0] for line in told] == [
        f"{mode}: time of xla_dot_bf16 over xla_dot_f32" for mode in ("burst", "sustained")
    ]
    assert list(turns.ratios(rows, kernels, runner.shape_given((64, 64, 65)))) == []
    again = runner.run_compare(cpu, kernels, [SHAPE], ("burst", "sustained"), protocol, out, out_format="f32")
    assert again == runner.JobReport({}, 4, ())


def test_a_comparison_of_many_shapes_goes_on_where_its_budget_ended(
    cpu: LocalDevice, protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SETTLE_S", 0.0)
    out, kernels = tmp_path / "rows.jsonl", ("xla_dot_f32", "xla_dot_bf16")
    shapes = [SHAPE, runner.shape_given((64, 64, 128))]
    nothing = runner.run_compare(cpu, kernels, shapes, ("burst",), protocol, out, out_format="f32", budget_s=0)
    assert (nothing.done, len(nothing.left)) == ({}, 2)
    runner.run_compare(cpu, kernels, shapes[:1], ("burst",), protocol, out, out_format="f32")
    report = runner.run_compare(cpu, kernels, shapes, ("burst",), protocol, out, out_format="f32")
    assert report == runner.JobReport({"ok": 2}, 2, ())
    sessions = {(row.case.k, row.timing.session) for row in _rows(tmp_path) if row.timing}
    assert len(sessions) == 2
    assert all(len(list(turns.ratios(_rows(tmp_path), kernels, shape))) == 1 for shape in shapes)


def test_a_comparison_measures_the_others_when_one_kernel_fails(
    cpu: LocalDevice, protocol: Protocol, tmp_path: Path
) -> None:
    kernels = ("xla_dot_f32", "hopper_wgmma_bf16")
    report = runner.run_compare(cpu, kernels, [SHAPE], ("burst",), protocol, tmp_path / "rows.jsonl")
    assert report.done == {"ok": 1, "unsupported": 1}


def test_cases_that_need_too_many_operand_sets_are_unsupported(
    run: Callable[..., runner.JobReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "_MOST_SETS", 1)
    assert run().done == {"unsupported": 2, "ok": 2}
    assert "operand sets" in str(_rows(tmp_path)[0].reason)
