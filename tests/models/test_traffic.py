"""Tile loads against counts by hand and against a cache simulated block by block, one line at a time."""

from typing import Literal

import pytest

from narrowbench.models.traffic import Schedule, tile_traffic
from narrowgemm.problem import GemmProblem
from narrowgemm.tiling import raster


def _schedule(units: int = 4, tile: int = 128, **choices: object) -> Schedule:
    return Schedule(tile, tile, 64, units, **choices)  # type: ignore[arg-type]


def test_every_operand_tile_is_loaded_once_for_each_tile_across() -> None:
    """4×8 output tiles: a tile of A is loaded 8 times and one of B 4 times; once only where there is a single tile."""
    problem = GemmProblem(512, 1024, 256, "bf16", "bf16")
    traffic = tile_traffic(problem, _schedule(), 1e9)
    assert (traffic.a_tile_loads, traffic.b_tile_loads) == (8, 4)
    assert traffic.l2_read_bytes == 2 * 256 * (512 * 8 + 1024 * 4)
    single = tile_traffic(GemmProblem(128, 128, 256, "bf16", "bf16"), _schedule(), 1e9)
    assert (single.a_tile_loads, single.b_tile_loads) == (1, 1)


def test_a_large_cache_reads_memory_once() -> None:
    problem = GemmProblem(512, 1000, 300, "fp8_e4m3", "bf16")
    traffic = tile_traffic(problem, _schedule(), 1e9)
    assert traffic.hbm_read_bytes == 512 * 300 + 1000 * 300 * 2
    assert traffic.hbm_loads == 1
    assert traffic.write_bytes == 512 * 1000 * 2


def test_without_a_cache_one_unit_reads_all_its_loads_from_memory() -> None:
    problem = GemmProblem(500, 1000, 300, "fp8_e4m3", "fp8_e4m3")
    traffic = tile_traffic(problem, _schedule(units=1), 0)
    assert traffic.hbm_read_bytes == traffic.l2_read_bytes


def test_units_that_run_together_share_what_they_read() -> None:
    """A wave of 2×2 tiles without a cache reads each of its two rows and two columns once."""
    problem = GemmProblem(256, 256, 64, "fp8_e4m3", "fp8_e4m3")
    traffic = tile_traffic(problem, _schedule(units=4, raster_width=2), 0)
    assert traffic.hbm_read_bytes == 4 * 128 * 64
    assert traffic.l2_read_bytes == 8 * 128 * 64


@pytest.mark.parametrize("side", ["m", "n"])
@pytest.mark.parametrize("cache_blocks", [3, 5, 9, 17])
def test_the_cache_is_least_recently_used(side: Literal["m", "n"], cache_blocks: int) -> None:
    """One unit at a time, one step of K at a time: an independent walk over a list of blocks."""
    problem = GemmProblem(640, 896, 256, "fp8_e4m3", "fp8_e4m3", "fp8_e4m3")
    schedule = _schedule(units=1, raster=side, raster_width=2)
    block = 128 * 64
    held: list[tuple[str, int, int]] = []
    missed = 0
    for i in range(5 * 7):
        row, column = raster(i, 5, 7, 2) if side == "n" else raster(i, 7, 5, 2)[::-1]
        for step in range(4):
            for wanted in (("a", row, step), ("b", column, step)):
                if wanted in held:
                    held.remove(wanted)
                else:
                    missed += 1
                held.append(wanted)
                held = held[-cache_blocks:]
        # The 128×128 result takes the room of two operand blocks.
        held = [*held, ("c", i, 0), ("c", i, 1)][-cache_blocks:]
        while held and held[0][0] == "c" and ("c", held[0][1], 0) not in held:
            held = held[1:]
    assert tile_traffic(problem, schedule, cache_blocks * block).hbm_read_bytes == missed * block


def test_rasterisation_saves_memory_traffic() -> None:
    """8192³ in FP8 behind 60 MB: row by row each byte comes from memory eight times, in bands of 16 twice."""
    problem = GemmProblem(8192, 8192, 8192, "fp8_e4m3", "fp8_e4m3")
    plain = tile_traffic(problem, Schedule(256, 128, 128, 132, raster_width=64), 60e6)
    banded = tile_traffic(problem, Schedule(256, 128, 128, 132, raster_width=16), 60e6)
    assert plain.l2_read_bytes == banded.l2_read_bytes
    assert plain.hbm_loads > 3 * banded.hbm_loads
    assert banded.hbm_loads > 1.5


def test_split_k_is_items_and_partial_results() -> None:
    problem = GemmProblem(128, 256, 1024, "fp8_e4m3", "fp8_e4m3")
    schedule = _schedule(split_k=4)
    assert (schedule.items(problem), schedule.waves(problem)) == (8, 2)
    traffic = tile_traffic(problem, schedule, 1e9)
    assert traffic.hbm_loads == 1
    assert traffic.write_bytes == 128 * 256 * 2 + 2 * 4 * 4 * 128 * 256
    on_chip = tile_traffic(problem, _schedule(split_k=4, sums_on_chip=True), 1e9)
    assert on_chip.write_bytes == 128 * 256 * 2
    assert on_chip.hbm_read_bytes == traffic.hbm_read_bytes


def test_block_scales_travel_with_their_tiles() -> None:
    problem = GemmProblem(128, 128, 1024, "mxfp4", "nvfp4")
    assert tile_traffic(problem, _schedule(), 1e9).hbm_read_bytes == 128 * (512 + 32) + 128 * (512 + 64)


def test_what_the_claims_say_of_the_tutorials_shape() -> None:
    """The numbers in the findings of claims 37 and 40: 4096×8192×4096 in 16 bits behind a B200's L2, 148 SMs."""
    problem = GemmProblem(4096, 8192, 4096, "f16", "f16", "f16")
    square = tile_traffic(problem, Schedule(128, 128, 64, 148), 132644864)
    assert (square.a_tile_loads, square.b_tile_loads, square.hbm_loads) == (64, 32, 1)
    alone = tile_traffic(problem, Schedule(128, 256, 64, 148), 132644864)
    paired = tile_traffic(problem, Schedule(256, 256, 64, 74, cores_per_unit=2), 132644864)
    assert (round(alone.l2_read_bytes / 1e9, 2), round(paired.l2_read_bytes / 1e9, 2)) == (3.22, 2.15)
