"""Every figure of the paper's text, by name, out of the record and the configuration; the text holds none itself.

A name is a path: `nvidia-h200/burst/roof/fp8`. Of each number the paper can show a short form, `1,539 TFLOP/s`, and a
full one with its interval, `1,539 [1,534, 1,544] TFLOP/s`. A name that is not here stops the build of the paper, which
names it; what depends on rows that the record may lack, the paper asks for first.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from narrowbench.config import load_protocol
from narrowbench.models.claims import verdict_counts
from narrowbench.models.samples import counted_launches
from narrowbench.models.statistics import Ratio, fewest_samples
from narrowbench.models.traffic import operand_bytes
from narrowbench.report.load import Material
from narrowbench.report.modelled_numbers import texts
from narrowbench.report.ratios import bits, energy_savings, speed_ups, unpaired
from narrowbench.report.roofs import MEMORY, KnownRoofs, measured_roofs
from narrowbench.report.select import (
    BOARD,
    CONSTANT,
    Place,
    Reading,
    at,
    is_native,
    once,
    places,
    reading,
    timed,
    usual,
)
from narrowbench.report.tab_aims import table as aims
from narrowbench.report.tab_energy_parts import lines_of_parts
from narrowbench.report.tab_gemm import RoofShares
from narrowbench.report.tab_repeats import agreement, pairs
from narrowbench.report.tab_summary import table as summary
from narrowbench.report.units import number, quantity, rate_prefix, scientific
from narrowbench.store.whole import write_text


@dataclass(frozen=True)
class Number:
    """A figure as the text shows it: short, and with its interval where it has one."""

    short: str
    full: str

    @classmethod
    def of(cls, found: Reading, unit: str, exponent: int | None = None) -> "Number":
        """A reading in its unit, to four digits."""
        return cls(
            quantity(found.value, unit, None, 4, exponent), quantity(found.value, unit, found.interval, 4, exponent)
        )

    @classmethod
    def plain(cls, text: object) -> "Number":
        """A figure without interval."""
        return cls(str(text), str(text))

    @classmethod
    def ratio(cls, found: Ratio) -> "Number":
        """A ratio, to three decimals."""
        interval = found.interval
        return cls(f"{found.value:.3f}", f"{found.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]")


type Named = Iterator[tuple[str, Number]]


def numbers(material: Material) -> dict[str, Number]:
    """All numbers by name, sorted; of a name that several boards give, the last one's."""
    record = material.of_record
    parts = [_of_claims(material), _of_aims(record), _of_protocol(), _of_sheets(material), _of_models(record)]
    parts += [_of_device(record, place) for place in places(record.frame)]
    parts += [_of_counted(record), _of_repeats(record)]
    return dict(sorted(dict(pair for part in parts for pair in part).items()))


def write(material: Material, out: Path) -> Path:
    """Write a typst module: `numbers`, name -> (short, full); `devices` of the record; `claims` of the article."""
    lines = [f"  {_quoted(name)}: ({_quoted(n.short)}, {_quoted(n.full)})," for name, n in numbers(material).items()]
    devices = [
        f"  (slug: {_quoted(place.device)}, name: {_quoted(material.device_name(place.device))}),"
        for place in places(material.origin("record"))
    ]
    claims = [f"  ({_quoted(c.quote)}, {_quoted(c.verdict)}, {_quoted(c.truth)})," for c in material.claims]
    head = "// Generated from the record by `narrowbench table --numbers`: every figure that the paper's text cites."
    parts = {"numbers": lines, "devices": devices, "claims": claims}
    text = [head, *(line for name, part in parts.items() for line in (f"#let {name} = (", *part, ")")), ""]
    write_text(out, "\n".join(text))
    return out


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _of_claims(material: Material) -> Named:
    yield "claims/total", Number.plain(len(material.claims))
    for verdict, count in verdict_counts(material.claims).items():
        yield f"claims/{verdict.replace(' ', '-')}", Number.plain(count)


def _of_aims(record: Material) -> Named:
    """How many of `tab_aims` are met, missed, and not measured."""
    verdicts = Counter(str(row[-1]).split(" by ")[0] for row in aims(record).rows)
    yield "aims/total", Number.plain(verdicts.total())
    for verdict in ("met", "missed", "not measured"):
        yield f"aims/{verdict.replace(' ', '-')}", Number.plain(verdicts[verdict])


def _of_protocol() -> Named:
    protocol = load_protocol()
    burst, sustained = protocol.burst, protocol.sustained
    yield "protocol/confidence", Number.plain(_percent(burst.stop.confidence))
    yield "protocol/half-width", Number.plain(_percent(burst.stop.target_relative_half_width))
    yield "protocol/burst/train", Number.plain(_seconds(burst.train_s))
    yield "protocol/burst/idle", Number.plain(_seconds(burst.idle_s))
    yield "protocol/burst/clock-floor", Number.plain(_percent(burst.clock_floor))
    yield "protocol/burst/fewest", Number.plain(burst.stop.min_samples)
    yield "protocol/sustained/window", Number.plain(_seconds(sustained.window_s))
    yield "protocol/sustained/fewest", Number.plain(sustained.stop.min_samples)
    yield "protocol/rotation", Number.plain(f"{protocol.rotation_l2_multiple:g}")
    yield "protocol/cross-check", Number.plain(_percent(protocol.cross_check.max_relative_difference))
    yield "protocol/cross-check/from", Number.plain(_seconds(protocol.cross_check.min_launch_s))
    yield "protocol/interval/fewest", Number.plain(fewest_samples(burst.stop.confidence))


def _of_sheets(material: Material) -> Named:
    yield "sheet/devices", Number.plain(len(material.profiles))
    for slug, profile in material.profiles.items():
        known = KnownRoofs.of(profile)
        figures: dict[str, tuple[float | None, str, int]] = {
            MEMORY: (known.bandwidth, "B/s", 12),
            "power": (profile.power.limit_w.value, "W", 0),
        }
        figures |= {key: (rate, "FLOP/s", 12) for key, rate in known.arithmetic.items()}
        for key, (value, unit, exponent) in figures.items():
            if value is not None:
                yield f"sheet/{slug}/{key}", Number.plain(_exact(value, unit, exponent))


def _of_models(record: Material) -> Named:
    yield from ((name, Number.plain(text)) for name, text in texts(record))


def _of_device(record: Material, place: Place) -> Named:
    lines = at(record.frame, place)
    lines = lines[lines.evidence == "measured"]
    name = place.device
    yield f"{name}/rows", Number.plain(len(lines))
    for status in ("ok", "unsupported", "failed", "unstable"):
        yield f"{name}/rows/{status}", Number.plain(int((lines.status == status).sum()))
    yield from ((f"{name}/version/{key}", Number.plain(value)) for key, value in _versions(lines).items())
    yield from _of_roofs(record, place)
    yield from _of_energy_parts(record, place)
    yield from _of_cases(record, place)
    yield from _of_accuracy(record, place)
    yield from _of_suites(record, place)


def _versions(lines: pd.DataFrame) -> dict[str, str]:
    """Versions on which all rows agree."""
    found: dict[str, set[str]] = {}
    for text in lines.versions.unique():
        for name, version in json.loads(text).items():
            found.setdefault(name, set()).add(str(version))
    return {name: versions.pop() for name, versions in sorted(found.items()) if len(versions) == 1}


def _of_roofs(record: Material, place: Place) -> Named:
    profile = record.profiles.get(place.device)
    sheet = KnownRoofs() if profile is None else KnownRoofs.of(profile)
    for mode in ("burst", "sustained"):
        roofs = measured_roofs(record.frame, place, mode, held_only=True)
        zeros = measured_roofs(record.frame, place, mode, "zeros", held_only=True)
        named = roofs | {f"{key}/zeros": roof for key, roof in zeros.items() if key != MEMORY}
        for path, roof in named.items():
            key, name = path.split("/")[0], f"{place.device}/{mode}/roof/{path}"
            unit, promised = ("B/s", sheet.bandwidth) if key == MEMORY else ("FLOP/s", sheet.arithmetic.get(key))
            yield name, Number.of(roof, unit, rate_prefix(roof.value))
            if promised is not None:
                yield f"{name}/of-sheet", Number.plain(_percent(roof.value / promised))


def _of_energy_parts(record: Material, place: Place) -> Named:
    """What a byte costs beside the idle power, by where it comes from, and what a board draws that waits."""
    for _, line in at(lines_of_parts(record), place).iterrows():
        name = f"{place.device}/energy-part/{line.quantity}"
        if line.quantity == "active_idle":
            yield name, Number.plain(quantity(line.mean_power_w, "W"))
            if not pd.isna(line.idle_w):
                yield f"{name}/before", Number.plain(quantity(line.idle_w, "W"))
        elif not pd.isna(line.energy_net_j):
            yield name, Number.plain(quantity(line.energy_net_j / line.work, "J/B", exponent=-12))


def _of_suites(record: Material, place: Place) -> Named:
    """Each kernel over each suite: the columns of `tab_summary`."""
    table = summary(Material(at(record.frame, place)))
    columns = [column.name for column in table.columns]
    for row in table.rows:
        line = dict(zip(columns, row, strict=True))
        name = f"{place.device}/{line['mode']}/{line['suite']}/{line['kernel']}"
        shown = {
            "cases": "d",
            "compared": "d",
            "geometric_mean_ratio": ".3f",
            "lowest_ratio": ".3f",
            "highest_ratio": ".3f",
        }
        shown |= {"faster": "d", "no_difference": "d", "slower": "d"}
        for key, form in shown.items():
            if line[key] is not None:
                yield f"{name}/{key.replace('_', '-')}", Number.plain(format(line[key], form))
        if not pd.isna(line["median_share_of_measured_roof"]):
            yield f"{name}/of-roof", Number.plain(_percent(line["median_share_of_measured_roof"]))


def _of_cases(record: Material, place: Place) -> Named:
    """Cases of the shapes that were measured in both modes: those that the text speaks of."""
    lines = at(timed(record.frame), place)
    burst, sustained = ({*_shapes(lines[lines["mode"] == mode])} for mode in ("burst", "sustained"))
    in_both = burst & sustained
    lines = lines[[shape in in_both for shape in _shapes(lines)]]
    anchors = once(lines)
    shares = RoofShares(record, anchors)
    for _, line in anchors.iterrows():
        yield from ((f"{_case(line)}/{key}", number) for key, number in _of_case(line, shares))
    for what, comparisons in (("speed-up", speed_ups(anchors)), ("saving", energy_savings(anchors))):
        for found in comparisons:
            yield f"{_case(found.line)}/{what}", Number.ratio(found.ratio)
            yield f"{_case(found.line)}/{what}/baseline", Number.plain(found.baseline.kernel)
    by_board = once(lines, BOARD)
    yield from _of_formats(usual(by_board))
    yield from _of_data(by_board)


def _shapes(lines: pd.DataFrame) -> list[tuple[int, int, int]]:
    return [(int(m), int(n), int(k)) for m, n, k in zip(lines.m, lines.n, lines.k, strict=True)]


def _case(line: pd.Series) -> str:
    """Name of a case; distribution and epilogue stand in it where they are not the usual ones."""
    data = "" if line.distribution == "normal" else f"/{line.distribution}"
    data += "" if line.epilogue == "none" else f"/{line.epilogue}"
    return f"{line.device}/{line['mode']}/{line.kernel}/{line.m}x{line.n}x{line.k}{data}"


def _of_case(line: pd.Series, shares: RoofShares) -> Named:
    yield "rate", Number.of(reading(line, "flop_per_s"), "FLOP/s", rate_prefix(line.flop_per_s))
    yield "bandwidth", Number.of(reading(line, "bytes_per_s"), "B/s", rate_prefix(line.bytes_per_s))
    yield "time", Number.plain(quantity(line.time_s, "s"))
    for key, share in (("of-roof", shares.measured(line)), ("of-sheet", shares.sheet(line))):
        if share is not None:
            yield key, Number.plain(_percent(share))
    if not pd.isna(line.sm_clock_hz):
        yield "clock", Number.plain(quantity(line.sm_clock_hz, "Hz"))
    if not pd.isna(line.j_per_flop):
        yield "energy", Number.of(reading(line, "j_per_flop"), "J/FLOP", -12)
        yield "power", Number.plain(quantity(line.mean_power_w, "W", exponent=0))


def _of_formats(lines: pd.DataFrame) -> Named:
    """FP8 over BF16, the best kernel of either, in speed and in joules, of the last board that did both."""
    lines = lines[is_native(lines)].sort_values("utc_time", kind="stable")
    width = lines.a_format.map(bits)
    for (device, mode, m, n, k, _), here in lines.groupby(
        ["device", "mode", "m", "n", "k", BOARD], sort=False, dropna=False
    ):
        for what, cost, samples in (("speed-up", "time_s", "samples_s"), ("saving", "energy_j", "windows_j")):
            known = here[here[cost].notna()]
            narrow, wide = (known[width[known.index] == size].sort_values(cost) for size in (8, 16))
            if len(narrow) and len(wide):
                ratio = unpaired(wide.iloc[0][samples], narrow.iloc[0][samples])
                if ratio is not None:
                    yield f"{device}/{mode}/{m}x{n}x{k}/fp8-over-bf16/{what}", Number.ratio(ratio)


def _of_data(lines: pd.DataFrame) -> Named:
    """Each distribution over normal data, in throughput, for one kernel and shape on one board, the last one."""
    of_case = ["device", "mode", "kernel", "m", "n", "k", BOARD]
    plain = lines[lines.epilogue == "none"].sort_values("utc_time", kind="stable")
    for (device, mode, kernel, m, n, k, _), here in plain.groupby(of_case, sort=False, dropna=False):
        usual_data = here[here.distribution == "normal"]
        for _, line in here[here.distribution != "normal"].iterrows():
            ratio = unpaired(usual_data.iloc[0].samples_s, line.samples_s) if len(usual_data) else None
            if ratio is not None:
                name = f"{device}/{mode}/{kernel}/{m}x{n}x{k}/{line.distribution}-over-normal"
                yield name, Number.ratio(ratio)


def _of_accuracy(record: Material, place: Place) -> Named:
    """The largest kernel error and the median format error of each kernel and distribution."""
    lines = at(timed(record.frame), place)
    lines = lines[lines.kernel_error.notna() & ~lines.distribution.isin(CONSTANT)]
    for (kernel, data), here in lines.groupby(["kernel", "distribution"]):
        name = f"{place.device}/accuracy/{kernel}/{data}"
        yield f"{name}/kernel-error", Number.plain(scientific(here.kernel_error.max()))
        yield f"{name}/largest-k", Number.plain(f"{here.k.max():,}")
        if here.format_error.notna().any():
            yield f"{name}/format-error", Number.plain(scientific(here.format_error.median()))


def _of_counted(record: Material) -> Named:
    """What hardware counters said of launches whose schedule is known: how often an operand byte was loaded."""
    for launch in counted_launches(record.frame, record.profiles):
        problem, schedule, line = launch.problem, launch.schedule, launch.line
        if schedule is None:
            continue
        tile = f"{schedule.tile_m}x{schedule.tile_n}/blocks-{schedule.cores_per_unit}"
        name = f"{line.device}/counted/{line.kernel}/{problem.m}x{problem.n}x{problem.k}/{tile}"
        for key, column in (("l2-loads", "l2_read_bytes"), ("memory-loads", "hbm_read_bytes")):
            if not pd.isna(line[column]):
                yield f"{name}/{key}", Number.plain(number(float(line[column]) / operand_bytes(problem), 3))


def _of_repeats(record: Material) -> Named:
    """How many joules were measured again, how they agree, and on how many days and boards that was."""
    found = list(pairs(record.frame))
    each = [line for pair in found for line in pair]
    agreements = Counter(agreement(unpaired(line.windows_j, first.windows_j), line, first) for line, first in found)
    yield "repeats", Number.plain(len(found))
    yield "repeats/within-intervals", Number.plain(agreements["within intervals"])
    yield "repeats/within-sensors", Number.plain(agreements["within sensors"])
    yield "repeats/boards", Number.plain(len({line[BOARD] for line in each if not pd.isna(line[BOARD])}))
    yield "repeats/days", Number.plain(len({line.utc_time[:10] for line in each}))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _seconds(value: float) -> str:
    scaled = {"s": value, "ms": 1e3 * value, "µs": 1e6 * value}
    unit = next((unit for unit, shown in scaled.items() if shown >= 1), "µs")
    return f"{scaled[unit]:g} {unit}"


def _exact(value: float, unit: str, exponent: int) -> str:
    """A published figure as published, not rounded further."""
    prefix = {12: "T", 0: ""}[exponent]
    return f"{value / 10.0**exponent:,.6g} {prefix}{unit}"
