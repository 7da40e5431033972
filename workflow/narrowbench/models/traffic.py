"""Which operand tiles a GEMM brings into shared memory, and which of them come from memory and not from the L2. No JAX.

The output tiles are walked in the kernel's own order (`narrowgemm.tiling.raster`), as many at a time as there are units
to work on them, all units at the same step of K. The L2 is one least-recently-used cache. Both are idealisations: units
drift apart, and an L2 of two partitions may hold a line twice.
"""

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import ceil_div, raster

#: The cache is simulated in at most this many steps of K: finer steps change no count by a per cent and cost time.
_MAX_STEPS = 32


@dataclass(frozen=True)
class Schedule:
    """How a GEMM is cut into tiles and in which order units of cores take them.

    tile_m, tile_n, tile_k: output tile of one unit and elements of K of one stage. A unit is what loads an operand tile
                            once: a thread block, a pair of blocks, or a cluster that shares its loads.
    units:                  units that run at the same time.
    cores_per_unit:         SMs (or other cores) of a unit.
    raster, raster_width:   dimension that varies fastest in a band, and the width of a band in tiles.
    split_k:                parts that K is cut into, each a work item of its own.
    sums_on_chip:           whether the parts are added without a way through memory.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    units: int
    cores_per_unit: int = 1
    raster: Literal["m", "n"] = "n"
    raster_width: int = 8
    split_k: int = 1
    sums_on_chip: bool = False

    def tiles(self, problem: GemmProblem) -> tuple[int, int]:
        """Output tiles down and across."""
        return ceil_div(problem.m, self.tile_m), ceil_div(problem.n, self.tile_n)

    def items(self, problem: GemmProblem) -> int:
        """Work items: output tiles times parts of K."""
        tiles_m, tiles_n = self.tiles(problem)
        return tiles_m * tiles_n * self.split_k

    def waves(self, problem: GemmProblem) -> int:
        """Items that the busiest unit takes, one after the other."""
        return ceil_div(self.items(problem), self.units)

    def order(self, problem: GemmProblem) -> Iterator[tuple[int, int]]:
        """Row and column of the output tiles in the order in which they are taken."""
        tiles_m, tiles_n = self.tiles(problem)
        for index in range(tiles_m * tiles_n):
            if self.raster == "n":
                yield raster(index, tiles_m, tiles_n, self.raster_width)
            else:
                column, row = raster(index, tiles_n, tiles_m, self.raster_width)
                yield row, column


@dataclass(frozen=True)
class Traffic:
    """Bytes of one launch, and how often an operand tile is loaded.

    l2_read_bytes:   operands, from the L2 into shared memory.
    hbm_read_bytes:  operands, from memory into the L2.
    write_bytes:     the result, once (with split K also its FP32 parts, written and read again, unless on chip).
    a_tile_loads, b_tile_loads: times that one operand tile is brought into shared memory.
    hbm_loads:       times that an operand byte is read from memory, on average; 1 is the least.
    """

    l2_read_bytes: int
    hbm_read_bytes: int
    write_bytes: int
    a_tile_loads: int
    b_tile_loads: int
    hbm_loads: float

    @property
    def hbm_bytes(self) -> int:
        return self.hbm_read_bytes + self.write_bytes


@functools.cache
def tile_traffic(problem: GemmProblem, schedule: Schedule, cache_bytes: float) -> Traffic:
    """The traffic of a GEMM under a schedule, behind a cache of `cache_bytes` (0 for none)."""
    tiles_m, tiles_n = schedule.tiles(problem)
    operands = _bytes_of_operands(problem)
    result = format_named(problem.out_format).code_bytes(problem.m, problem.n)
    in_memory = schedule.split_k > 1 and not schedule.sums_on_chip
    parts = 2 * schedule.split_k * 4 * problem.m * problem.n if in_memory else 0
    hbm_read = _missed_bytes(problem, schedule, cache_bytes)
    return Traffic(
        l2_read_bytes=operands[0] * tiles_n + operands[1] * tiles_m,
        hbm_read_bytes=hbm_read,
        write_bytes=result + parts,
        a_tile_loads=tiles_n,
        b_tile_loads=tiles_m,
        hbm_loads=hbm_read / sum(operands),
    )


def operand_bytes(problem: GemmProblem) -> int:
    """Bytes of A and B together, codes and block scales: what is loaded at least once."""
    return sum(_bytes_of_operands(problem))


def _bytes_of_operands(problem: GemmProblem) -> tuple[int, int]:
    return (
        _operand_bytes(problem.a_format, problem.m, problem.k),
        _operand_bytes(problem.b_format, problem.n, problem.k),
    )


def _operand_bytes(format_name: str, rows: int, k: int) -> int:
    """Codes and block scales; a tensor scale is not part of a tile."""
    spec = format_named(format_name)
    return spec.storage_bytes(rows, k) - (4 if spec.tensor_scale else 0)


def _missed_bytes(problem: GemmProblem, schedule: Schedule, cache_bytes: float) -> int:
    """Operand bytes that a least-recently-used cache does not hold when they are asked for."""
    cache = _Lru(cache_bytes)
    extents = _Extents.of(problem, schedule)
    items = [(tile, part) for tile in schedule.order(problem) for part in range(schedule.split_k)]
    steps = len(extents.k)
    steps_of_part = ceil_div(steps, schedule.split_k)
    for start in range(0, len(items), schedule.units):
        wave = items[start : start + schedule.units]
        rows = sorted({("a", row, part * steps_of_part) for (row, _), part in wave})
        columns = sorted({("b", column, part * steps_of_part) for (_, column), part in wave})
        blocks = [(*block, extents.bytes_of_a_k(*block[:2])) for block in rows + columns]
        for step in range(steps_of_part):
            cache.read(
                [
                    ((side, index, first + step), bytes_of_a_k * extents.k[first + step])
                    for side, index, first, bytes_of_a_k in blocks
                    if first + step < steps
                ]
            )
        for row, column in {tile for tile, _ in wave}:
            cache.write(("c", row, column), extents.result_bytes(row, column))
    return cache.missed_bytes


@dataclass(frozen=True)
class _Extents:
    """Real extents of the tiles, edges cut off, and bytes of an element of each operand."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    bytes_per_element: dict[str, float]

    @staticmethod
    def of(problem: GemmProblem, schedule: Schedule) -> "_Extents":
        k_tiles = ceil_div(problem.k, schedule.tile_k)
        step_k = schedule.tile_k * ceil_div(k_tiles, _MAX_STEPS * schedule.split_k)
        return _Extents(
            m=_cut(problem.m, schedule.tile_m),
            n=_cut(problem.n, schedule.tile_n),
            k=_cut(problem.k, step_k),
            bytes_per_element={
                "a": _operand_bytes(problem.a_format, problem.m, problem.k) / (problem.m * problem.k),
                "b": _operand_bytes(problem.b_format, problem.n, problem.k) / (problem.n * problem.k),
                "c": format_named(problem.out_format).element.bits / 8,
            },
        )

    def bytes_of_a_k(self, side: str, index: int) -> float:
        """Bytes of a block of rows of an operand for every k."""
        rows = self.m[index] if side == "a" else self.n[index]
        return rows * self.bytes_per_element[side]

    def result_bytes(self, row: int, column: int) -> float:
        return self.m[row] * self.n[column] * self.bytes_per_element["c"]


def _cut(extent: int, tile: int) -> tuple[int, ...]:
    full, rest = divmod(extent, tile)
    return (tile,) * full + ((rest,) if rest else ())


class _Lru:
    """A cache of whole blocks that drops the least recently used ones."""

    def __init__(self, capacity_bytes: float) -> None:
        self._capacity = capacity_bytes
        self._held: OrderedDict[tuple[str, int, int], float] = OrderedDict()
        self._used = 0.0
        self._missed = 0.0

    @property
    def missed_bytes(self) -> int:
        return round(self._missed)

    def read(self, blocks: Iterable[tuple[tuple[str, int, int], float]]) -> None:
        """Read blocks with their bytes, in this order; many a call, for a schedule has millions."""
        held, touch = self._held, self._held.move_to_end
        for block, size in blocks:
            if block in held:
                touch(block)
            else:
                self._missed += size
                self.write(block, size)

    def write(self, block: tuple[str, int, int], size: float) -> None:
        """Put a new block in; one larger than the cache passes through."""
        if size > self._capacity:
            return
        self._held[block] = size
        self._used += size
        while self._used > self._capacity:
            _, dropped = self._held.popitem(last=False)
            self._used -= dropped
