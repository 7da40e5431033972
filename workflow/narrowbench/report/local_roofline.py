"""`local_roofline`: `fig_roofline` and this machine's own run, for the report."""

from matplotlib.figure import Figure

from narrowbench.report.fig_roofline import rooflines
from narrowbench.report.load import Material


def figure(material: Material) -> Figure:
    """This machine's panels first, then those of the record."""
    return rooflines(material, "local", "record")
