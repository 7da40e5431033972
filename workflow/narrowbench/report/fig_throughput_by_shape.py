"""`fig_throughput_by_shape`: throughput of every kernel on every shape of the record, with intervals."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import in_legend_order, kernel_style
from narrowbench.report.load import Material
from narrowbench.report.select import once, usual
from narrowbench.report.shapes import Shape, ShapePanel, by_layer, draw_panels, positions, shape_panels
from narrowbench.report.units import prefixed, rate_prefix

_NOTE = (
    "Normal data, rotated operands. Median with its 95 % order-statistic interval; a line joins the sizes M of a layer."
)


def figure(material: Material) -> Figure:
    """Throughput by shape for every device of the record."""
    return throughput_by_shape(material, "record")


def throughput_by_shape(material: Material, *origins: str) -> Figure:
    """Throughput by shape for every device that results of these origins come from."""
    lines = once(usual(material.origin(*origins)))
    panels = shape_panels(lines)
    if not panels:
        return style.empty_figure("No measured GEMM yet: there is no throughput to show.")

    def draw(axes: Axes, panel: ShapePanel, position: dict[Shape, int]) -> None:
        scale = rate_prefix(panel.lines.flop_per_s.max())
        axes.set_ylabel(prefixed("FLOP/s", scale))
        style.scale_to(axes, panel.lines.flop_per_s / 10.0**scale, panel.lines.flop_per_s_high / 10.0**scale)
        kernels = in_legend_order(panel.lines.kernel)
        for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
            for layer in by_layer(panel.lines[panel.lines.kernel == kernel]):
                middle, low, high = (layer[f"flop_per_s{end}"] / 10.0**scale for end in ("", "_low", "_high"))
                axes.errorbar(
                    [x + aside for x in positions(layer, position)],
                    middle,
                    yerr=[middle - low, high - middle],
                    elinewidth=0.6,
                    linestyle=kernel_style(kernel).line,
                    linewidth=0.7,
                    markersize=3.5,
                    **style.marks(kernel),
                )

    figure = draw_panels(material, panels, draw, style.legend_keys(lines.kernel))
    style.footnote(figure, _NOTE)
    return figure
