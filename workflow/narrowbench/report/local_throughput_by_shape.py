"""`local_throughput_by_shape`: `fig_throughput_by_shape` and this machine's own run, for the report."""

from matplotlib.figure import Figure

from narrowbench.report.fig_throughput_by_shape import throughput_by_shape
from narrowbench.report.load import Material


def figure(material: Material) -> Figure:
    """This machine's panels first, then those of the record."""
    return throughput_by_shape(material, "local", "record")
