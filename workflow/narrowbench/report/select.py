"""Which lines of the frame a figure or table shows, and in what order."""

import math
from dataclasses import dataclass

import pandas as pd

from narrowbench.models.statistics import Interval

#: What makes two kernels' lines comparable: the same work on the same device, from the same kind of data, in one mode.
SAME_WORK = ["origin", "device", "m", "n", "k", "mode", "distribution", "cache", "epilogue", "out_format"]


#: What makes them lines of one case, but for who asked for it and when.
SAME_CASE = [*SAME_WORK, "kernel", "a_format", "b_format"]
#: What makes lines of many products in one launch differ beside; null for single ones.
OF_GROUPS = ["groups", "groups_kind"]
#: The very board. Joules of two are not compared but to see how boards and their sensors differ.
BOARD = "device_uuid_hash"
#: Data that toggles no bits from one element to the next. A kernel that is timed on it was checked on normal data.
CONSTANT = ("zeros", "ones")
#: Of every interval in the frame.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Reading:
    """A figure of one line with its interval, None where there were too few samples for one."""

    value: float
    interval: Interval | None


def reading(line: pd.Series, name: str) -> Reading:
    """The figure in a column of the frame that has `_low` and `_high` beside it."""
    low, high = float(line[f"{name}_low"]), float(line[f"{name}_high"])
    return Reading(float(line[name]), None if math.isnan(low) else Interval(low, high, CONFIDENCE))


@dataclass(frozen=True)
class Place:
    """Where lines come from: a device, and whether the record or this machine's own run."""

    origin: str
    device: str


def is_measured(frame: pd.DataFrame) -> pd.Series:
    """Lines of what was measured and passed."""
    return (frame.status == "ok") & (frame.evidence == "measured")


def is_timed(frame: pd.DataFrame) -> pd.Series:
    """Lines of single GEMMs that were measured and passed, once and by the protocol's windows.

    Not those that study other lengths of windows, nor those that repeat a measurement, nor many products in one launch.
    """
    return _is_gemm(frame) & frame.groups.isna() & frame.window_s.isna() & frame["repeat"].isna()


def _is_gemm(frame: pd.DataFrame) -> pd.Series:
    return is_measured(frame) & (frame.kind == "gemm")


def timed(frame: pd.DataFrame) -> pd.DataFrame:
    """The lines that `is_timed` says."""
    return frame[is_timed(frame)]


def of_windows(frame: pd.DataFrame) -> pd.DataFrame:
    """Lines of GEMMs that study the length of the windows."""
    return frame[_is_gemm(frame) & frame.groups.isna() & frame.window_s.notna() & frame["repeat"].isna()]


def repeated(frame: pd.DataFrame) -> pd.DataFrame:
    """Lines of GEMMs that repeat a measurement, on another day or board."""
    return frame[_is_gemm(frame) & frame.groups.isna() & frame.window_s.isna() & frame["repeat"].notna()]


def timed_anywhere(frame: pd.DataFrame) -> pd.DataFrame:
    """The lines of `timed` and of `repeated`, in order of time: for what compares lines of one board."""
    return pd.concat([timed(frame), repeated(frame)]).sort_values("utc_time", kind="stable")


def grouped(frame: pd.DataFrame) -> pd.DataFrame:
    """Lines of batches and groups, many products in one launch, that were measured and passed, once."""
    return frame[_is_gemm(frame) & frame.groups.notna() & frame.window_s.isna() & frame["repeat"].isna()]


def usual(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured GEMMs of normal data, rotated operands and no epilogue: what figures show unless they say otherwise."""
    is_usual = (frame.distribution == "normal") & (frame.cache == "rotated") & (frame.epilogue == "none")
    return frame[is_timed(frame) & is_usual]


def data_of(line: pd.Series) -> str:
    """The data that a GEMM was done on, and the epilogue that it was finished with."""
    return str(line.distribution) if line.epilogue == "none" else f"{line.distribution}, {line.epilogue}"


def once(lines: pd.DataFrame, *apart: str) -> pd.DataFrame:
    """Of a kernel's lines for the same work the one that says most: taken in turn with others, else the newest.

    Lines that differ in one of the columns `apart` are all kept.
    """
    ranked = lines.assign(took_turns=lines.session.notna()).sort_values(["took_turns", "utc_time"], kind="stable")
    kept = ranked.drop_duplicates([*SAME_CASE, *apart], keep="last")
    return lines.loc[kept.index.sort_values()]


def places(frame: pd.DataFrame) -> list[Place]:
    """Every place of the frame, this machine's first, and there the fastest device first."""
    fastest = timed(frame).groupby(["origin", "device"], as_index=False).flop_per_s.max()
    best = {Place(*where): rate for *where, rate in fastest.itertuples(index=False)}
    return sorted(best, key=lambda place: (place.origin != "local", -best[place], place.device))


def at(frame: pd.DataFrame, place: Place, mode: str | None = None) -> pd.DataFrame:
    """Lines of a place, of one mode or of both."""
    lines = frame[(frame.origin == place.origin) & (frame.device == place.device)]
    return lines if mode is None else lines[lines["mode"] == mode]


def modes(frame: pd.DataFrame) -> list[str]:
    """The modes of the frame's lines, burst first."""
    return sorted(str(mode) for mode in frame["mode"].dropna().unique())


def why_no_energy(lines: pd.DataFrame) -> str:
    """What the rows themselves say of their missing energy: sustained ones, for none else is asked of a meter."""
    sustained = lines[lines["mode"] == "sustained"]
    reasons = (lines if sustained.empty else sustained).energy_reason.dropna().unique()
    return f"no energy: {'; '.join(sorted(reasons))}"


def board_of(line: pd.Series) -> str | None:
    """The first digits of the hash of a line's board, enough to tell boards apart; None where it is not known."""
    return None if pd.isna(line[BOARD]) else str(line[BOARD])[:6]


def is_native(lines: pd.DataFrame) -> pd.Series:
    """Lines whose compiled program multiplies in the named formats: an FP8 dot that ran widened is no FP8 baseline."""
    return ~lines.upcast.fillna(value=False).astype(bool)
