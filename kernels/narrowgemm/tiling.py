"""How a GEMM is cut into output tiles and in which order they are taken. No JAX.

The functions use only `+ - * // %` and comparisons, so that one text serves Python and NumPy integers (models,
tests) and the traced indices inside a kernel.
"""

from typing import Any


def ceil_div(extent: int, tile: int) -> int:
    """Number of tiles of `tile` that cover `extent`."""
    return -(-extent // tile)


def round_up(extent: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `extent`."""
    return ceil_div(extent, multiple) * multiple


def raster(index: Any, tiles_m: int, tiles_n: int, width: int) -> tuple[Any, Any]:
    """Row and column of the output tile that is taken as number `index` of tiles_m * tiles_n.

    Columns are cut into bands of `width` (the last may be narrower); a band is walked row by row, downwards in even
    bands and upwards in odd ones. Tiles that run at the same time then form a near-square patch, whose operand
    tiles the L2 cache holds, and two bands share the rows at their turn.
    """
    band = index // (width * tiles_m)
    first = band * width
    beyond = first + width - tiles_n
    band_width = width - beyond * (beyond > 0)
    within = index - first * tiles_m
    row = within // band_width
    column = first + within - row * band_width
    row += (band % 2) * (tiles_m - 1 - 2 * row)
    return row, column
