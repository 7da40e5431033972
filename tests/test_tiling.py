import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgemm.tiling import ceil_div, raster, round_up


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20))
def test_raster_visits_every_tile_once(tiles_m: int, tiles_n: int, width: int) -> None:
    visited = [raster(index, tiles_m, tiles_n, width) for index in range(tiles_m * tiles_n)]
    assert sorted(visited) == [(row, column) for row in range(tiles_m) for column in range(tiles_n)]


def test_raster_snakes_through_bands() -> None:
    order = [raster(index, tiles_m=3, tiles_n=5, width=2) for index in range(15)]
    down = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    up = [(2, 2), (2, 3), (1, 2), (1, 3), (0, 2), (0, 3)]
    narrow = [(0, 4), (1, 4), (2, 4)]
    assert order == down + up + narrow


@pytest.mark.parametrize(("extent", "multiple", "tiles"), [(1, 8, 1), (8, 8, 1), (9, 8, 2)])
def test_round_up(extent: int, multiple: int, tiles: int) -> None:
    assert ceil_div(extent, multiple) == tiles
    assert round_up(extent, multiple) == tiles * multiple
