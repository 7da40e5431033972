"""Which part of an array a Blackwell kernel copies, and in which order it empties tensor memory. No JAX.

One text serves the traced integers of a kernel and Python's own: what the interpreter does not run, pairs of blocks, a
model in NumPy can follow with the same functions. A part is its start and its extent along one dimension.
"""

from typing import Any

from narrowgemm.gemm._blackwell_plan import BLOCK_M, SCALE_TILE_BLOCKS, Config, Plan

type Part = tuple[Any, int]


def a_rows(config: Config, row: Any) -> Part:
    """Rows of A for a tile in row `row`: of a pair, the first half is the first block's."""
    return row * config.tile_m, config.tile_m


def b_rows(config: Config, column: Any) -> Part:
    """Rows of B for a tile in column `column`: of a pair, the first half is the first block's."""
    return column * config.tile_n, config.tile_n


def block_rows(config: Config, row: Any, cta: Any) -> Part:
    """Rows of A and of C that block `cta` of the cluster has of a tile in row `row`."""
    return (row * config.ctas + cta) * BLOCK_M, BLOCK_M


def k_part(ki: Any, width: int) -> Part:
    """Columns of K step `ki`, of which each has `width`: elements, bytes of packed ones, or tiles of scales."""
    return ki * width, width


def a_scale_tiles(config: Config, row: Any) -> Part:
    """Tiles of A's scales along its rows: of a pair, the first is the first block's."""
    return row * config.ctas, config.ctas


def b_scale_tiles(plan: Plan, column: Any) -> Part:
    """Tiles of B's scales along its rows, all of which both blocks of a pair have."""
    return column * plan.b_scale_tiles, plan.b_scale_tiles


def c_columns(plan: Plan, column: Any, first: Any, width: int) -> Part:
    """Columns of C, `width` as they travel, of the piece of a tile that begins at its column `first`."""
    return (column * plan.config.tile_n + first) * width // plan.store_n, width


def c_scale_row(config: Config, row: Any, cta: Any) -> Any:
    """Tile, along the rows, of the scales that block `cta` stores."""
    return row * config.ctas + cta


def c_scale_tiles(plan: Plan, column: Any, first: Any) -> Part:
    """Tiles, along the columns, of the scales of the piece of a tile that begins at its column `first`."""
    tiles = plan.store_scales // SCALE_TILE_BLOCKS
    return (column * plan.config.tile_n + first) // plan.store_n * tiles, tiles


def pieces(plan: Plan) -> int:
    """Pieces in which a tile is stored."""
    return plan.config.tile_n // plan.store_n


def piece_taken(plan: Plan, slot: int, number: int) -> int:
    """First column of the piece that is taken out of accumulator `slot` as number `number`.

    Columns that both accumulators have come first: the last of accumulator 0, the first of accumulator 1.
    """
    return (number if slot else pieces(plan) - 1 - number) * plan.store_n
