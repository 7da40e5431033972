"""Energy of windows of launches: what a counter says, what integrated power says, and when neither is believed.

A window is refused, and with it the energy of its case, where its energy is zero or negative, where its mean power is
above the board's limit, or where it is shorter than the protocol allows: one wrong window means that the meter, not the
window, is not understood. So is a meter that covers something else than the device. A case during which another process
used the device has no figures at all, energy or other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from narrowbench.measure.clocks import Reading
from narrowbench.measure.meters import Meter
from narrowbench.store.rows import Energy, EnergyWindow, Scope, WindowReading

#: A sensor may read high by its gain error (±5 % of a board) while the board keeps its limit.
LIMIT_TOLERANCE = 1.05
#: Below this many readings of power a window is not integrated: its ends would be most of it.
FEWEST_READINGS = 5


@dataclass(frozen=True)
class Window:
    """One window as it was run. Times are of `time.perf_counter`; the counter is the meter's, None without one."""

    start_s: float
    end_s: float
    launches: int
    counter_start_j: float | None
    counter_end_j: float | None

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def counter_j(self) -> float | None:
        if self.counter_start_j is None or self.counter_end_j is None:
            return None
        return self.counter_end_j - self.counter_start_j


def integrated_j(readings: Sequence[Reading], start_s: float, end_s: float) -> float | None:
    """Energy from `start_s` to `end_s` by the trapezoidal rule over instant power; None with too few readings.

    The first and last reading inside stand for the power up to the edges: the device is equally busy there.
    """
    inside = [(r.t_s, r.power_w) for r in readings if r.power_w is not None and start_s <= r.t_s <= end_s]
    if len(inside) < FEWEST_READINGS:
        return None
    points = [(start_s, inside[0][1]), *inside, (end_s, inside[-1][1])]
    return sum((b_s - a_s) * (a_w + b_w) / 2 for (a_s, a_w), (b_s, b_w) in pairwise(points))


def refusal(window: Window, integrated: float | None, min_window_s: float, power_limit_w: float | None) -> str | None:
    """Why the energy of this window is not believed; None if it is."""
    counted = window.counter_j
    if window.length_s < min_window_s:
        return f"a window of {window.length_s:.3g} s is shorter than the {min_window_s:g} s that the protocol asks for"
    if counted is None and integrated is None:
        return "neither a counter nor enough readings of power"
    for source, energy_j in (("counter", counted), ("integrated power", integrated)):
        if energy_j is None:
            continue
        if energy_j < 0:
            return f"the {source} went backwards by {-energy_j:.3g} J"
        if energy_j == 0:
            return f"the {source} shows 0 J over {window.length_s:.3g} s"
        mean_w = energy_j / window.length_s
        if power_limit_w is not None and mean_w > LIMIT_TOLERANCE * power_limit_w:
            return f"the {source} shows {mean_w:.0f} W, above the board's limit of {power_limit_w:.0f} W"
    return None


def energy_of(
    windows: Sequence[Window],
    readings: Sequence[Reading],
    meter: Meter | None,
    meter_reason: str | None,
    idle: tuple[float | None, str | None],
    min_window_s: float,
    power_limit_w: float | None,
    scope: Scope,
) -> tuple[Energy | None, str | None]:
    """The energy of a case's windows and None; or None and why there is none.

    idle:  power, or why it is unknown.
    scope: what the device's energy is that of.
    """
    if meter is None:
        return None, meter_reason
    if meter.scope != scope:
        return None, f"{meter.name} covers the {meter.scope}, where the launches ran on the {scope}"
    if not windows:
        return None, "burst trains are shorter than an energy counter's tick; only sustained cases have energy"
    believed = []
    for number, window in enumerate(windows):
        integrated = integrated_j(readings, window.start_s, window.end_s)
        reason = refusal(window, integrated, min_window_s, power_limit_w)
        if reason is not None:
            return None, f"window {number} of {len(windows)} refused: {reason}"
        believed.append(
            EnergyWindow(
                window_s=window.length_s,
                launches=window.launches,
                counter_j=window.counter_j,
                integrated_j=integrated,
            )
        )
    idle_w, idle_reason = idle
    return Energy(
        source="counter" if all(w.counter_j is not None for w in believed) else "integrated",
        meter=meter.name,
        scope=meter.scope,
        windows=believed,
        idle_w=idle_w,
        idle_reason=idle_reason,
        gain_error_relative=meter.gain_error_relative,
    ), None


def window_readings(windows: Sequence[Window], readings: Sequence[Reading]) -> list[WindowReading]:
    """What counter and power showed of each window, whether it is believed or not."""
    return [
        WindowReading(
            window_s=window.length_s,
            launches=window.launches,
            counter_j=window.counter_j,
            integrated_j=integrated_j(readings, window.start_s, window.end_s),
        )
        for window in windows
    ]


def idle_power_w(window: Window, readings: Sequence[Reading]) -> tuple[float | None, str | None]:
    """Mean power of an idle window and None; or None and why it is unknown. The counter goes before the readings."""
    energy_j = window.counter_j
    if energy_j is None:
        energy_j = integrated_j(readings, window.start_s, window.end_s)
    if energy_j is None:
        return None, "neither a counter nor enough readings of power while idle"
    if energy_j <= 0:
        return None, f"the meter shows {energy_j:.3g} J over {window.length_s:.3g} s of idling"
    return energy_j / window.length_s, None
