"""`tab_formats`: the formats of operands, bit by bit."""

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count
from narrowbench.report.units import scientific
from narrowgemm.formats.spec import FORMATS

_NOTE = (
    "Bits: of an element. Block: elements along K that share a scale. Bytes an element: its code and its share of that."
)


def table(_: Material) -> Table:
    """A line a format, from wide to narrow as the library lists them."""
    columns = [
        Column("format", "format"),
        count("element_bits", "bits"),
        count("exponent_bits", "exponent"),
        count("mantissa_bits", "mantissa"),
        Column(
            "largest", "largest finite", lambda value: f"{value:,.10g}" if value < 1e6 else scientific(value), "right"
        ),
        Column("infinity", "infinity"),
        Column("nan", "NaN"),
        count("block", "block"),
        Column("block_scale", "block scale"),
        Column("tensor_scale", "tensor scale"),
        Column("bytes_per_element", "bytes an element", lambda value: f"{value:.4g}", "right"),
    ]
    rows = [
        [
            form.name,
            form.element.bits,
            form.element.exponent_bits,
            form.element.mantissa_bits,
            form.element.max_finite,
            _yes(form.element.has_inf),
            _yes(form.element.has_nan),
            form.block,
            {"float8_e8m0fnu": "E8M0", "float8_e4m3fn": "E4M3"}.get(str(form.scale_dtype)),
            "FP32" if form.tensor_scale else None,
            form.element.bits / 8 + (1 / form.block if form.block else 0),
        ]
        for form in FORMATS.values()
    ]
    return Table("Formats of the operands", columns, rows, _NOTE)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
