"""`fig_energy_by_data`: energy, clock and throughput of one GEMM by the data that it multiplies."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from narrowbench.report import style
from narrowbench.report.kernels import in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.select import BOARD, at, modes, once, places, timed_anywhere
from narrowbench.report.units import prefixed, rate_prefix

_NOTE = (
    "Median with its 95 % order-statistic interval; clock: median with its range while the case ran.\n"
    "Of the board with most distributions; faint: of another board, where that one has none."
)
_FAINT = 0.4
#: Columns of panels: what, its column in the frame (with or without interval beside it), unit, exponent of its prefix
#: (None: as throughput has it everywhere).
_PANELS = (
    ("energy", "j_per_flop", "J/FLOP", -12),
    ("clock", "sm_clock_hz", "Hz", 9),
    ("throughput", "flop_per_s", "FLOP/s", None),
)
#: From data that toggle no bits to data as they come. Orders of the same data are in `tab_bit_order`.
_ORDER = ("zeros", "ones", "small_integers", "uniform", "normal", "normal_outliers", "heavy_tailed", "text")


def figure(material: Material) -> Figure:
    """Each device and mode of the record in which one shape was measured on several input distributions.

    Sustained goes first: a burst is over before energy can be read.
    """
    lines = once(timed_anywhere(material.origin("record")), BOARD)
    lines = lines[lines.distribution.isin(_ORDER) & (lines.epilogue == "none")]
    found = [(place, mode, _widest(at(lines, place, mode))) for place in places(lines) for mode in modes(lines)[::-1]]
    found = [(place, mode, of_shape) for place, mode, of_shape in found if of_shape.distribution.nunique() > 1]
    if not found:
        return style.empty_figure("No shape was measured on more than one input distribution yet.")
    figure = Figure(figsize=(style.PAGE_IN, 0.6 + 1.9 * len(found)), layout="constrained")
    grid = figure.subplots(len(found), len(_PANELS), squeeze=False)
    for row, (place, mode, of_shape) in zip(grid, found, strict=True):
        first = of_shape.iloc[0]
        row[0].set_title(f"{material.place_name(place)}, {mode}, {first.m}×{first.n}×{first.k}", loc="left")
        for axes, (what, column, unit, exponent) in zip(row, _PANELS, strict=True):
            scale = rate_prefix(of_shape.flop_per_s.max()) if exponent is None else exponent
            _panel(axes, of_shape, column, f"{what} ({prefixed(unit, scale)})", scale)
    kernels = pd.concat([of_shape for _, _, of_shape in found]).kernel
    style.legend_above(figure, style.legend_keys(kernels, with_line=False))
    style.footnote(figure, _NOTE)
    return figure


def _widest(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines of the shape and board that were measured on most distributions, of those the largest, and the last.

    What this board lacks comes from others, as `elsewhere`. A kernel on one distribution says nothing here.
    """
    if lines.empty:
        return lines.assign(elsewhere=False)
    boards = lines[BOARD].fillna("unknown")
    cases = lines.groupby(["m", "n", "k", boards])
    counts = pd.DataFrame(
        {"count": cases.distribution.nunique(), "flop": cases.flop.first(), "last": cases.utc_time.max()}
    )
    *shape, board = counts.sort_values(["count", "flop", "last"]).index[-1]
    of_shape = lines[(lines[["m", "n", "k"]] == shape).all(axis=1)]
    of_shape = of_shape.assign(elsewhere=boards != board).sort_values("utc_time", kind="stable")
    of_shape = of_shape.sort_values("elsewhere", ascending=False, kind="stable")
    kept: pd.DataFrame = of_shape.drop_duplicates(["kernel", "distribution"], keep="last")
    return kept[kept.groupby("kernel").distribution.transform("nunique") > 1]


def _panel(axes: Axes, lines: pd.DataFrame, column: str, label: str, scale: int) -> None:
    known = lines[lines[column].notna()]
    if known.empty:
        style.without_data(axes, f"{label.split()[0]} not read here")
        return
    names = [name for name in _ORDER if name in set(lines.distribution)]
    kernels = in_legend_order(lines.kernel)
    for kernel, aside in zip(kernels, style.side_by_side(len(kernels)), strict=True):
        for elsewhere, of_kernel in known[known.kernel == kernel].groupby("elsewhere"):
            middle, low, high = (of_kernel[name] / 10.0**scale for name in _with_bounds(column))
            axes.errorbar(
                [names.index(name) + aside for name in of_kernel.distribution],
                middle,
                yerr=[middle - low, high - middle],
                elinewidth=0.6,
                linestyle="none",
                alpha=_FAINT if elsewhere else 1.0,
                **style.marks(kernel),
            )
    words = [name.replace("_", " ") for name in names]
    axes.set_xticks(range(len(names)), words, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylabel(label)


def _with_bounds(column: str) -> tuple[str, str, str]:
    if column == "sm_clock_hz":
        return column, "sm_clock_min_hz", "sm_clock_max_hz"
    return column, f"{column}_low", f"{column}_high"
