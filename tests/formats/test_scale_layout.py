import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowgemm.formats.scale_layout import tile_scales, untile_scales
from narrowgemm.formats.spec import E4M3, E8M0


def documented_offset(row: int, block: int, blocks: int) -> int:
    """cuBLAS documentation: byte of the scale of `row` and `block` of a matrix of `blocks` blocks a row."""
    tile = row // 128 * -(-blocks // 4) + block // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


@pytest.mark.parametrize(("rows", "blocks"), [(128, 4), (256, 8), (1, 1), (130, 5), (300, 12)])
def test_every_scale_lies_where_the_documentation_says(rows: int, blocks: int) -> None:
    scales = np.random.default_rng(0).integers(1, 255, (rows, blocks), dtype=np.uint8).view(E8M0)
    flat = np.asarray(tile_scales(jnp.asarray(scales))).view(np.uint8).ravel()
    expected = np.zeros(flat.size, np.uint8)
    for row in range(rows):
        for block in range(blocks):
            expected[documented_offset(row, block, blocks)] = scales.view(np.uint8)[row, block]
    np.testing.assert_array_equal(flat, expected)


@settings(deadline=None, max_examples=6)
@given(st.integers(1, 300), st.integers(1, 12), st.sampled_from([E8M0, E4M3]))
def test_untile_is_the_inverse(rows: int, blocks: int, dtype: np.dtype) -> None:
    codes = np.random.default_rng(rows).integers(0, 256, (rows, blocks), dtype=np.uint8)
    back = untile_scales(tile_scales(jnp.asarray(codes.view(dtype))), rows, blocks)
    assert back.dtype == dtype
    np.testing.assert_array_equal(np.asarray(back).view(np.uint8), codes)


def test_other_shapes_and_dtypes_are_refused_with_both_values() -> None:
    with pytest.raises(ValueError, match=r"scales \(4,\) of uint8 are not"):
        tile_scales(jnp.zeros(4, jnp.uint8))
    with pytest.raises(ValueError, match="of float32 are not"):
        tile_scales(jnp.zeros((4, 4)))
    with pytest.raises(ValueError, match=r"shape \(1, 1, 32, 16\), but \(129, 4\) scales make \(2, 1, 32, 16\)"):
        untile_scales(jnp.zeros((1, 1, 32, 16), jnp.uint8), 129, 4)
    with pytest.raises(ValueError, match=r"scales \(4, 0\) of uint8 are not .* no axis empty"):
        tile_scales(jnp.zeros((4, 0), jnp.uint8))
    for nothing in ([[1]], None):
        with pytest.raises(ValueError, match=f"scales of type {type(nothing).__name__} are not"):
            tile_scales(nothing)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="of bool are not"):
        tile_scales(jnp.zeros((4, 4), bool))
    with pytest.raises(ValueError, match=r"tiles \(1, 1, 32, 16\) of float32 are not of one byte"):
        untile_scales(jnp.zeros((1, 1, 32, 16)), 128, 4)


@pytest.mark.parametrize("step_blocks", [3, 6, 0, -4])
def test_steps_that_end_within_a_tile_are_refused(step_blocks: int) -> None:
    with pytest.raises(ValueError, match=rf"step_blocks={step_blocks} is not a multiple of 4"):
        tile_scales(jnp.zeros((128, 5), jnp.uint8), step_blocks)
