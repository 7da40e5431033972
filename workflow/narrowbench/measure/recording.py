"""From prepared cases to rows: sampling, what the device said meanwhile, and what became of each."""

import zlib
from collections.abc import Sequence

import numpy as np

from narrowbench.config import SustainedSettings
from narrowbench.measure import clocks
from narrowbench.measure.accuracy import WrongResultError
from narrowbench.measure.bench import Bench
from narrowbench.measure.devices import LocalDevice
from narrowbench.measure.energy import energy_of, window_readings
from narrowbench.measure.gemm import Prepared
from narrowbench.measure.provenance import provenance_of
from narrowbench.measure.sampling import Sampled, burst, sustained, timing_of
from narrowbench.measure.timing import TimerError
from narrowbench.store.rows import Clocks, Energy, GemmCase, Provenance, RoofCase, Row, Status, StopRule, TuningCase
from narrowgemm.errors import UnsupportedError

type TimedCase = GemmCase | RoofCase

#: What every row's digest of sources is taken over, beside the kernel's own module.
MODULES = ("narrowbench.measure.runner",)


def rows_of(prepared: Sequence[tuple[TimedCase, Prepared]], bench: Bench, session: str | None) -> list[Row]:
    """One row for each case, all of one mode, sampled in turn. Faults of the device while sampling are raised."""
    if not prepared:
        return []
    mode = prepared[0][0].mode
    # The order of turns and the jitter of windows: random, and the same when the case is run again.
    rng = np.random.default_rng(zlib.crc32(prepared[0][0].model_dump_json().encode()))
    workloads = [item.workload for _, item in prepared]
    poll_s = bench.protocol.energy.poll_s
    try:
        if mode == "burst":
            sampled, stop = burst(workloads, bench.timer, bench.source, bench.protocol.burst, poll_s, rng)
        else:
            settings = _with_window(bench.protocol.sustained, prepared[0][0])
            sampled, stop = sustained(workloads, bench.timer, bench.source, bench.meter, settings, poll_s, rng)
    finally:
        bench.timer.close()
    others = bench.share.others()
    return [
        row_of(case, item, found, stop, bench, others, session)
        for (case, item), found in zip(prepared, sampled, strict=True)
    ]


def failure(case: TimedCase | TuningCase, device: LocalDevice, error: Exception) -> Row:
    """The row of a case that could not be measured, with the reason."""
    status: Status = "unsupported" if isinstance(error, UnsupportedError) else "failed"
    is_told = isinstance(error, UnsupportedError | WrongResultError | TimerError)
    text = " ".join(str(error).split())[:2000]
    return Row(
        case=case,
        evidence="measured",
        status=status,
        reason=text if is_told else f"{type(error).__name__}: {text}",
        provenance=_provenance(case, device),
    )


def row_of(
    case: TimedCase | TuningCase,
    prepared: Prepared,
    sampled: Sampled,
    stop: StopRule,
    bench: Bench,
    others: int | None,
    session: str | None,
) -> Row:
    """The row of a case that was sampled; `others` processes used the device meanwhile."""
    timing, reason = timing_of(sampled, prepared.workload, bench.timer, stop, bench.protocol.cross_check, session)
    if others:
        timing, reason = None, f"{others} other process{'es' if others > 1 else ''} used the device meanwhile"
    common = {
        "case": case,
        "config": prepared.config,
        "tuned_table_sha256": prepared.tuned_table_sha256,
        "evidence": "measured",
        "accuracy": prepared.accuracy,
        "compile": prepared.compiled,
        "toggles": prepared.toggles,
        "drawn_toggles": prepared.drawn_toggles,
        "provenance": _provenance(case, bench.device),
    }
    if timing is None:
        return Row.model_validate(common | {"status": "unstable", "reason": reason})
    device_clocks, clocks_reason = _clocks(sampled, bench)
    energy, energy_reason = _energy(sampled, bench)
    return Row.model_validate(
        common
        | {
            "status": "ok",
            "timing": timing,
            "energy": energy,
            "energy_reason": energy_reason,
            "window_readings": window_readings(sampled.windows, sampled.readings) if _is_of_windows(case) else None,
            "clocks": device_clocks,
            "clocks_reason": clocks_reason,
        }
    )


def _is_of_windows(case: TimedCase | TuningCase) -> bool:
    """Whether the length of its windows is what a case studies."""
    return isinstance(case, GemmCase) and case.window_s is not None


def _with_window(settings: SustainedSettings, case: TimedCase) -> SustainedSettings:
    """The protocol's windows, or those whose length the case studies."""
    studied = case.window_s if isinstance(case, GemmCase) else None
    return settings if studied is None else settings.model_copy(update={"window_s": studied})


def _clocks(sampled: Sampled, bench: Bench) -> tuple[Clocks | None, str | None]:
    if bench.source is None:
        return None, bench.source_reason
    if not sampled.readings:
        return None, "the samples were shorter than the period of the readings"
    return clocks.summarise(sampled.readings, bench.source), None


def _energy(sampled: Sampled, bench: Bench) -> tuple[Energy | None, str | None]:
    if sampled.meter_fault is not None:
        return None, sampled.meter_fault
    limit_w = bench.source.power_limit_w if bench.source else None
    return energy_of(
        sampled.windows,
        sampled.readings,
        bench.meter,
        bench.meter_reason,
        bench.idle,
        bench.protocol.energy.min_window_s,
        limit_w,
        "package" if bench.device.platform == "cpu" else "board",
    )


def _provenance(case: TimedCase | TuningCase, device: LocalDevice) -> Provenance:
    if isinstance(case, RoofCase):
        return provenance_of(device, MODULES)
    return provenance_of(device, MODULES, case.kernel, case.many)
