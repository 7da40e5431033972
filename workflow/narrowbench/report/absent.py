"""Devices that were not measured, and what is assumed of them. No Matplotlib."""

from narrowbench.models.estimate import Assumptions, load_assumptions
from narrowbench.report.load import Material
from narrowbench.report.select import places


def assumptions_of(material: Material) -> Assumptions:
    """The assumptions of `configs/estimates.yaml`."""
    return load_assumptions(material.profiles, material.sources)


def absent_devices(material: Material) -> list[str]:
    """Devices that have a profile and no measured row in the record, in the order of their names."""
    present = {place.device for place in places(material.origin("record"))}
    return sorted(material.profiles.keys() - present, key=lambda slug: material.profiles[slug].name)
