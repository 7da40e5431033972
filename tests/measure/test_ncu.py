"""Nsight Compute's CSV and its refusals. `ncu_raw.csv` is written by hand from the documented format, not recorded."""

import os
import sys
from pathlib import Path

import pytest

from narrowbench.errors import CountersError
from narrowbench.measure import ncu
from narrowbench.store.counters import CountedKernel, Metric

RAW = (Path(__file__).parent / "ncu_raw.csv").read_text(encoding="utf-8")
WANTED = ("dram__bytes_read.sum", "lts__t_sector_hit_rate.pct", "sm__inst_executed_pipe_tensor.sum", "absent.sum")


def write_ncu(folder: Path, body: str, listing: str = "dram__bytes_read   Counter   byte   # of bytes read") -> None:
    """A program called `ncu`, that knows its version, lists metrics and otherwise does what `body` says."""
    folder.mkdir()
    script = folder / "ncu"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "arguments = sys.argv[1:]\n"
        "if arguments == ['--version']: sys.exit(print('NVIDIA (R) Nsight Compute\\nVersion 2025.3.1.0 (build 1)'))\n"
        f"if arguments == ['--query-metrics']: sys.exit(print({listing!r}))\n"
        "log = arguments[arguments.index('--log-file') + 1]\n"
        f"{body}\n"
    )
    script.chmod(0o755)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program called `ncu` with this body on PATH, alone."""

    def put(body: str, **changes: str) -> None:
        write_ncu(tmp_path / "bin", body, **changes)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    return put


def test_kernels_come_in_order_with_metrics_as_they_are_printed() -> None:
    kernels, missing = ncu.read_csv(RAW, WANTED)
    assert [kernel.name for kernel in kernels] == ["hopper_wgmma_fp8"] * 2
    assert kernels[0].metrics == {
        "dram__bytes_read.sum": Metric(value=52_428_800, unit="byte"),
        "lts__t_sector_hit_rate.pct": Metric(value=83.41, unit="%"),
    }
    assert kernels[1].metrics["dram__bytes_read.sum"].value == 54_525_952
    assert missing == {
        "sm__inst_executed_pipe_tensor.sum": "ncu printed 'n/a'",
        "absent.sum": "ncu printed no such column",
    }


@pytest.mark.parametrize("text", ["", "==WARNING== No kernels were profiled.\n", '"ID","Process ID"\n"",""\n'])
def test_a_text_without_kernels_is_refused(text: str) -> None:
    with pytest.raises(CountersError, match="no table of kernels"):
        ncu.read_csv(text, WANTED)


def _kernels(*names: str) -> list[CountedKernel]:
    return [CountedKernel(name=name, metrics={}) for name in names]


def test_each_launch_has_its_kernels() -> None:
    groups = ncu.of_launches(_kernels("gemm", "sum", "gemm", "sum"), 2)
    assert [[kernel.name for kernel in group] for group in groups] == [["gemm", "sum"]] * 2


@pytest.mark.parametrize("names", [("gemm", "sum", "gemm"), ("gemm", "gemm", "sum", "gemm"), ("gemm",), ()])
def test_launches_that_cannot_be_told_apart_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(CountersError, match="count one at a time"):
        ncu.of_launches(_kernels(*names), 2)


def test_without_ncu_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CountersError, match="not on PATH; install Nsight Compute"):
        ncu.open_ncu()


def test_only_metrics_that_the_gpu_has_are_asked_for(install) -> None:
    listing = "Device NVIDIA H200 (GH100)\n---\ndram__bytes_read  Counter  byte\nlts__t_sector_hit_rate  Ratio\n"
    install("", listing=listing)
    found = ncu.open_ncu()
    assert found.version == "2025.3.1.0"
    assert found.metrics == ("dram__bytes_read.sum", "lts__t_sector_hit_rate.pct")
    assert set(found.metrics) | set(found.missing) == set(ncu.METRICS)
    assert "2025.3.1.0 does not list it" in found.missing["sm__cycles_elapsed.max"]


def test_an_ncu_that_knows_nothing_of_the_gpu_is_refused(install) -> None:
    install("", listing="==ERROR== No supported device")
    with pytest.raises(CountersError, match=r"lists none of the metrics.*No supported device"):
        ncu.open_ncu()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("open(log, 'w').write('==ERROR== ERR_NVGPUCTRPERM - no permission')", "run it as root"),
        ("open(log, 'w').write('==WARNING== No kernels were profiled.')", "No kernels were profiled"),
        ("sys.exit('==ERROR== Failed to find metric x')", "status 1: ==ERROR== Failed to find metric x"),
        ("open(log, 'w').write('\"ID\",\"Kernel Name\"'); sys.exit(7)", "status 7"),
    ],
)
def test_a_refusal_says_why_and_what_helps(install, tmp_path: Path, body: str, told: str) -> None:
    install(body)
    with pytest.raises(CountersError, match=told):
        ncu.count(ncu.open_ncu(), ["true"], os.environ, tmp_path / "log")


def test_the_command_runs_under_the_profiler_with_its_environment(install, tmp_path: Path) -> None:
    install("import os; open(log, 'w').write('\"ID\"\\n' + ' '.join([os.environ['MARK'], *arguments]))")
    text = ncu.count(ncu.open_ncu(), ["python", "-m", "child"], os.environ | {"MARK": "seen"}, tmp_path / "log")
    assert text.splitlines()[1].startswith("seen --csv --page raw")
    assert "--profile-from-start off" in text
    assert "--clock-control none" in text
    assert text.endswith("--metrics dram__bytes_read.sum python -m child")
