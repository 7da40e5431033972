"""Measured rows as what the models are fitted on: from the frame of results to launches with their traffic. No JAX.

Lines come as `narrowbench.report.frame` makes them. Only those are taken that were measured, are ok and belong to a
device with a profile.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from narrowbench.models.energy import EnergySample
from narrowbench.models.hardware import DeviceProfile, profile_of
from narrowbench.models.kerneltime import KernelRun, machine_of
from narrowbench.models.prediction import ShapeMnk
from narrowbench.models.tilings import Tiling, assumed_tiling, has_known_schedule, tiling_of
from narrowbench.models.traffic import Schedule, Traffic, tile_traffic
from narrowgemm.problem import GemmProblem


def kernel_runs(frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]) -> list[KernelRun]:
    """Launches of kernels whose schedule is known, each at the clock that it held where that was read."""
    runs = []
    for line, profile in _gemm_lines(frame, profiles):
        if not has_known_schedule(line.kernel):
            continue
        clock_hz = None if pd.isna(line.sm_clock_hz) else float(line.sm_clock_hz)
        machine = machine_of(profile, line.a_format, line.b_format, clock_hz)
        problem = _problem(line)
        tiling = tiling_of(line.kernel, json.loads(line.config), problem, machine.cores)
        runs.append(KernelRun(_name(line), line.kernel, problem, tiling, machine, float(line.time_s)))
    return runs


def energy_samples(frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]) -> list[EnergySample]:
    """Launches of GEMMs whose energy was measured, with the traffic of their schedule.

    A vendor's schedule is not known: it is taken to be `assumed_tiling`, of which only the L2 traffic depends much.
    """
    lines = ((line, profile) for line, profile in _gemm_lines(frame, profiles) if not pd.isna(line.energy_j))
    return [_energy_sample(line, profile) for line, profile in lines]


def group_of(line: pd.Series) -> str:
    """What the cases have in common that share an ε_flop: formats and data, and whether weights had been folded.

    Weights whose blocks are added apart take other work a FLOP than those that the tensor core adds over all of K.
    """
    how = ", folded" if str(line.kernel).endswith("_folded") else ""
    return f"{line.a_format} × {line.b_format}{how}, {line.distribution}"


def memory_samples(frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]) -> list[EnergySample]:
    """Launches that only move bytes to cores, from memory or from the last-level cache alone, with their energy."""
    lines = _lines(frame[frame.quantity.isin(("read", "copy", "cache_read"))], profiles)
    return [
        EnergySample(
            name=f"{line.device} {line.quantity} {line.work} bytes {line['mode']}",
            shape=(1, 1, int(line.work)),
            group="no arithmetic",
            flop=0.0,
            hbm_bytes=0.0 if line.quantity == "cache_read" else float(line.work),
            l2_bytes=float(line.work),
            time_s=float(line.time_s),
            energy_j=float(line.energy_j),
        )
        for line, _ in lines
        if not pd.isna(line.energy_j)
    ]


@dataclass(frozen=True)
class CountedLaunch:
    """A launch whose traffic hardware counted, and what the model says of it; null for a schedule that is not known."""

    line: pd.Series
    problem: GemmProblem
    schedule: Schedule | None
    traffic: Traffic | None


def counted_launches(frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]) -> Iterator[CountedLaunch]:
    """Launches with hardware counters, beside the traffic of their schedule."""
    for line, profile in _lines(frame[frame.kind == "counters"], profiles):
        problem = _problem(line)
        if not has_known_schedule(line.kernel):
            yield CountedLaunch(line, problem, None, None)
            continue
        machine = machine_of(profile, line.a_format, line.b_format)
        schedule = tiling_of(line.kernel, json.loads(line.config), problem, machine.cores).schedule
        yield CountedLaunch(line, problem, schedule, tile_traffic(problem, schedule, machine.cache_bytes))


def _energy_sample(line: pd.Series, profile: DeviceProfile) -> EnergySample:
    problem = _problem(line)
    machine = machine_of(profile, line.a_format, line.b_format)
    traffic = tile_traffic(problem, _tiling(line, problem, machine.cores).schedule, machine.cache_bytes)
    return EnergySample(
        name=_name(line),
        shape=_shape(line),
        group=group_of(line),
        flop=float(problem.flop),
        hbm_bytes=float(traffic.hbm_bytes),
        l2_bytes=float(traffic.l2_read_bytes + traffic.write_bytes),
        time_s=float(line.time_s),
        energy_j=float(line.energy_j),
        kernel=str(line.kernel),
    )


def _tiling(line: pd.Series, problem: GemmProblem, cores: int) -> Tiling:
    if has_known_schedule(line.kernel):
        return tiling_of(line.kernel, json.loads(line.config), problem, cores)
    return assumed_tiling(problem, cores)


def _gemm_lines(
    frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]
) -> Iterator[tuple[pd.Series, DeviceProfile]]:
    """Lines of single GEMMs that ran in the formats they name: a baseline that was widened tells nothing of its own."""
    gemms = frame[(frame.kind == "gemm") & frame.groups.isna() & ~frame.upcast.fillna(False).astype(bool)]
    return _lines(gemms, profiles)


def _lines(frame: pd.DataFrame, profiles: Mapping[str, DeviceProfile]) -> Iterator[tuple[pd.Series, DeviceProfile]]:
    for _, line in frame[(frame.status == "ok") & (frame.evidence == "measured")].iterrows():
        profile = profile_of(line.device, line.device_kind, profiles)
        if profile is not None:
            yield line, profile


def _problem(line: pd.Series) -> GemmProblem:
    return GemmProblem(*_shape(line), line.a_format, line.b_format, line.out_format)


def _shape(line: pd.Series) -> ShapeMnk:
    return int(line.m), int(line.n), int(line.k)


def _name(line: pd.Series) -> str:
    formats = f"{line.a_format} × {line.b_format}"
    return f"{line.device} {line.kernel} {line.m}×{line.n}×{line.k} {formats} {line.distribution} {line['mode']}"
