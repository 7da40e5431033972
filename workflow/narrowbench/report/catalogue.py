"""Every figure and table by its stem, without importing any of them: the stem is module, file and label."""

import importlib
import itertools
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
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
    "fig_energy_by_data",
    "fig_kernel_time_check",
    "fig_three_roofs",
    "fig_energy_roofline",
    "fig_energy_model_check",
    "fig_window_length",
)
#: Figures of the report alone, this machine's own run beside the record -> heading there.
LOCAL_TITLES = {
    "local_roofline": "Measured GEMMs under the roofs of their device",
    "local_throughput_by_shape": "Throughput by suite, shape and mode",
    "local_ratio_to_baseline": "Speed of the Pallas kernels over the best baseline for the same work",
    "local_energy_per_flop": "Energy a FLOP, sustained",
}
LOCAL_FIGURES = tuple(LOCAL_TITLES)
TABLES = (
    "tab_formats",
    "tab_devices",
    "tab_roofs",
    "tab_gemm",
    "tab_summary",
    "tab_aims",
    "tab_epilogues",
    "tab_groups",
    "tab_accuracy",
    "tab_energy",
    "tab_energy_ratios",
    "tab_energy_parts",
    "tab_bit_order",
    "tab_repeats",
    "tab_compiled",
    "tab_space",
    "tab_modelled",
    "tab_tile_loads",
    "tab_provenance",
    "tab_claims",
)

FIGURE_SUFFIXES = (".pdf", ".svg", ".png")
TABLE_SUFFIXES = (".tex", ".csv", ".md", ".typ")


def draw(stems: Sequence[str], frame: Path, folder: Path, processes: int = 1) -> list[Path]:
    """Draw figures from a stored frame into `folder`, for each of them one file for each of `FIGURE_SUFFIXES`.

    Raises ValueError, naming the nearest known ones, for an unknown stem, before anything is drawn.
    """
    _check_known(stems, FIGURES + LOCAL_FIGURES, "figure")
    if processes == 1:
        return _draw(stems, frame, folder)
    shares = [stems[first::processes] for first in range(min(processes, len(stems)))]
    context = multiprocessing.get_context("forkserver")  # whose server imports once for all
    context.set_forkserver_preload([f"narrowbench.report.{stem}" for stem in stems])
    with ProcessPoolExecutor(len(shares), context) as pool:
        drawn = pool.map(_draw, shares, itertools.repeat(frame), itertools.repeat(folder))
        return [path for paths in drawn for path in paths]


def _draw(stems: Sequence[str], frame: Path, folder: Path) -> list[Path]:
    from narrowbench.report import style
    from narrowbench.report.load import Material

    material = Material.load(frame)
    paths = []
    for stem in stems:
        with style.house():
            paths += style.save(_module(stem).figure(material), stem, folder)
    return paths


def tabulate(stems: Sequence[str], frame: Path, folder: Path, numbers: Path | None = None) -> list[Path]:
    """Write tables from a stored frame into `folder`, for each of them one file for each of `TABLE_SUFFIXES`.

    Into `numbers` go the figures of the paper's text, which come from the same fits and comparisons.

    Raises ValueError, naming the nearest known ones, for an unknown stem, before anything is written.
    """
    _check_known(stems, TABLES, "table")
    from narrowbench.report.load import Material
    from narrowbench.report.tables import save

    material = Material.load(frame)
    paths = [path for stem in stems for path in save(_module(stem).table(material), stem, folder)]
    if numbers is not None:
        from narrowbench.report.numbers import write

        paths.append(write(material, numbers))
    return paths


def _check_known(stems: Sequence[str], known: tuple[str, ...], kind: str) -> None:
    for stem in stems:
        if stem not in known:
            raise ValueError(unknown_name(kind, stem, known))


def _module(stem: str) -> ModuleType:
    return importlib.import_module(f"narrowbench.report.{stem}")
