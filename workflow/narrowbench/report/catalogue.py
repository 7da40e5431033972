"""Every figure and table by its stem, without importing any of them: the stem is module, file and label."""

import importlib
from pathlib import Path
from types import ModuleType

from narrowgemm.errors import unknown_name

#: Figures of the paper, drawn from the record alone.
FIGURES = (
    "fig_roofline",
    "fig_devices_roofline",
    "fig_throughput_by_shape",
    "fig_ratio_to_baseline",
    "fig_accuracy_by_format",
    "fig_energy_per_flop",
    "fig_input_distributions",
    "fig_kernel_time_check",
    "fig_three_roofs",
    "fig_energy_roofline",
)
#: Figures of the report alone: this machine's own run beside the record.
LOCAL_FIGURES = ("local_roofline", "local_throughput_by_shape", "local_ratio_to_baseline", "local_energy_per_flop")
TABLES = (
    "tab_formats",
    "tab_devices",
    "tab_roofs",
    "tab_gemm",
    "tab_summary",
    "tab_accuracy",
    "tab_energy",
    "tab_compiled",
    "tab_modelled",
    "tab_tile_loads",
    "tab_provenance",
    "tab_claims",
)

FIGURE_SUFFIXES = (".pdf", ".svg", ".png")
TABLE_SUFFIXES = (".tex", ".csv", ".md", ".typ")


def draw(stem: str, frame: Path, folder: Path) -> list[Path]:
    """Draw a figure from a stored frame into `folder`, one file for each of `FIGURE_SUFFIXES`.

    Raises ValueError, naming the nearest known ones, for an unknown stem.
    """
    _known(stem, FIGURES + LOCAL_FIGURES, "figure")
    from matplotlib.figure import Figure

    from narrowbench.report import style
    from narrowbench.report.load import Material

    with style.house():
        figure: Figure = _module(stem).figure(Material.load(frame))
        return style.save(figure, stem, folder)


def tabulate(stem: str, frame: Path, folder: Path) -> list[Path]:
    """Write a table from a stored frame into `folder`, one file for each of `TABLE_SUFFIXES`.

    Raises ValueError, naming the nearest known ones, for an unknown stem.
    """
    _known(stem, TABLES, "table")
    from narrowbench.report.load import Material
    from narrowbench.report.tables import Table, save

    table: Table = _module(stem).table(Material.load(frame))
    return save(table, stem, folder)


def _known(stem: str, stems: tuple[str, ...], kind: str) -> None:
    if stem not in stems:
        raise ValueError(unknown_name(kind, stem, stems))


def _module(stem: str) -> ModuleType:
    return importlib.import_module(f"narrowbench.report.{stem}")
