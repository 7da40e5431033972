"""Nsight Compute's command line: what it counts of kernels that a child process launches, read from its CSV. No JAX.

Options and format are those of the Nsight Compute CLI's documentation (`--csv --page raw`): lines of its own begin with
`==`; then come a header, a line of units and a line a kernel, in the order of their launches.
"""

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from narrowbench.errors import CountersError
from narrowbench.store.counters import CountedKernel, Metric

#: What is asked for, as far as the GPU has it. Memory: bytes of DRAM, under two names by the age of the chip. L2:
#: sectors of 32 bytes by who asks for them (tex: the multiprocessors; ltcfabric: the other half of a divided L2), and
#: bytes that arrive in multiprocessors.
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__bytes_op_read.sum",
    "dram__bytes_op_write.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_sectors_srcunit_tex_lookup_hit.sum",
    "lts__t_sectors_srcunit_tex_lookup_miss.sum",
    "lts__t_sectors_srcunit_ltcfabric.sum",
    "lts__t_sector_hit_rate.pct",
    "lts__t_sector_op_read_hit_rate.pct",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "sm__cycles_elapsed.max",
    "gpu__time_duration.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
)
#: Caches are emptied before each pass: counts are those of a launch that finds nothing in the L2, as the model has it.
CACHE_CONTROL = "all"
#: Clocks stay as they are: no privilege is needed to lock them, and counts of bytes do not depend on them.
CLOCK_CONTROL = "none"

#: A launch is replayed a few times for all metrics: minutes mean that something hangs.
_TIMEOUT_S = 600
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_FIRST_COLUMN = '"ID"'


@dataclass(frozen=True)
class Ncu:
    """An `ncu` that runs here.

    path, version: of the program.
    metrics:       those of `METRICS` that the GPU has.
    missing:       the others, each with the reason.
    """

    path: str
    version: str
    metrics: tuple[str, ...]
    missing: Mapping[str, str]


def open_ncu() -> Ncu:
    """The `ncu` on PATH. Raises CountersError where there is none, or where it knows no metric of the GPU."""
    path = shutil.which("ncu")
    if path is None:
        raise CountersError("ncu: is not on PATH; install Nsight Compute and put its folder there")
    banner = _run([path, "--version"]).stdout
    version = re.search(r"Version (\d[\d.]*)", banner)
    if version is None:
        raise CountersError(f"{path}: names no version, but {_last_words(banner)!r}; is it Nsight Compute?")
    listing = _run([path, "--query-metrics"]).stdout
    known = set(re.findall(r"^(\w+__\w+)\s", listing, re.MULTILINE))
    metrics = tuple(name for name in METRICS if name.partition(".")[0] in known)
    if not metrics:
        raise CountersError(
            f"ncu {version[1]}: lists none of the metrics that are asked for, but {_last_words(listing)!r}; "
            "run `ncu --query-metrics` on this machine, and use a version that knows its GPU"
        )
    reason = f"ncu {version[1]} does not list it for this GPU"
    return Ncu(path, version[1], metrics, {name: reason for name in METRICS if name not in metrics})


def count(ncu: Ncu, command: Sequence[str], environment: Mapping[str, str], log: Path) -> str:
    """Run `command` under the profiler, from `cuProfilerStart` to `cuProfilerStop` alone; the CSV, also left in `log`.

    Raises CountersError, with what helps, where the command fails or nothing was counted.
    """
    arguments = [
        *(ncu.path, "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log), "--profile-from-start", "off", "--target-processes", "application-only"),
        *("--replay-mode", "kernel", "--cache-control", CACHE_CONTROL, "--clock-control", CLOCK_CONTROL),
        *("--metrics", ",".join(ncu.metrics)),
    ]
    done = _run([*arguments, *command], environment)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    said = f"{done.stdout}\n{done.stderr}\n{text}"
    if _NO_PERMISSION in said:
        raise CountersError(
            f"ncu: may not read the counters of this GPU ({_NO_PERMISSION}); run it as root, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    if done.returncode != 0 or not any(line.startswith(_FIRST_COLUMN) for line in text.splitlines()):
        raise CountersError(
            f"ncu: counted nothing and ended with status {done.returncode}: {_last_words(said)}; no other profiler may "
            "use the GPU meanwhile, nor DCGM read its counters"
        )
    return text


def read_csv(text: str, metrics: Iterable[str]) -> tuple[list[CountedKernel], dict[str, str]]:
    """The kernels of a CSV in order, and the metrics that any of them has no value of, with the reason.

    Raises CountersError for a text without a table.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    rows = list(csv.reader(dropwhile(lambda line: not line.startswith(_FIRST_COLUMN), lines)))
    if len(rows) < 2 or "Kernel Name" not in rows[0]:
        raise CountersError(f"ncu: wrote no table of kernels, but {_last_words(text)!r}; see its log")
    header, units, *cells = rows
    missing: dict[str, str] = {}
    kernels = []
    for line in cells:
        found: dict[str, Metric] = {}
        for name, unit, cell in _wanted(metrics, header, units, line):
            value = _number(cell)
            if value is None:
                missing[name] = f"ncu printed {cell!r}"
            else:
                found[name] = Metric(value=value, unit=unit)
        kernels.append(CountedKernel(name=line[header.index("Kernel Name")], metrics=found))
    missing |= {name: "ncu printed no such column" for name in metrics if name not in header}
    return kernels, missing


def of_launches(kernels: Sequence[CountedKernel], launches: int) -> list[list[CountedKernel]]:
    """The kernels of each of several launches, which have the same kernels in the same order.

    Raises CountersError where they do not: then nothing says which kernel is whose.
    """
    each = len(kernels) // launches
    groups = [list(kernels[start : start + each]) for start in range(0, len(kernels), each)] if each else []
    names = {tuple(kernel.name for kernel in group) for group in groups}
    if len(groups) != launches or len(names) != 1:
        seen = ", ".join(kernel.name for kernel in kernels) or "none"
        raise CountersError(f"ncu: kernels of {launches} launches cannot be told apart: {seen}; count one at a time")
    return groups


def _wanted(
    metrics: Iterable[str], header: list[str], units: list[str], line: list[str]
) -> Iterator[tuple[str, str, str]]:
    """Name, unit and cell of each metric that is a column."""
    for name in metrics:
        if name in header:
            column = header.index(name)
            yield name, units[column], line[column]


def _number(cell: str) -> float | None:
    """A figure with or without separators of thousands; None for `n/a` and the like."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _run(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    """Run a command, with figures printed as in C. Raises CountersError where it cannot be started or never ends."""
    settings = {**environment, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", env=settings, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CountersError(f"{arguments[0]}: {error}; run it by hand to see why") from error


def _last_words(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])[-600:]
