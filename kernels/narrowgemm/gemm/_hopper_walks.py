"""Which tiles of C the clusters of Hopper's dense kernels take, in what order, and where these lie.

One product, a batch of products, or groups of rows of A, each with a B of its own. Clusters take tiles in turn, along
the rasterised order of each product or group and on through the next.

Groups begin at any row of A and C, and how long they are is known to the device alone. Every block copies the sizes
into shared memory once, and each of its warpgroups goes through all groups: a few dozen cycles for each that has
nothing for it. A group's tiles begin at its first row. What its last tile has of the next group's rows is computed and
not stored: the rows that are its own go out in copies of 64, 32, … 1 rows, at most six for 64 rows, each with a
descriptor of its own. A piece begins at a multiple of twice its length, so in rows of at least 64 bytes it lies at a
multiple of 128, as TMA wants, and swizzling goes by the address, not by the piece. Barrier of the sizes: an arrival of
their copies; all warpgroups wait for it once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from narrowgemm.gemm._hopper_space import LONGEST_BOX, STORE_ROWS, Config
from narrowgemm.tiling import ceil_div

#: Each thread of a warpgroup announces its part of a copy's bytes: sizes are copied by so many.
_SIZES_STEP = 32


def sizes_length(count: int) -> int:
    """Sizes in shared memory: those of so many groups, and zeros, in copies of one length."""
    step = _SIZES_STEP if count <= LONGEST_BOX else LONGEST_BOX
    return ceil_div(count, step) * step


def copies_of_sizes(length: int) -> int:
    """Copies that bring so many sizes into shared memory."""
    return ceil_div(length, LONGEST_BOX)


@dataclass(frozen=True)
class Place:
    """A tile of a block: whose turn it is, its first K step among the block's, its row and column in C.

    matrix: which product or group it is of; None where there is one.
    end:    the row of C from which on nothing is to be stored; None: all that C has is.
    """

    turn: jax.Array
    first_step: jax.Array
    row: jax.Array
    column: jax.Array
    matrix: jax.Array | None = None
    end: jax.Array | None = None


@dataclass(frozen=True)
class OneProduct:
    """C = A·Bᵀ. `grid`: cluster tiles in M and in N, and the K steps of a tile."""

    config: Config
    grid: tuple[int, int, int]

    #: Whether each staged part of a tile is one copy. The interpreter counts copies, the device groups of them.
    one_copy_a_part: ClassVar[bool] = True

    def for_each(self, visit: Callable[[Place], None]) -> tuple[jax.Array, jax.Array | None]:
        """Visit this cluster's tiles; return the K steps in all, and the rows of C that tiles cover, None: all."""
        m_tiles, n_tiles, k_steps = self.grid

        @plgpu.nd_loop((m_tiles * n_tiles,), collective_axes="clusters", init_carry=jnp.int32(0))
        def tiles(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
            visit(
                Place(
                    lax.rem(carry, jnp.int32(self.config.consumers)),
                    carry * k_steps,
                    *self.origin(loop.index[0], m_tiles),
                )
            )
            return carry + 1

        steps: jax.Array = tiles * k_steps
        return steps, None

    def begin(self) -> None:
        """What the producer does first."""

    def end(self, rows: jax.Array | None, staged: Any, staged_tma: Any, out: Any, role: jax.Array) -> None:
        """What the consumers do last, with a staging tile of their own; tiles have covered so many rows of C."""

    def origin(self, index: jax.Array, m_tiles: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        """Row and column of the block's tile, from where `m_tiles` rows of cluster tiles begin."""
        config = self.config
        raster = 0 if config.raster == "m" else 1
        tile_m, tile_n = plgpu.planar_snake(index, (m_tiles, self.grid[1]), raster, config.raster_width)
        row = (tile_m * config.cluster_m + lax.axis_index("cluster_m")) * config.tile_m
        column = (tile_n * config.cluster_n + lax.axis_index("cluster_n")) * config.tile_n
        return row, column

    def a_of(self, a: Any, place: Place) -> Any:
        """The A in global memory that the tile is of."""
        del place
        return a

    def b_of(self, b: Any, place: Place) -> Any:
        """The B in global memory that the tile is of."""
        del place
        return b

    def scale(self, a_scale: Any, b_scale: Any) -> Callable[[Place], jax.Array]:
        """Product of the tensor scales of a tile's operands."""
        scale: jax.Array = a_scale[0] * b_scale[0]
        return lambda _: scale

    def where_stored(self, place: Place, row: jax.Array, store: Callable[[], None]) -> None:
        """Store 64 rows from `row` on, if any of them is to be stored."""
        del place, row
        store()

    def put(self, staging: Any, which: jax.Array, out: Any, place: Place, row: jax.Array, column: jax.Array) -> None:
        """Copy the 64 rows of a staging tile to C from `row` on, as far as they are to be stored."""
        del place
        _, rows, columns = staging.shape
        plgpu.copy_smem_to_gmem(staging.at[which], out.at[pl.ds(row, rows), pl.ds(column, columns)])


@dataclass(frozen=True)
class Batch(OneProduct):
    """C[g] = A[g]·B[g]ᵀ for `products` of one shape, one after the other."""

    products: int

    def for_each(self, visit: Callable[[Place], None]) -> tuple[jax.Array, jax.Array | None]:
        m_tiles, n_tiles, k_steps = self.grid
        shape = (self.products, m_tiles * n_tiles)

        @plgpu.nd_loop(shape, collective_axes="clusters", init_carry=jnp.int32(0))
        def tiles(loop: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
            matrix, index = loop.index
            turn = lax.rem(carry, jnp.int32(self.config.consumers))
            visit(Place(turn, carry * k_steps, *self.origin(index, m_tiles), matrix))
            return carry + 1

        return tiles * k_steps, None

    def a_of(self, a: Any, place: Place) -> Any:
        return a.at[place.matrix]

    def b_of(self, b: Any, place: Place) -> Any:
        return b.at[place.matrix]

    def scale(self, a_scale: Any, b_scale: Any) -> Callable[[Place], jax.Array]:
        return lambda place: a_scale[place.matrix] * b_scale[place.matrix]

    def put(self, staging: Any, which: jax.Array, out: Any, place: Place, row: jax.Array, column: jax.Array) -> None:
        super().put(staging, which, out.at[place.matrix], place, row, column)


@dataclass(frozen=True)
class Groups(OneProduct):
    """C[r] = A[r]·B[g(r)]ᵀ for consecutive groups of rows; `grid` counts rows of tiles that nobody knows.

    groups: how many there are, each with the number of its rows in global memory (sizes_gmem).
    sizes, full: these in shared memory, and the barrier for their copies.
    """

    one_copy_a_part: ClassVar[bool] = False

    groups: int
    sizes_gmem: Any
    sizes: Any
    full: Any

    def begin(self) -> None:
        """Copy the sizes; TMA makes zeros beyond the last."""
        copies = copies_of_sizes(self.sizes.shape[0])
        length = self.sizes.shape[0] // copies

        @pl.loop(0, copies)
        def _copy(number: jax.Array) -> None:
            part = pl.ds(number * length, length)
            plgpu.copy_gmem_to_smem(self.sizes_gmem.at[part], self.sizes.at[part], self.full)

    def for_each(self, visit: Callable[[Place], None]) -> tuple[jax.Array, jax.Array | None]:
        _, n_tiles, k_steps = self.grid
        cluster, clusters = lax.axis_index("clusters"), jnp.int32(lax.axis_size("clusters"))
        rows_of_tile = self.config.tile_m * self.config.cluster_m
        plgpu.barrier_wait(self.full)

        def visit_group(group: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            first_row, whose, visited = carry
            size = self.sizes[group]
            m_tiles = lax.div(size + (rows_of_tile - 1), jnp.int32(rows_of_tile))
            tiles = m_tiles * n_tiles
            first = cluster - whose
            first = jnp.where(first < 0, first + clusters, first)
            mine = lax.div(tiles - first + (clusters - 1), clusters)

            @pl.loop(0, mine)
            def _visit(number: jax.Array) -> None:
                row, column = self.origin(first + number * clusters, m_tiles)
                turn = lax.rem(visited + number, jnp.int32(self.config.consumers))
                visit(Place(turn, (visited + number) * k_steps, first_row + row, column, group, first_row + size))

            return first_row + size, lax.rem(whose + tiles, clusters), visited + mine

        zero = jnp.int32(0)
        rows, _, visited = lax.fori_loop(0, self.groups, visit_group, (zero, zero, zero))
        return visited * k_steps, rows

    def b_of(self, b: Any, place: Place) -> Any:
        return b.at[place.matrix]

    def scale(self, a_scale: Any, b_scale: Any) -> Callable[[Place], jax.Array]:
        return lambda place: a_scale[0] * b_scale[place.matrix]

    def where_stored(self, place: Place, row: jax.Array, store: Callable[[], None]) -> None:
        """Every part commits its copies as one group, even none: waiting counts groups."""
        assert place.end is not None
        pl.when(row < place.end)(store)
        plgpu.commit_smem_to_gmem_group()

    def put(self, staging: Any, which: jax.Array, out: Any, place: Place, row: jax.Array, column: jax.Array) -> None:
        """In copies of rows of the group alone."""
        assert place.end is not None
        left, columns = place.end - row, staging.shape[2]

        def copy(start: Any, rows: int) -> None:
            to = out.at[pl.ds(row + start, rows), pl.ds(column, columns)]
            plgpu.copy_smem_to_gmem(staging.at[which, pl.ds(start, rows)], to, commit_group=False)

        pl.when(left >= STORE_ROWS)(lambda: copy(0, STORE_ROWS))

        @pl.when(left < STORE_ROWS)
        def _pieces() -> None:
            start: Any = 0
            for rows in (STORE_ROWS >> shift for shift in range(1, STORE_ROWS.bit_length())):
                pl.when((left & rows) != 0)(functools.partial(copy, start, rows))
                start = start + (left & rows)

    def end(self, rows: jax.Array | None, staged: Any, staged_tma: Any, out: Any, role: jax.Array) -> None:
        """Rows of C beyond the last group become zero."""
        first_row, columns = rows, staged.shape[1]
        assert first_row is not None
        across = ceil_div(out.shape[1], columns)
        clusters, shape = lax.axis_size("clusters"), (self.config.cluster_m, self.config.cluster_n)
        worker = lax.axis_index("clusters") * shape[0] + lax.axis_index("cluster_m")
        worker = (worker * shape[1] + lax.axis_index("cluster_n")) * self.config.consumers + role
        workers = clusters * shape[0] * shape[1] * self.config.consumers

        @pl.when(first_row < out.shape[0])
        def _zero() -> None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            zeros = plgpu.layout_cast(jnp.zeros(staged.shape, jnp.float32), plgpu.Layout.WGMMA)
            staged[...] = zeros.astype(staged.dtype)
            plgpu.commit_smem()
            parts = lax.div(out.shape[0] - first_row + (STORE_ROWS - 1), jnp.int32(STORE_ROWS)) * across

            @pl.loop(0, lax.div(parts - worker + (workers - 1), jnp.int32(workers)))
            def _part(number: jax.Array) -> None:
                part = worker + number * workers
                row = first_row + lax.div(part, jnp.int32(across)) * STORE_ROWS
                column = lax.rem(part, jnp.int32(across)) * columns
                to = out.at[pl.ds(row, STORE_ROWS), pl.ds(column, columns)]
                plgpu.copy_smem_to_gmem(staged_tma, to)
