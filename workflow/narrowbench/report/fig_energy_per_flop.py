"""`fig_energy_per_flop`: joules a FLOP of every kernel, sustained, by shape, with intervals."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.select import once, usual, why_no_energy
from narrowbench.report.shapes import Shape, ShapePanel, draw_panels, left_out, no_panels, positions, shape_panels

_NOTE = (
    "Total energy of the scope that the meter names (board or package), idle power included. Normal data, rotated "
    "operands. Median of the windows with\nits 95 % order-statistic interval; the sensor's own gain error is not in it."
)


def figure(material: Material) -> Figure:
    """Energy a FLOP for every device of the record that has a meter."""
    return energy_per_flop(material, "record")


def energy_per_flop(material: Material, *origins: str) -> Figure:
    """Energy a FLOP for every device with a meter that results of these origins come from."""
    measured = once(usual(material.origin(*origins)))
    lines = measured[measured.j_per_flop.notna()]
    panels = shape_panels(lines)
    absent = left_out(measured, panels, why_no_energy)
    if not panels:
        why = "No energy measured yet: no sustained case ran on a device whose meter can be read."
        return no_panels(material, why, absent)

    def draw(axes: Axes, panel: ShapePanel, position: dict[Shape, int]) -> None:
        axes.set_ylabel("pJ/FLOP")
        style.scale_to(axes, panel.lines.j_per_flop / 1e-12, panel.lines.j_per_flop_high / 1e-12)
        kernels = in_legend_order(panel.lines.kernel)
        for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
            of_kernel = panel.lines[panel.lines.kernel == kernel]
            middle, low, high = (of_kernel[f"j_per_flop{end}"] / 1e-12 for end in ("", "_low", "_high"))
            axes.errorbar(
                [x + aside for x in positions(of_kernel, position)],
                middle,
                yerr=[middle - low, high - middle],
                elinewidth=0.6,
                linestyle="none",
                **style.marks(kernel),
            )

    figure = draw_panels(material, panels, draw, style.legend_keys(lines.kernel, with_line=False), absent)
    style.footnote(figure, _NOTE)
    return figure
