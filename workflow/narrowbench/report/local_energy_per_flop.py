"""`local_energy_per_flop`: `fig_energy_per_flop` and this machine's own run, for the report."""

from matplotlib.figure import Figure

from narrowbench.report.fig_energy_per_flop import energy_per_flop
from narrowbench.report.load import Material


def figure(material: Material) -> Figure:
    """This machine's panels first, then those of the record."""
    return energy_per_flop(material, "local", "record")
