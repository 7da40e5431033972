"""Figures as people read them: SI prefixes, three significant digits, intervals. The store keeps plain SI."""

import math

from narrowbench.models.statistics import Interval

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PREFIXES = {-15: "f", -12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


def prefix_of(value: float) -> int:
    """Exponent of the SI prefix that leaves 1 to 999 in front; of those that exist, the nearest."""
    if value == 0:
        return 0
    exponent = 3 * math.floor(math.log10(abs(float(f"{value:.3g}"))) / 3)
    return max(min(exponent, max(_PREFIXES)), min(_PREFIXES))


def rate_prefix(flop_per_s: float) -> int:
    """Exponent of the prefix for a panel or a table of throughput: the field writes 1500 TFLOP/s, not 1.5 PFLOP/s."""
    return min(prefix_of(flop_per_s), 12)


def prefixed(unit: str, exponent: int) -> str:
    """A unit under the SI prefix of 10^exponent: `FLOP/s`, 12 -> `TFLOP/s`."""
    return f"{_PREFIXES[exponent]}{unit}"


def number(value: float, digits: int = 3) -> str:
    """`value` to so many significant digits, all of them shown: `0.500`, `12.3`, `1,980`; never a power of ten."""
    rounded = float(f"{value:.{digits}g}")
    whole_digits = 1 if rounded == 0 else math.floor(math.log10(abs(rounded))) + 1
    return f"{rounded:,.{max(0, digits - whole_digits)}f}"


def quantity(
    value: float, unit: str, interval: Interval | None = None, digits: int = 3, exponent: int | None = None
) -> str:
    """`1.54 PFLOP/s`, and with an interval `1.54 [1.53, 1.55] PFLOP/s`, all under one prefix.

    exponent: of that prefix; None for the one that suits the value.
    """
    exponent = prefix_of(value) if exponent is None else exponent
    scale = 10.0**exponent
    middle = number(value / scale, digits)
    if interval is not None:
        middle += f" [{number(interval.low / scale, digits)}, {number(interval.high / scale, digits)}]"
    return f"{middle} {prefixed(unit, exponent)}".strip()


def scientific(value: float) -> str:
    """`1.1·10⁻³`, for errors; nought is `0`."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
