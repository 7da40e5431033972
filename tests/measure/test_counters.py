"""Counting jobs, with a program in the profiler's place; what it watches is run here on the CPU."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.fakes import FakeCudaLibrary
from tests.measure.test_ncu import RAW, write_ncu

from narrowbench.errors import CountersError
from narrowbench.measure import counter_launches, nvidia
from narrowbench.measure.counter_launches import Answer, Job, launch
from narrowbench.measure.counters import counters_cases, run_counters
from narrowbench.measure.devices import LocalDevice, local_devices
from narrowbench.measure.nvidia import short_hash
from narrowbench.store import jsonl
from narrowbench.store.rows import Accuracy
from narrowgemm.errors import UnsupportedError

SHAPE = (4096, 8192, 4096)
WIDE, NARROW = '{"tile_n": 256}', '{"tile_n": 128}'
ACCURACY = Accuracy(
    kernel_error=1e-3, kernel_error_max=1e-2, tolerance=4e-3, format_error=None, checked_rows=4096, poisoned=True
)
OK = Answer(status="ok", config={"tile_n": 256}, accuracy=ACCURACY)
REFUSED = Answer(status="unsupported", reason="synthetic: too wide")


@pytest.fixture
def gpu(tmp_path: Path) -> LocalDevice:
    """Stands for a GPU; its identity is the test's, so that no lock is shared."""
    identity = short_hash(str(tmp_path))
    return replace(local_devices()[-1], slug="nvidia-h200", kind="NVIDIA H200", platform="cuda", uuid_hash=identity)


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a profiler on PATH whose child gives these answers, and which counts what `ncu_raw.csv` says."""

    def put(*answers: Answer, text: str = RAW) -> None:
        lines = "".join(answer.model_dump_json() + "\n" for answer in answers)
        body = (
            "import os, shutil\n"
            f"open(arguments[-1] + '/answers.jsonl', 'w').write({lines!r})\n"
            f"open(log, 'w').write({text!r})\n"
            f"shutil.copy(arguments[-1] + '/job.json', {str(tmp_path)!r})\n"
            f"open({str(tmp_path / 'preallocate')!r}, 'w').write(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
        )
        write_ncu(tmp_path / "bin", body, "dram__bytes_read Counter\nlts__t_sectors_srcunit_tex_op_read Counter")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    return put


def test_a_case_for_each_config_with_every_field() -> None:
    cases = counters_cases("hopper_wgmma_fp8", SHAPE, [WIDE, '{"cluster_m": 2}'])
    assert [(case.config["tile_n"], case.config["cluster_m"]) for case in cases] == [(256, 1), (256, 2)]
    assert counters_cases("hopper_wgmma_fp8", SHAPE)[0].config is None
    assert (cases[0].a_format, cases[0].out_format) == ("fp8_e4m3", "bf16")


@pytest.mark.parametrize(
    ("config", "told"),
    [("{", "is not JSON"), ("[1]", "is not a mapping of tile_m"), ('{"tile_k": 1}', "unknown field 'tile_k'")],
)
def test_a_config_that_is_none_is_refused(config: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        counters_cases("hopper_wgmma_fp8", SHAPE, [config])


def test_formats_that_the_kernel_does_not_take_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="not all among its formats"):
        counters_cases("hopper_wgmma_fp8", SHAPE, operands=("bf16", "bf16"))


def test_a_row_for_each_case_and_none_twice(profiler, gpu: LocalDevice, tmp_path: Path) -> None:
    profiler(OK, REFUSED, OK)
    cases = counters_cases("hopper_wgmma_fp8", SHAPE, [WIDE, '{"tile_n": 512}', NARROW])
    out = tmp_path / "rows.jsonl"
    assert run_counters(gpu, cases, out).done == {"ok": 2, "unsupported": 1}
    rows = jsonl.read([out])
    assert [row.case for row in rows] == cases
    assert [row.evidence for row in rows] == ["measured"] * 3
    assert [len(row.counters.kernels) if row.counters else 0 for row in rows] == [1, 0, 1]
    assert rows[2].counters.kernels[0].metrics["lts__t_sectors_srcunit_tex_op_read.sum"].value == 50_331_648
    assert "does not list it" in rows[0].counters.missing["sm__cycles_elapsed.max"]
    assert rows[0].provenance.versions["nsight-compute"] == "2025.3.1.0"
    assert rows[0].provenance.kernel_sha256
    assert (rows[0].accuracy, rows[1].reason) == (ACCURACY, "synthetic: too wide")

    again = run_counters(gpu, cases, out)
    assert (again.done, again.skipped) == ({}, 3)


def test_the_child_is_told_what_to_launch_and_to_take_little_memory(profiler, gpu: LocalDevice, tmp_path: Path) -> None:
    profiler(OK, OK)
    cases = counters_cases("hopper_wgmma_fp8", SHAPE, [WIDE, NARROW])
    run_counters(gpu, cases, tmp_path / "rows.jsonl")
    assert Job.model_validate_json((tmp_path / "job.json").read_text()) == Job(device="nvidia-h200", cases=cases)
    assert (tmp_path / "preallocate").read_text() == "false"
    assert (tmp_path / "rows.csv").read_text() == RAW


def test_a_child_that_ended_early_is_told(profiler, gpu: LocalDevice, tmp_path: Path) -> None:
    profiler(OK)
    with pytest.raises(CountersError, match="1 of 2 cases were launched"):
        run_counters(gpu, counters_cases("hopper_wgmma_fp8", SHAPE, [WIDE, NARROW]), tmp_path / "rows.jsonl")


def test_where_every_case_is_refused_there_is_nothing_to_count(profiler, gpu: LocalDevice, tmp_path: Path) -> None:
    profiler(REFUSED, text="==WARNING== No kernels were profiled.\n")
    report = run_counters(gpu, counters_cases("hopper_wgmma_fp8", SHAPE), tmp_path / "rows.jsonl")
    assert report.done == {"unsupported": 1}


def test_counts_that_do_not_fit_the_launches_are_no_rows(profiler, gpu: LocalDevice, tmp_path: Path) -> None:
    profiler(OK, OK, OK)
    cases = counters_cases("hopper_wgmma_fp8", SHAPE, [WIDE, NARROW, '{"stages": 2}'])
    with pytest.raises(CountersError, match="kernels of 3 launches cannot be told apart"):
        run_counters(gpu, cases, tmp_path / "rows.jsonl")
    assert not jsonl.scan(tmp_path / "rows.jsonl").rows


def test_a_device_without_counters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CountersError, match="NVIDIA GPUs alone"):
        run_counters(local_devices()[-1], counters_cases("xla_dot_f32", (64, 64, 64)), tmp_path / "rows.jsonl")


def test_the_second_launch_alone_is_counted_and_has_operands_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []
    inside: list[bool] = []

    @contextmanager
    def counted():
        inside.append(True)
        yield
        inside.pop()

    compile_launch = counter_launches.compile_launch

    def watched(*arguments):
        function = compile_launch(*arguments)

        def run(*leaves):
            seen.append(("counted" if inside else "warm", float(leaves[0][0, 0])))
            return function(*leaves)

        return run

    monkeypatch.setattr(counter_launches, "compile_launch", watched)
    case = counters_cases("xla_dot_f32", (64, 32, 16), out_format="f32")[0]
    answer = launch(case, "cpu", counted)
    assert [when for when, _ in seen] == ["warm", "counted"]
    assert seen[0][1] != seen[1][1]
    assert (answer.status, answer.reason) == ("ok", None)
    assert answer.accuracy is not None
    assert answer.accuracy.kernel_error < answer.accuracy.tolerance
    assert Answer.model_validate_json(answer.model_dump_json()) == answer


def test_what_cannot_be_launched_says_why_and_is_not_counted() -> None:
    case = counters_cases("hopper_wgmma_fp8", SHAPE)[0]
    answer = launch(case, "cpu", lambda: pytest.fail("nothing is to be counted"))
    assert answer.status == "unsupported"
    assert "hopper_wgmma_fp8" in str(answer.reason)


def test_a_fault_of_the_counted_launch_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_launches, "_prepared", lambda *_: (OK, lambda *leaves: leaves, ([0.0], [1.0])))

    @contextmanager
    def counted():
        raise OSError("cuProfilerStart returned CUDA error 201")
        yield

    with pytest.raises(OSError, match="201"):
        launch(counters_cases("xla_dot_f32", (64, 32, 16), out_format="f32")[0], "cpu", counted)


def test_the_driver_is_told_what_to_profile() -> None:
    calls: list[str] = []

    class Library(FakeCudaLibrary):
        def __getattr__(self, name: str):
            return lambda *_: calls.append(name) or 0

    with nvidia.Cuda(Library()).profiled(0):
        calls.append("launch")
    assert calls[-3:] == ["cuProfilerStart", "launch", "cuProfilerStop"]
    assert calls[:-3] == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
