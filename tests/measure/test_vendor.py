"""Baselines of other libraries: names, what is not installed, the choice among ways, and rows, on this CPU."""

# ruff: noqa: ARG001, ARG002 - stand-ins have the signatures of what they stand for

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.measure.vendor_fakes import NoMarks, memory

from narrowbench.config import CONFIGS, Campaign, Protocol, load_campaign
from narrowbench.measure import named, runner
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.timing import Workload
from narrowbench.measure.vendor import prepared
from narrowbench.measure.vendor.baseline import Baseline, Way, check_multiples
from narrowbench.measure.vendor.marks import CudaMarks
from narrowbench.pipeline import campaign_of, job_digest, read_campaign
from narrowbench.store import jsonl
from narrowbench.store.rows import Row
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.gemm.registry import kernel_names
from narrowgemm.problem import GemmProblem

NAME = "cublaslt_bf16"
PACKAGES = {
    "cublaslt_bf16": ("nvmath-python", "nvmath.bindings.cublasLt"),
    "cublaslt_fp8_e4m3": ("nvmath-python", "nvmath.bindings.cublasLt"),
    "torch_scaled_mm_fp8_e4m3": ("torch", "torch"),
    "triton_persistent_fp8_e4m3": ("torch", "torch"),
}


@pytest.fixture
def run(
    cpu: LocalDevice, campaign: Campaign, protocol: Protocol, tmp_path: Path
) -> Callable[[str], tuple[runner.JobReport, list[Row]]]:
    def once(name: str, **changes: Any) -> tuple[runner.JobReport, list[Row]]:
        entry = {"kernels": [name], "suites": ["smoke"], "modes": ["burst"]} | changes
        planned = Campaign.model_validate(campaign.model_dump() | {"plan": {"cpu": [entry]}})
        out = tmp_path / f"{name}.jsonl"
        return runner.run_job(cpu, name, "smoke", planned, protocol, out), jsonl.read([out])

    return once


class _OfNumpy:
    """A library that multiplies with NumPy where JAX's arrays lie, in the ways that it is given."""

    def __init__(self, problem: GemmProblem, ways: Sequence[Way]) -> None:
        self.problem, self._ways = problem, ways

    def bound(self, a: QuantizedArray, b: QuantizedArray, out: jax.Array) -> tuple[np.ndarray, ...]:
        jax.block_until_ready((a, b, out))
        arrays = (a.codes, b.codes, out)
        return tuple(memory(array.unsafe_buffer_pointer(), array.shape, array.dtype) for array in arrays)

    def ways(self, bound: object) -> Sequence[Way]:
        return self._ways


#: What was launched last.
_LAST: list[Callable[..., None]] = [lambda _: None]


def _right(bound: tuple[np.ndarray, ...]) -> None:
    _LAST[0] = _right
    a, b, out = bound
    out[...] = (a.astype(np.float32) @ b.astype(np.float32).T).astype(out.dtype)


def _also_right(bound: tuple[np.ndarray, ...]) -> None:
    _right(bound)
    _LAST[0] = _also_right


def _leaves_a_row(bound: tuple[np.ndarray, ...]) -> None:
    _LAST[0] = _leaves_a_row
    a, b, out = bound
    out[1:] = (a[1:].astype(np.float32) @ b.astype(np.float32).T).astype(out.dtype)


def _does_nothing(bound: tuple[np.ndarray, ...]) -> None:
    _LAST[0] = _does_nothing


def _cannot(bound: tuple[np.ndarray, ...]) -> None:
    raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def of(**ways: Callable[..., None]) -> None:
        made = [Way({"way": name}, launch) for name, launch in ways.items()]
        baseline = Baseline(
            NAME,
            "bf16",
            ("bf16",),
            ("cpu",),
            lambda problem: check_multiples(NAME, problem, 8, 8),
            lambda: None,
            lambda problem: _OfNumpy(problem, made),
        )
        monkeypatch.setattr(prepared, "baseline_named", lambda _: baseline)
        monkeypatch.setattr(prepared, "open_marks", NoMarks)

    return of


def test_every_name_has_a_module_its_formats_and_a_digest_of_its_own() -> None:
    assert set(named.names()) == {*kernel_names(), *PACKAGES}
    digests = set()
    for name in named.baseline_names():
        assert named.module_of(name).startswith("narrowbench.measure.vendor.")
        baseline = named.baseline_named(name)
        assert (baseline.name, named.formats_of(name)) == (name, (baseline.operand_format, baseline.operand_format))
        assert name.endswith(baseline.operand_format)
        assert not named.can_be_prepared_beside(name)
        digests.add(named.kernel_sha256(name))
    assert len(digests) == 3
    assert named.formats_of("xla_dot_fp8_e4m3") == ("fp8_e4m3", "fp8_e4m3")
    assert named.can_be_prepared_beside("hopper_wgmma_fp8")


def test_an_unknown_name_is_told_the_nearest_of_all() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'cublaslt_fp8'.*did you mean.*cublaslt_fp8_e4m3"):
        named.module_of("cublaslt_fp8")
    with pytest.raises(ValueError, match=r"unknown kernel 'hopper_wgmma_fp9'.*did you mean.*hopper_wgmma_fp8"):
        named.formats_of("hopper_wgmma_fp9")
    with pytest.raises(ValueError, match=r"unknown baseline 'xla_dot_bf16'"):
        named.baseline_named("xla_dot_bf16")


def test_campaigns_plan_baselines_and_do_not_compile_them() -> None:
    smoke = load_campaign(CONFIGS / "smoke.yaml").model_dump(mode="json")
    planned = read_campaign(smoke | {"plan": {"hopper": [{"kernels": [NAME], "suites": ["gpu"], "modes": ["burst"]}]}})
    assert planned.jobs("hopper") == ((NAME, "gpu"),)
    assert job_digest(NAME, "gpu") != job_digest("cublaslt_bf16", "square")
    with pytest.raises(ValueError, match="unknown kernel 'cublaslt_bf16'"):
        read_campaign(smoke | {"compile": [{"kernels": [NAME], "suites": ["compiled"], "targets": ["h200"]}]})


def test_campaigns_measure_every_baseline_beside_our_kernels() -> None:
    record = campaign_of(CONFIGS / "record.yaml").jobs("hopper")
    for name in named.baseline_names():
        assert {suite for kernel, suite in record if kernel == name} == {"square", "llm_prefill", "llm_decode"}
        assert (name, "gpu") in campaign_of(CONFIGS / "main.yaml").jobs("hopper")


def test_another_version_of_the_library_makes_its_times_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: named.kernel_sha256(name) for name in named.names()}
    monkeypatch.setattr(named, "version_of", lambda package: "99" if package == "torch" else None)
    named.kernel_sha256.cache_clear()
    changed = {name for name in named.names() if named.kernel_sha256(name) != before[name]}
    monkeypatch.undo()
    named.kernel_sha256.cache_clear()
    assert {"torch_scaled_mm_fp8_e4m3", "triton_persistent_fp8_e4m3"} <= changed
    assert changed <= set(named.baseline_names())


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_library_that_is_not_installed_is_a_row_that_names_the_package(
    name: str, run: Callable[[str], tuple[runner.JobReport, list[Row]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, module = PACKAGES[name]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(prepared, "arch_of", lambda _: "hopper")
    started_s = time.monotonic()
    report, rows = run(name)
    assert report.done == {"unsupported": 2}
    assert time.monotonic() - started_s < 20
    for row in rows:
        assert row.reason is not None
        assert row.reason.startswith(f"{name}: package={package} cannot be imported")
        assert f"pip install {package}" in row.reason
        assert row.provenance.kernel_sha256 == named.kernel_sha256(name)
    assert run(name)[0] == runner.JobReport({}, 2, ())


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_baseline_for_gpus_refuses_a_cpu(name: str, run: Callable[[str], tuple[runner.JobReport, list[Row]]]) -> None:
    report, rows = run(name)
    assert report.done == {"unsupported": 2}
    assert all("is not what it runs on, hopper or blackwell" in str(row.reason) for row in rows)


def test_the_fastest_way_that_is_right_is_measured(
    library: Callable[..., None],
    run: Callable[[str], tuple[runner.JobReport, list[Row]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times_s = {_does_nothing: 1e-6, _leaves_a_row: 2e-6, _right: 3e-6, _also_right: 4e-6}

    def known_time_s(workload: Workload, *_: object) -> float:
        workload.wait(workload.enqueue(0))
        return times_s[_LAST[0]]

    monkeypatch.setattr(prepared, "short_time_s", known_time_s)
    library(cannot=_cannot, nothing=_does_nothing, slow=_also_right, right=_right, partial=_leaves_a_row)
    report, rows = run(NAME)
    assert report.done == {"ok": 2}
    for row in rows:
        assert row.config == {"way": "right", "ways_timed": 5}
        assert row.accuracy is not None
        assert row.accuracy.poisoned
        assert row.accuracy.kernel_error < row.accuracy.tolerance
        assert row.compile is not None
        assert row.compile.upcast is None
        assert row.timing is not None
        assert row.timing.rotation_sets > 1


@pytest.mark.parametrize(("launch", "reason"), [(_does_nothing, "left unwritten"), (_leaves_a_row, "left unwritten")])
def test_a_library_that_is_wrong_is_not_timed(
    launch: Callable[..., None],
    reason: str,
    library: Callable[..., None],
    run: Callable[[str], tuple[runner.JobReport, list[Row]]],
) -> None:
    library(only=launch)
    report, rows = run(NAME)
    assert report.done == {"failed": 2}
    assert all(reason in str(row.reason) and row.timing is None for row in rows)


def test_a_library_whose_every_way_faults_says_how(
    library: Callable[..., None], run: Callable[[str], tuple[runner.JobReport, list[Row]]]
) -> None:
    library(one=_cannot, other=_cannot)
    _, rows = run(NAME)
    told = "RuntimeError: none of 2 ways ran; the first: CUBLAS_STATUS_NOT_SUPPORTED"
    assert [row.reason for row in rows] == [told, told]


def test_sustained_rows_tell_toggles_as_those_of_kernels_do(
    library: Callable[..., None], run: Callable[..., tuple[runner.JobReport, list[Row]]]
) -> None:
    library(right=_right)
    report, rows = run(NAME, modes=["sustained"])
    assert report.done == {"ok": 2}
    assert all(row.toggles is not None for row in rows)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"out_formats": ["f32"]}, "are not all among its formats; use a and b in bf16 and out in bf16"),
        ({"operands": [["f32", "f32"]]}, "are not all among its formats"),
        ({"epilogues": ["bias"]}, "epilogue=bias is not what it is asked to do to C"),
    ],
)
def test_what_it_is_not_for_is_unsupported(
    changes: dict[str, object],
    told: str,
    library: Callable[..., None],
    run: Callable[..., tuple[runner.JobReport, list[Row]]],
) -> None:
    library(right=_right)
    report, rows = run(NAME, **changes)
    assert report.done == {"unsupported": 2}
    assert all(told in str(row.reason) for row in rows)


def test_rows_that_do_not_begin_at_whole_16_bytes_are_unsupported() -> None:
    problem = GemmProblem(1, 64, 4100, "fp8_e4m3", "fp8_e4m3")
    with pytest.raises(UnsupportedError, match=r"k=4100 is not a multiple of 16.*pad k to 4112"):
        named.baseline_named("torch_scaled_mm_fp8_e4m3").check(problem)


@pytest.mark.parametrize(
    ("kernel", "plain"),
    [
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_NNT", "nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_NNT"),
        ("_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffEEvT_", "splitKreduce_kernel"),
        ("matmul", "matmul"),
    ],
)
def test_kernels_are_told_without_what_a_compiler_puts_around_their_names(kernel: str, plain: str) -> None:
    assert prepared.plain_name(kernel) == plain


class _FakeDriver:
    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuEventCreate":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))[0] = 77
            return 700 if name == self.refuses else 0

        return call


def test_a_mark_is_an_event_that_is_waited_for_once() -> None:
    driver = _FakeDriver()
    marks = CudaMarks(0, driver)
    token = marks.mark()
    assert token.value == 77
    marks.wait(token)
    assert driver.calls[-3:] == ["cuCtxSetCurrent", "cuEventSynchronize", "cuEventDestroy_v2"]


def test_an_error_of_a_launch_shows_at_the_next_mark() -> None:
    driver = _FakeDriver("cuEventSynchronize")
    marks = CudaMarks(0, driver)
    with pytest.raises(OSError, match="cuEventSynchronize returned CUDA error 700"):
        marks.wait(marks.mark())
