"""`local_ratio_to_baseline`: `fig_ratio_to_baseline` and this machine's own run, for the report."""

from matplotlib.figure import Figure

from narrowbench.report.fig_ratio_to_baseline import ratio_to_baseline
from narrowbench.report.load import Material


def figure(material: Material) -> Figure:
    """This machine's panels first, then those of the record."""
    return ratio_to_baseline(material, "local", "record")
