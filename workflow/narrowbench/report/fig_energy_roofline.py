"""`fig_energy_roofline`: FLOP a joule over intensity, measured and by the energy model; ranges for absent devices."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.models.estimate import Estimate, Range
from narrowbench.report import style
from narrowbench.report.absent import assumptions_of
from narrowbench.report.energy_model import EnergyFit, energy_fit
from narrowbench.report.estimate_panel import draw_ranges, estimate_keys
from narrowbench.report.fig_three_roofs import WITHOUT, name_binding
from narrowbench.report.held_roofs import HeldPoint, held_places, held_points, leading
from narrowbench.report.kernels import GREY, RATE_COLOURS, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.roof_axes import label_decades

_GIGA = 1e9
_NOTE = (
    "Left: measured, sustained, normal data, total energy of the scope that the meter names; the initial names the "
    "lowest roof.\nDotted lines: the energy model (modelled) under the three roofs of the fastest case of a format.\n"
    "Right: modelled ranges from published power and rates and assumed fractions of them (configs/estimates.yaml)."
)


def figure(material: Material) -> Figure:
    """A panel a device of the record with an energy meter, and one of all the others."""
    found = held_places(material)
    figure = Figure(figsize=(style.PAGE_IN, 0.8 + 3.2 * max(1, len(found))), layout="constrained")
    grid = figure.add_gridspec(max(1, len(found)), 2, width_ratios=(1.25, 1))
    kernels: list[str] = []
    for row, place in enumerate(found):
        points = held_points(material, place)
        kernels += [point.line.kernel for point in points]
        axes = figure.add_subplot(grid[row, 0])
        axes.set_title(f"{material.place_name(place)}, sustained", loc="left")
        _efficiency_panel(axes, points, energy_fit(material, place))
    if not found:
        style.without_data(figure.add_subplot(grid[0, 0]), WITHOUT)
    _range_panel(figure.add_subplot(grid[:, 1]), material)
    measured = style.legend_keys(kernels, with_line=False)
    style.legend_above(figure, [*measured, *estimate_keys(with_published=False)])
    style.footnote(figure, _NOTE)
    return figure


def _efficiency_panel(axes: Axes, points: list[HeldPoint], fit: EnergyFit) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("energy efficiency (GFLOP/J)")
    intensities = [point.intensity for point in points]
    low, high = min(intensities) / 2, max(intensities) * 2
    span = (low, high) if high > 100 * low else (high / 100, high)
    for key, point in leading(points).items():
        roofline = fit.roofline(point)
        if roofline is not None:
            places = np.geomspace(*span, 200)
            heights = [roofline.efficiency_flop_per_j(x) / _GIGA for x in places]
            axes.plot(places, heights, color=RATE_COLOURS[key], linewidth=1.0, linestyle=":")
    for kernel in in_legend_order(point.line.kernel for point in points):
        _draw_efficiency(axes, [point for point in points if point.line.kernel == kernel], kernel)
    heights = [1 / float(point.line.j_per_flop) for point in points]
    name_binding(axes, points, heights, _GIGA)
    axes.set_xlim(*span)
    axes.set_ylim(min(heights) / 3 / _GIGA, max(heights) * 4 / _GIGA)
    label_decades(axes)
    axes.annotate(_said(fit), (0.03, 0.97), xycoords="axes fraction", va="top", size=5.5, color=GREY)


def _draw_efficiency(axes: Axes, points: list[HeldPoint], kernel: str) -> None:
    middle, low, high = (
        [1 / float(point.line[f"j_per_flop{end}"]) / _GIGA for point in points] for end in ("", "_high", "_low")
    )
    reach = [[m - lo for m, lo in zip(middle, low, strict=True)], [h - m for m, h in zip(middle, high, strict=True)]]
    places = [point.intensity for point in points]
    axes.errorbar(places, middle, yerr=reach, linestyle="none", elinewidth=0.6, **style.marks(kernel))


def _said(fit: EnergyFit) -> str:
    if fit.model is None:
        return "\n".join(textwrap.wrap(f"No line of the energy model yet: {fit.why_not}.", 62))
    said = f"energy model (modelled), fitted on {fit.samples} samples"
    if fit.check is None:
        return said + ", not tested"
    return (
        f"{said};\non {len(fit.check.errors)} others: median absolute error {100 * fit.check.median_absolute:.1f} %, "
        f"bias {100 * fit.check.bias:+.1f} %"
    )


def _range_panel(axes: Axes, material: Material) -> None:
    axes.set_title("absent devices: a large GEMM", loc="left")
    draw_ranges(axes, material, assumptions_of(material), _flop_per_j, _GIGA)
    axes.set_xlabel("modelled energy efficiency (GFLOP/J)")


def _flop_per_j(found: Estimate) -> Range | None:
    energy = found.energy_j_per_flop
    return None if energy is None else Range(1 / energy.high, 1 / energy.low)
