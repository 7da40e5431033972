"""`tab_formats`: the formats of operands, bit by bit."""

from narrowbench.report.load import Material
from narrowbench.report.tables import Column, Table, count
from narrowbench.report.units import scientific
from narrowgemm.formats.spec import FORMATS, Format

_NOTE = (
    "Bits: of an element. Block: elements along K that share a scale, times rows that do where they are several. "
    "Bytes an element: its code and its share of that."
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
        Column("block", "block", align="right"),
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
            _block(form),
            {"float8_e8m0fnu": "E8M0", "float8_e4m3fn": "E4M3", "float32": "FP32"}.get(str(form.scale_dtype)),
            "FP32" if form.tensor_scale else None,
            form.bytes_per_element,
        ]
        for form in FORMATS.values()
    ]
    return Table("Formats of the operands", columns, rows, _NOTE)


def _block(form: Format) -> str | None:
    if form.block is None:
        return None
    return str(form.block) if form.block_rows == 1 else f"{form.block} × {form.block_rows}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
