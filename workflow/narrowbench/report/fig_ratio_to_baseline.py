"""`fig_ratio_to_baseline`: every kernel of ours over the best baseline for the same work, with intervals."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import BLACK, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.ratios import board_spread, speed_ups, why_no_ratio
from narrowbench.report.select import once, usual
from narrowbench.report.shapes import Shape, ShapePanel, draw_panels, left_out, no_panels, positions, shape_panels

#: Of a panel's height, beyond the lowest and the highest bar: room for a mark.
_MARGIN = 0.06
_NOTE = (
    "Times as fast as the fastest baseline that multiplies in the format of the activations: above 1 ours is faster. "
    "Normal data, rotated operands.\nA bar is the 95 % interval: of pairs where the samples were taken in turn, else a "
    "bootstrap of medians."
)
#: Of marks whose baseline ran on another board.
_FAINT = 0.4


def figure(material: Material) -> Figure:
    """Ratios for every device of the record."""
    return ratio_to_baseline(material, "record")


def ratio_to_baseline(material: Material, *origins: str) -> Figure:
    """Ratios for every device that results of these origins come from."""
    measured = once(usual(material.origin(*origins)))
    found = speed_ups(measured)
    if not found:
        why = "No kernel of ours was measured beside a baseline yet: there is no ratio to show."
        return no_panels(material, why, left_out(measured, (), why_no_ratio))
    lines = pd.DataFrame([comparison.line for comparison in found]).assign(
        ratio=[comparison.ratio.value for comparison in found],
        low=[comparison.ratio.interval.low for comparison in found],
        high=[comparison.ratio.interval.high for comparison in found],
        is_same_board=[comparison.is_same_board for comparison in found],
    )
    spread = board_spread(usual(material.origin(*origins)))

    def draw(axes: Axes, panel: ShapePanel, position: dict[Shape, int]) -> None:
        axes.set_ylabel("ratio to baseline")
        axes.axhline(1, color=BLACK, linewidth=0.8)
        low, high = min(0.95, panel.lines.low.min()), max(1.05, panel.lines.high.max())
        axes.set_ylim(low - _MARGIN * (high - low), high + _MARGIN * (high - low))
        kernels = in_legend_order(panel.lines.kernel)
        for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
            of_kernel = panel.lines[panel.lines.kernel == kernel]
            at = pd.Series([x + aside for x in positions(of_kernel, position)], of_kernel.index)
            for is_same_board, drawn in of_kernel.groupby("is_same_board"):
                _draw_kernel(axes, drawn, kernel, at[drawn.index], alpha=1 if is_same_board else _FAINT)

    panels, keys = shape_panels(lines), style.legend_keys(lines.kernel, with_line=False)
    figure = draw_panels(material, panels, draw, keys, left_out(measured, panels, why_no_ratio))
    style.footnote(figure, _NOTE if lines.is_same_board.all() else f"{_NOTE}\n{_elsewhere(spread)}")
    return figure


def _elsewhere(spread: float) -> str:
    known = f", and the same baseline has taken up to {100 * (spread - 1):.1f} % longer on one board than on another"
    return f"Faint: the baseline ran on another board{known if spread > 1 else ''}."


def _draw_kernel(axes: Axes, lines: pd.DataFrame, kernel: str, at: pd.Series, alpha: float) -> None:
    axes.errorbar(
        at,
        lines.ratio,
        yerr=[lines.ratio - lines.low, lines.high - lines.ratio],
        linestyle="none",
        elinewidth=0.6,
        markersize=3.5,
        alpha=alpha,
        **style.marks(kernel),
    )
