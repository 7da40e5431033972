"""`fig_kernel_time_check`: the time model against runs that its fit did not see, and what it says of absent devices."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.models.chosen import Modelled
from narrowbench.models.kerneltime import predict_s
from narrowbench.models.prediction import Check
from narrowbench.report import style
from narrowbench.report.kernels import GREY, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.time_model import FITTED_ON, TimeModel, absent_kernels, time_model

#: The device of the right panel; the table has the others.
_ABSENT = "nvidia-b200"
#: Error that the model is to stay within, in the median.
TARGET = 0.12

_NOTE = (
    "Left: measured medians (normal data, rotated operands, both modes) of shapes that the fit did not see; band: "
    "±12 %.\nRight: modelled, nothing was run; the stroke ends at the time of the same tiles at nominal rates. Clock "
    "of the data sheet's rate, no power limit.\n"
)


def figure(material: Material) -> Figure:
    """Predicted against measured on the left, modelled times of kernels that were only compiled on the right."""
    model = time_model(material)
    absent = [launch for launch in absent_kernels(material, model.coefficients) if launch.device == _ABSENT]
    figure = Figure(figsize=(style.PAGE_IN, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    left.set_title(f"{material.profiles[FITTED_ON].name}: predicted and measured", loc="left")
    if model.check is None:
        style.without_data(left, _why_not(model))
    else:
        _check_panel(left, model, model.check)
    right.set_title(f"{material.profiles[_ABSENT].name}: modelled", loc="left")
    _absent_panel(right, absent)
    kernels = [run.kernel for run in model.tested]
    measured = [] if model.check is None else style.legend_keys(kernels, with_line=False)
    keys = style.legend_keys((launch.kernel for launch in absent), "modelled", with_line=False)
    style.legend_above(figure, measured + keys, columns=3)
    style.footnote(figure, _NOTE + model.basis)
    return figure


def _why_not(model: TimeModel) -> str:
    if model.is_fitted:
        return f"All {len(model.fitted)} runs are of one shape,\nso none is left to test the fit on."
    return "Not tested yet:\n" + model.holdings.replace(", ", ",\n") + "."


def _check_panel(axes: Axes, model: TimeModel, check: Check) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured (µs)")
    axes.set_ylabel("predicted (µs)")
    times = [1e6 * run.time_s for run in model.tested]
    ends = [min(times) / 2, max(times) * 2]
    style.plain_decades(axes.xaxis, *ends)
    style.plain_decades(axes.yaxis, *ends)
    axes.plot(ends, ends, color=GREY, linewidth=0.8)
    low, high = ([(1 + sign * TARGET) * end for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color=GREY, alpha=0.15, linewidth=0)
    for kernel in in_legend_order(run.kernel for run in model.tested):
        runs = [run for run in model.tested if run.kernel == kernel]
        predicted = [1e6 * predict_s(run, model.coefficients) for run in runs]
        axes.plot([1e6 * run.time_s for run in runs], predicted, linestyle="none", **style.marks(kernel))
    axes.set_xlim(*ends)
    said = (
        f"{len(model.tested)} runs\nmedian absolute error {100 * check.median_absolute:.1f} %\n"
        f"bias {100 * check.bias:+.1f} %"
    )
    axes.annotate(said, (0.03, 0.97), xycoords="axes fraction", va="top", size=6.5)


def _absent_panel(axes: Axes, launches: list[Modelled]) -> None:
    """Time by shape, a hollow mark a kernel, its bar down to the time at nominal rates."""
    problems = {(x.problem.m, x.problem.n, x.problem.k): None for x in launches}
    position = {shape: index for index, shape in enumerate(problems)}
    kernels = in_legend_order(launch.kernel for launch in launches)
    for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
        of_kernel = [launch for launch in launches if launch.kernel == kernel]
        times = [1e6 * launch.time.total_s for launch in of_kernel]
        marks = style.marks(kernel, "modelled")
        places = [position[x.problem.m, x.problem.n, x.problem.k] + aside for x in of_kernel]
        least = [1e6 * launch.least_s for launch in of_kernel]
        axes.vlines(places, least, times, color=marks["color"], linewidth=0.7, linestyle=(0, (2, 1)))
        axes.plot(places, times, linestyle="none", **(marks | {"markerfacecolor": "white"}))
    axes.set_yscale("log")
    style.plain_decades(axes.yaxis, *axes.get_ylim())
    axes.set_ylabel("modelled time (µs)")
    axes.set_xlim(-0.6, len(position) - 0.4)
    axes.set_xticks(range(len(position)), ["×".join(map(str, shape)) for shape in position])
    axes.grid(visible=False, axis="x")
