"""`tab_devices`: what the data sheets say of every device; no figure here is measured."""

from typing import Any

from narrowbench.models.hardware import DeviceProfile
from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, scaled

_RATES = {"f32": "FP32", "bf16": "BF16", "fp8": "FP8", "fp6": "FP6", "fp4": "FP4"}


def table(material: Material) -> Table:
    """A line a device profile, in order of the slugs."""
    columns = [
        Column("device", "device"),
        Column("cores", "cores", lambda count: f"{count:.0f}", "right"),
        Column("boost_hz", "clock (GHz)", lambda clock: f"{clock / 1e9:.2f}", "right"),
        scaled("memory_bytes", "memory", "B", 9),
        scaled("bandwidth_bytes_per_s", "bandwidth", "B/s", 12),
        scaled("power_w", "power", "W", 0),
        *(_rate(key, name) for key, name in _RATES.items()),
        Column("sources", "sources"),
    ]
    rows = [_row(profile) for profile in material.profiles.values()]
    note = (
        "Dense rates in TFLOP/s, FP32 accumulation; a dash: not supported, or no source gives it (the profile says "
        "which). Letters and numbers name the sources, listed in docs/devices.md."
    )
    return Table("Device profiles: data-sheet figures", columns, rows, note)


def _rate(key: str, name: str) -> Column:
    return Column(f"{key}_flop_per_s", name, lambda rate: f"{rate / 1e12:,.5g}", "right")


def _row(profile: DeviceProfile) -> list[Any]:
    figures = [
        profile.cores.count,
        profile.clocks.boost_hz,
        profile.memory.capacity_bytes,
        profile.memory.bandwidth_bytes_per_s,
        profile.power.limit_w,
        *(getattr(profile.rates_flop_per_s, key) for key in _RATES),
    ]
    sources = sorted({key for figure in figures if figure.value is not None for key in figure.sources})
    return [profile.name, *(figure.value for figure in figures), " ".join(sources)]
