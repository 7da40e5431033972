"""`fig_energy_model_check`: the energy model against shapes that its fit did not see, and its coefficients."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.models.energy import FLOP, EnergyModel
from narrowbench.models.hardware import rate_key
from narrowbench.models.prediction import Check
from narrowbench.report import style
from narrowbench.report.energy_model import COEFFICIENTS, EnergyFit, bounds, energy_fit, in_words, metered_places
from narrowbench.report.kernels import GREY, RATE_COLOURS, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.ratios import bits

#: Error that the model is to stay within, in the median.
TARGET = 0.08
_NOTE = (
    "E = W·ε_flop(format, data) + Q_hbm·ε_hbm + Q_l2·ε_l2 + P_0·T, fitted on sustained runs of half of the shapes and "
    "on reads of memory\nand of the L2, and copies. P_0 is the idle power that was read. Left: joules of a launch, "
    "runs of the other half; band: ±8 %.\nRight: coefficients with 95 % intervals; one that holds 0 is not "
    "established. Bytes are those of the schedule; a vendor's is assumed."
)


def figure(material: Material) -> Figure:
    """Predicted against measured joules and the coefficients, for each device of the record with a meter."""
    found = [(place, energy_fit(material, place)) for place in metered_places(material)]
    if not found:
        return style.empty_figure("Too few runs for the energy model: the record holds none with energy, it needs 5.")
    heights = [0.8 if fit.model is None else 2.8 for _, fit in found]
    figure = Figure(figsize=(style.PAGE_IN, 0.8 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(found), 2, squeeze=False, width_ratios=(1, 1.1), height_ratios=heights)
    kernels: list[str] = []
    for (left, right), (place, fit) in zip(grid, found, strict=True):
        left.set_title(f"{material.place_name(place)}: predicted and measured", loc="left")
        right.set_title("coefficients (modelled)", loc="left")
        if fit.check is None:
            style.without_data(left, _why_untested(fit))
        else:
            kernels += [str(sample.kernel) for sample in fit.tested]
            _check_panel(left, fit, fit.check)
        if fit.model is None:
            style.without_data(right, "No coefficients yet.")
        else:
            _coefficient_panel(right, fit.model)
    style.legend_above(figure, style.legend_keys(kernels, with_line=False))
    style.footnote(figure, _NOTE)
    return figure


def _why_untested(fit: EnergyFit) -> str:
    if fit.model is not None:
        return "No run is left to test the fit on:\nevery other shape has formats or data of its own."
    return "\n".join(textwrap.wrap(fit.why_not[0].upper() + fit.why_not[1:] + ".", 60))


def _check_panel(axes: Axes, fit: EnergyFit, check: Check) -> None:
    predicted = [sample.energy_j * (1 + error) for sample, (_, error) in zip(fit.tested, check.errors, strict=True)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured (J)")
    axes.set_ylabel("predicted (J)")
    joules = [*predicted, *(sample.energy_j for sample in fit.tested)]
    ends = np.array([min(joules) / 2, max(joules) * 2])
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_decades(axis, *ends)
    axes.plot(ends, ends, color=GREY, linewidth=0.8)
    axes.fill_between(ends, (1 - TARGET) * ends, (1 + TARGET) * ends, color=GREY, alpha=0.15, linewidth=0)
    for kernel in in_legend_order(str(sample.kernel) for sample in fit.tested):
        of_kernel = [(s.energy_j, j) for s, j in zip(fit.tested, predicted, strict=True) if s.kernel == kernel]
        axes.plot(*zip(*of_kernel, strict=True), linestyle="none", **style.marks(kernel))
    axes.set_xlim(*ends)
    said = (
        f"fitted on {fit.samples}, tested on {len(check.errors)} runs\nmedian absolute error "
        f"{100 * check.median_absolute:.1f} %\nbias {100 * check.bias:+.1f} %"
    )
    axes.annotate(said, (0.03, 0.97), xycoords="axes fraction", va="top", size=6.5)


def _coefficient_panel(axes: Axes, model: EnergyModel) -> None:
    """ε_flop of each format and data as a bar of its interval, and the shared coefficients in words."""
    groups = sorted(key for key in model.coefficients if key.startswith(FLOP))
    for place, key in enumerate(groups):
        colour = _colour_of(key)
        middle, low, high = bounds(model.coefficients[key], 1e-12)
        axes.plot([low, high], [place, place], color=colour, linewidth=1.2)
        axes.plot([middle], [place], marker="o", color=colour, markerfacecolor="white", linestyle="none")
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    names = [key.removeprefix(FLOP).replace("_", " ") for key in groups]
    axes.set_yticks(range(len(groups)), names, size=5.5)
    axes.set_ylim(len(groups) - 0.3, -0.7)
    axes.grid(visible=False, axis="y")
    shared = [
        f"{name} {in_words(model.coefficients[key], scale)} {unit}"
        for key, (name, unit, scale) in COEFFICIENTS.items()
        if key in model.coefficients
    ]
    axes.set_xlabel("\n".join(["ε_flop (pJ/FLOP)", *shared]))


def _colour_of(key: str) -> str:
    """That of the narrower operand, as of kernels."""
    narrower = min(key.removeprefix(FLOP).partition(",")[0].split(" × "), key=bits)
    return RATE_COLOURS[rate_key(narrower, narrower)]
