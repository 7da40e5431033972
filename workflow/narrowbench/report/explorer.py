"""The explorer: a roofline of the whole frame, with device, mode, data and kernels to choose, for an offline page."""

import json
import math
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from narrowbench.report.kernels import KERNELS, format_in_words, in_legend_order
from narrowbench.report.load import Material
from narrowbench.report.roofs import MEMORY, RATE_KEYS, KnownRoofs, measured_roofs
from narrowbench.report.select import at, data_of, modes, places, timed

#: Matplotlib's markers -> Vega's shapes: where Vega has no like, the nearest that no other kernel of a device has.
_SHAPES = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "d": "diamond",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "P": "cross",
    "x": "M-1,-1L1,1M-1,1L1,-1",
    "X": "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
    "+": "M0,-1L0,1M-1,0L1,0",
    "1": "M0,0L0,1M0,0L-1,-1M0,0L1,-1",
    "2": "M0,0L0,-1M0,0L-1,1M0,0L1,1",
    "3": "M0,0L-1,0M0,0L1,-1M0,0L1,1",
    "4": "M0,0L1,0M0,0L-1,-1M0,0L-1,1",
    "*": "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z",
    "8": "M-.4,-1L.4,-1L1,-.4L1,.4L.4,1L-.4,1L-1,.4L-1,-.4Z",
    "H": "M-1,-.5L0,-1L1,-.5L1,.5L0,1L-1,.5Z",
    "h": "M-.5,-1L.5,-1L1,0L.5,1L-.5,1L-1,0Z",
    "p": "M0,-1L1,-.3L.6,.8L-.6,.8L-1,-.3Z",
}
_SPAN = (0.1, 3e4)


def fragment(material: Material) -> str:
    """The chart as a part of a page that needs no network; Altair itself writes offline charts as whole pages alone."""
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", ".".join(alt.SCHEMA_VERSION.split(".")[:2]))
    spec = json.dumps(chart(material).to_dict()).replace("</", "<\\/")  # or a name could end the script
    show = f"vegaEmbed('#explorer', {spec}, {{mode: 'vega-lite'}}).catch(console.error);"
    return f'<div id="explorer"></div><script>{library}</script><script>{show}</script>'


def chart(material: Material) -> alt.LayerChart:
    """The roofline chart of all measured GEMMs; needs at least one."""
    points, roofs = _points(material), _roofs(material)
    devices, found_modes = list(dict.fromkeys(points.place)), sorted(set(points["mode"]))
    device = alt.param("device", bind=alt.binding_select(options=devices, name="device "), value=devices[0])
    mode = alt.param("mode", bind=alt.binding_select(options=found_modes, name="mode "), value=found_modes[0])
    data = sorted(set(points.data), key=lambda name: (name != "normal", name))
    inputs = alt.param("data", bind=alt.binding_select(options=data, name="input data "), value=data[0])
    kernel = alt.selection_point("kernel", fields=["kernel"], bind="legend")
    chosen = f"datum.place == {device.name} && datum.mode == {mode.name}"
    lines = _roof_layer(roofs).transform_filter(chosen)
    marks = _point_layer(points, kernel).transform_filter(f"{chosen} && datum.data == {inputs.name}")
    layers: alt.LayerChart = (
        alt.layer(lines, marks)
        .add_params(device, mode, inputs, kernel)
        .properties(width=820, height=460, title="Measured GEMMs under the roofs of their device")
        .configure_view(stroke=None)
        .configure_legend(labelLimit=0, titleLimit=0)
    )
    return layers


def _roof_layer(roofs: pd.DataFrame) -> alt.Chart:
    layer: alt.Chart = (
        alt.Chart(roofs)
        .mark_line()
        .encode(
            x=alt.X("intensity:Q", scale=alt.Scale(type="log"), title="arithmetic intensity (FLOP/byte)"),
            y=alt.Y("tflop_per_s:Q", scale=alt.Scale(type="log"), title="throughput (TFLOP/s)"),
            detail="roof:N",
            color=alt.value("#888888"),
            strokeDash=alt.StrokeDash(
                "source:N", scale=alt.Scale(domain=["measured", "data sheet"], range=[[1, 0], [2, 3]]), title="roof"
            ),
            tooltip=["roof", "source", alt.Tooltip("tflop_per_s:Q", format=",.4g")],
        )
    )
    return layer


def _point_layer(points: pd.DataFrame, kernel: alt.Parameter) -> alt.Chart:
    names = in_legend_order(points.kernel)
    colours = alt.Scale(domain=names, range=[KERNELS[name].colour for name in names])
    shapes = alt.Scale(domain=names, range=[_SHAPES[KERNELS[name].marker] for name in names])
    title = "kernel (measured; click to choose)"
    layer: alt.Chart = (
        alt.Chart(points)
        .mark_point(size=70, strokeWidth=1.5)
        .encode(
            x="intensity:Q",
            y="tflop_per_s:Q",
            stroke=alt.Stroke("kernel:N", scale=colours, title=title),
            fill=alt.Fill("kernel:N", scale=colours, title=title),
            shape=alt.Shape("kernel:N", scale=shapes, title=title),
            opacity=alt.condition(kernel, alt.value(0.95), alt.value(0.06)),
            tooltip=[
                *("kernel", "suite", "shape", "mode", "data", "interval"),
                alt.Tooltip("tflop_per_s:Q", format=",.4g"),
                alt.Tooltip("time_us:Q", format=",.4g"),
                *("energy", "clock"),
                "ran",
            ],
        )
    )
    return layer


def _points(material: Material) -> pd.DataFrame:
    rows = [
        {
            "place": material.place_name(place),
            "mode": line["mode"],
            "kernel": line.kernel,
            "suite": line.suite,
            "shape": f"{line.m}×{line.n}×{line.k}",
            "data": data_of(line),
            "intensity": line.intensity_flop_per_byte,
            "tflop_per_s": line.flop_per_s / 1e12,
            "interval": f"{line.flop_per_s_low / 1e12:,.4g} to {line.flop_per_s_high / 1e12:,.4g} TFLOP/s",
            "time_us": line.time_s * 1e6,
            "energy": _known(line.j_per_flop * 1e12, "pJ/FLOP", line.energy_reason),
            "clock": _known(line.sm_clock_hz / 1e9, "GHz", line.clocks_reason),
            "ran": line.hlo_calls,
        }
        for place in places(material.frame)
        for _, line in at(timed(material.frame), place).iterrows()
    ]
    return pd.DataFrame(rows)


def _known(value: float, unit: str, reason: object) -> str:
    """A figure with its unit, or the reason why there is none."""
    if math.isnan(value):
        return f"none: {reason if isinstance(reason, str) else 'not read'}"
    return f"{value:.4g} {unit}"


def _roofs(material: Material) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for place in places(material.frame):
        profile = material.profiles.get(place.device)
        sheet = KnownRoofs() if profile is None else KnownRoofs.of(profile)
        for mode in modes(material.frame):
            heights = {key: roof.value for key, roof in measured_roofs(material.frame, place, mode).items()}
            measured = KnownRoofs(heights.pop(MEMORY, None), heights)
            where = {"place": material.place_name(place), "mode": mode}
            rows += [where | row for row in (*_bends(measured, "measured"), *_bends(sheet, "data sheet"))]
    return pd.DataFrame(rows, columns=["place", "mode", "roof", "source", "intensity", "tflop_per_s"])


def _bends(known: KnownRoofs, source: str) -> list[dict[str, Any]]:
    """Each known roof as three points: where it starts, its ridge, and where it ends."""
    bends = []
    for key in RATE_KEYS:
        if known.bandwidth is not None and key in known.arithmetic:
            roof = {"roof": f"{format_in_words(key)}, {source}", "source": source}
            for intensity in (_SPAN[0], known.arithmetic[key] / known.bandwidth, _SPAN[1]):
                height = min(known.bandwidth * intensity, known.arithmetic[key]) / 1e12
                bends.append(roof | {"intensity": intensity, "tflop_per_s": height})
    return bends
