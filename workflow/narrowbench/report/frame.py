"""Result rows as one table: a line a case, with the statistics computed here, on reading. No JAX.

SI units end the columns' names. A missing figure is null. The samples travel along (`samples_s`, `windows_j`), because
the interval of a ratio needs both samples. A line is one case of one `origin`: `record` for the committed results,
`local` for what this machine measured.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pandera.errors
import pandera.pandas as pa

from narrowbench.errors import StoreError
from narrowbench.models.counted import counted
from narrowbench.models.statistics import Summary, summarise
from narrowbench.store.rows import (
    Case,
    Clocks,
    Energy,
    GemmCase,
    RoofCase,
    Row,
    Spread,
    Toggles,
    TuningCase,
    WindowReading,
)
from narrowbench.store.whole import whole

Origin = Literal["record", "local"]

_TOLD_FAULTS = 5

_TEXT, _WHOLE, _REAL, _TRUTH, _LIST = "string", "Int64", "float64", "boolean", "object"

#: Column -> type. Those of `_ALWAYS` are never null.
_COLUMNS = {
    **dict.fromkeys(("origin", "device", "device_kind", "kind", "evidence", "status", "reason", "mode"), _TEXT),
    **dict.fromkeys(("kernel", "suite", "a_format", "b_format", "out_format", "layout", "epilogue"), _TEXT),
    **dict.fromkeys(("distribution", "cache", "quantity", "roof_format", "config"), _TEXT),
    **dict.fromkeys(("m", "n", "k", "seed", "work", "flop", "bytes"), _WHOLE),
    # Of many products in one launch, whose M is the rows of all: how many there are, and of what kind.
    "groups": _WHOLE,
    "groups_kind": _TEXT,
    "intensity_flop_per_byte": _REAL,
    **dict.fromkeys(("time_s", "time_low_s", "time_high_s", "time_p5_s", "time_p95_s"), _REAL),
    **dict.fromkeys(("samples", "dropped", "rotation_bytes"), _WHOLE),
    **dict.fromkeys(("timing_method", "stopped_by", "cross_check_reason", "session"), _TEXT),
    **dict.fromkeys(("flop_per_s", "flop_per_s_low", "flop_per_s_high"), _REAL),
    **dict.fromkeys(("bytes_per_s", "bytes_per_s_low", "bytes_per_s_high"), _REAL),
    **dict.fromkeys(("energy_j", "energy_low_j", "energy_high_j", "energy_net_j", "energy_window_s", "idle_w"), _REAL),
    **dict.fromkeys(("j_per_flop", "j_per_flop_low", "j_per_flop_high", "j_per_flop_net"), _REAL),
    **dict.fromkeys(("mean_power_w", "gain_error_relative"), _REAL),
    "energy_windows": _WHOLE,
    **dict.fromkeys(("energy_source", "energy_meter", "energy_scope", "energy_reason", "clocks_reason"), _TEXT),
    **dict.fromkeys(("sm_clock_min_hz", "sm_clock_hz", "sm_clock_max_hz", "memory_clock_hz"), _REAL),
    **dict.fromkeys(("temperature_c", "power_w", "power_limit_w"), _REAL),
    "throttle_reasons": _TEXT,
    **dict.fromkeys(("kernel_error", "kernel_error_max", "tolerance", "format_error"), _REAL),
    "checked_rows": _WHOLE,
    **dict.fromkeys(("hlo_calls", "instructions", "target"), _TEXT),
    "upcast": _TRUTH,
    **dict.fromkeys(("toggles_along_k", "toggles_along_rows"), _REAL),
    **dict.fromkeys(("drawn_toggles_along_k", "drawn_toggles_along_rows"), _REAL),
    **dict.fromkeys(("registers", "spill_bytes", "shared_memory_bytes", "tensor_memory_columns", "code_bytes"), _WHOLE),
    "compile_s": _REAL,
    **dict.fromkeys(("hbm_read_bytes", "hbm_write_bytes", "l2_read_bytes", "l2_hit_share", "tensor_share"), _REAL),
    **dict.fromkeys(("git_commit", "sources_sha256", "environment_sha256", "versions", "utc_time", "command"), _TEXT),
    **dict.fromkeys(("kernel_sha256", "device_uuid_hash", "host_hash"), _TEXT),
    "git_dirty": _TRUTH,
    "window_s": _REAL,
    "repeat": _WHOLE,
    **dict.fromkeys(("samples_s", "windows_j", "readings_s", "readings_counter_j", "readings_integrated_j"), _LIST),
}
_ALWAYS = {"origin", "device", "device_kind", "kind", "evidence", "status", "utc_time", "sources_sha256", "host_hash"}
_NEVER_NEGATIVE = {name for name, kind in _COLUMNS.items() if kind in (_REAL, _WHOLE)} - {
    "seed",
    "temperature_c",
    "energy_net_j",
    "j_per_flop_net",
}
_CHOICES = {
    "origin": ("record", "local"),
    "kind": ("gemm", "roof", "compile", "counters", "space"),
    "evidence": ("measured", "compiled", "interpreted", "modelled"),
    "status": ("ok", "unsupported", "failed", "unstable"),
    "mode": ("burst", "sustained"),
}
_ORDER = [
    *("origin", "device", "kind", "quantity", "roof_format", "suite", "kernel", "a_format", "b_format", "out_format"),
    *(
        "m",
        "n",
        "k",
        "mode",
        "distribution",
        "cache",
        "epilogue",
        "window_s",
        "repeat",
        "groups",
        "groups_kind",
        "evidence",
        "target",
        "utc_time",
    ),
]

SCHEMA = pa.DataFrameSchema(
    {
        name: pa.Column(
            kind,
            checks=[
                *([pa.Check.isin(_CHOICES[name])] if name in _CHOICES else []),
                *([pa.Check.ge(0)] if name in _NEVER_NEGATIVE else []),
            ],
            nullable=name not in _ALWAYS,
        )
        for name, kind in _COLUMNS.items()
    },
    strict=True,
    ordered=True,
)


def collect(rows: Iterable[Row], origin: Origin) -> pd.DataFrame:
    """The rows as a frame of `SCHEMA`, a line a row, sorted by case; of a search space a line a config.

    Searches of the tuner are no results: left out.
    """
    lines = [line for row in rows if not isinstance(row.case, TuningCase) for line in _lines(row, origin)]
    return _in_order([pd.DataFrame(lines)])


def join(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of several origins or devices as one, sorted by case."""
    return _in_order(frames)


def write(frame: pd.DataFrame, path: Path) -> None:
    """Check a frame and store it as Parquet. Raises pandera's SchemaErrors that lists every fault."""
    checked = SCHEMA.validate(frame, lazy=True)
    with whole(path) as draft, draft.open("wb") as file:
        checked.to_parquet(file, index=False)


def load(path: Path) -> pd.DataFrame:
    """The frame of a Parquet file, checked. Raises StoreError, with the first faults, for a file that holds something
    else, and OSError for one that cannot be read."""
    with path.open("rb") as file:
        try:
            return SCHEMA.validate(_typed(pd.read_parquet(file)), lazy=True)
        except pandera.errors.SchemaErrors as error:
            cases = error.failure_cases[["column", "check", "failure_case"]].drop_duplicates()
            faults = cases.head(_TOLD_FAULTS).to_string(index=False)
            more = f"\nand {len(cases) - _TOLD_FAULTS} more" if len(cases) > _TOLD_FAULTS else ""
        except (ValueError, TypeError, OSError) as error:  # of damage, as pandas and pyarrow tell it
            faults, more = str(error), ""
    raise StoreError(f"{path} is no frame of results, or of another version; collect it again\n{faults}{more}")


def _in_order(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    typed = [_typed(frame.reindex(columns=list(_COLUMNS))) for frame in frames]
    joined = pd.concat(typed, ignore_index=True).sort_values(_ORDER, kind="stable", ignore_index=True)
    return SCHEMA.validate(joined, lazy=True)


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns in the types of `_COLUMNS`, which Parquet and other pandas versions do not all give back."""
    typed = frame.astype({name: kind for name, kind in _COLUMNS.items() if name in frame})
    for name in typed.columns.intersection([name for name, kind in _COLUMNS.items() if kind == _LIST]):
        typed[name] = typed[name].where(typed[name].notna(), None)
    return typed


def _lines(row: Row, origin: Origin) -> Iterator[dict[str, Any]]:
    line = _line(row, origin)
    if row.space is None:
        yield line
        return
    for config in row.space.configs:
        texts = {"config": _json(config.config), "instructions": _json(config.multiplies), "target": row.space.target}
        yield line | config.model_dump(exclude={"multiplies"}) | texts


def _line(row: Row, origin: Origin) -> dict[str, Any]:
    case = row.case
    line: dict[str, Any] = {
        "origin": origin,
        "evidence": row.evidence,
        "status": row.status,
        "reason": row.reason,
        "config": _json(row.config),
        "energy_reason": row.energy_reason,
        "clocks_reason": row.clocks_reason,
        **_of_case(case),
        **_of_provenance(row),
    }
    if row.timing is not None:
        line |= _of_timing(row)
    if row.energy is not None:
        line |= _of_energy(row.energy, line["flop"])
    if row.window_readings is not None:
        line |= _of_readings(row.window_readings)
    if row.clocks is not None:
        line |= _of_clocks(row.clocks)
    if row.accuracy is not None:
        line |= row.accuracy.model_dump(exclude={"poisoned"})
    if row.compile is not None:
        line |= row.compile.model_dump(exclude={"hlo_calls", "instructions"})
        line |= {"hlo_calls": "; ".join(row.compile.hlo_calls), "instructions": _json(row.compile.instructions)}
    for name, toggles in (("toggles", row.toggles), ("drawn_toggles", row.drawn_toggles)):
        if toggles is not None:
            line |= _of_toggles(toggles, name)
    if row.counters is not None:
        line |= asdict(counted(row.counters))
    return line


def _of_case(case: Case) -> dict[str, Any]:
    if isinstance(case, RoofCase):
        counts = {"flop": case.work} if case.quantity == "flop" else {"bytes": case.work}
        return case.model_dump(exclude={"format"}) | {"roof_format": case.format, "flop": None, "bytes": None} | counts
    flop = case.problem.flop
    least_bytes = case.least_bytes if isinstance(case, GemmCase) else case.problem.bytes
    groups = case.groups if isinstance(case, GemmCase) else None
    return case.model_dump(exclude={"config", "groups"}) | {
        "groups": None if groups is None else groups.count,
        "groups_kind": None if groups is None else groups.kind,
        "flop": flop,
        "bytes": least_bytes,
        "intensity_flop_per_byte": flop / least_bytes,
    }


def _of_timing(row: Row) -> dict[str, Any]:
    assert row.timing is not None
    timing, counts = row.timing, _of_case(row.case)
    summary = summarise(timing.samples_s)
    line: dict[str, Any] = {
        "time_s": summary.median,
        "time_low_s": _low(summary),
        "time_high_s": _high(summary),
        "time_p5_s": summary.p5,
        "time_p95_s": summary.p95,
        "samples": summary.samples,
        "dropped": sum(len(dropped.samples_s) for dropped in timing.dropped),
        "rotation_bytes": timing.rotation_bytes,
        "timing_method": timing.method,
        "stopped_by": timing.stop_rule.stopped_by,
        "cross_check_reason": timing.cross_check_reason,
        "session": timing.session,
        "samples_s": list(timing.samples_s),
    }
    for name in ("flop", "bytes"):
        if counts[name] is not None:
            line |= _rates(counts[name], f"{name}_per_s", summary)
    return line


def _rates(work: float, name: str, time: Summary) -> dict[str, Any]:
    """Work over time: the rate of the median time, its interval turned round."""
    slow, fast = _high(time), _low(time)
    return {
        name: work / time.median,
        f"{name}_low": None if slow is None else work / slow,
        f"{name}_high": None if fast is None else work / fast,
    }


def _low(summary: Summary) -> float | None:
    return None if summary.interval is None else summary.interval.low


def _high(summary: Summary) -> float | None:
    return None if summary.interval is None else summary.interval.high


def _of_energy(energy: Energy, flop: int | None) -> dict[str, Any]:
    """Joules of a launch by the reading that is the result; a window without that reading does not count."""
    read = [(w, w.counter_j if energy.source == "counter" else w.integrated_j) for w in energy.windows]
    windows = [(window, joules) for window, joules in read if joules is not None]
    a_launch = [joules / window.launches for window, joules in windows]
    summary = summarise(a_launch)
    low, high = _low(summary), _high(summary)
    idle_w = energy.idle_w
    net = [(j - idle_w * w.window_s) / w.launches for w, j in windows] if idle_w is not None else None
    net_j = summarise(net).median if net is not None else None
    line = {
        "energy_j": summary.median,
        "energy_low_j": low,
        "energy_high_j": high,
        "energy_net_j": net_j,
        "energy_windows": len(windows),
        "energy_window_s": summarise([window.window_s for window, _ in windows]).median,
        "mean_power_w": summarise([joules / window.window_s for window, joules in windows]).median,
        "idle_w": idle_w,
        "energy_source": energy.source,
        "energy_meter": energy.meter,
        "energy_scope": energy.scope,
        "gain_error_relative": energy.gain_error_relative,
        "windows_j": a_launch,
    }
    if flop is not None:
        per_flop = {"": summary.median, "_low": low, "_high": high, "_net": net_j}
        line |= {f"j_per_flop{end}": None if j is None else j / flop for end, j in per_flop.items()}
    return line


def _of_toggles(toggles: Toggles, name: str) -> dict[str, Any]:
    """The means of both operands, which are fetched and multiplied side by side; null unless both are known."""
    along = {"k": (toggles.a_along_k, toggles.b_along_k), "rows": (toggles.a_along_rows, toggles.b_along_rows)}
    return {f"{name}_along_{what}": None if a is None or b is None else (a + b) / 2 for what, (a, b) in along.items()}


def _of_readings(readings: Sequence[WindowReading]) -> dict[str, Any]:
    """Length of every window, and joules of a launch in it by counter and by integrated power; NaN where not read."""
    return {
        "readings_s": [reading.window_s for reading in readings],
        "readings_counter_j": [_a_launch(reading.counter_j, reading.launches) for reading in readings],
        "readings_integrated_j": [_a_launch(reading.integrated_j, reading.launches) for reading in readings],
    }


def _a_launch(joules: float | None, launches: int) -> float:
    return math.nan if joules is None else joules / launches


def _of_clocks(clocks: Clocks) -> dict[str, Any]:
    sm = clocks.sm_hz
    return {
        "sm_clock_min_hz": sm.min if sm else None,
        "sm_clock_hz": sm.median if sm else None,
        "sm_clock_max_hz": sm.max if sm else None,
        "memory_clock_hz": _median(clocks.memory_hz),
        "temperature_c": _median(clocks.temperature_c),
        "power_w": _median(clocks.power_w),
        "power_limit_w": clocks.power_limit_w,
        "throttle_reasons": _json(clocks.throttle_reasons),
    }


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _of_provenance(row: Row) -> dict[str, Any]:
    return row.provenance.model_dump(exclude={"versions"}) | {"versions": _json(row.provenance.versions)}


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)
