from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowgemm
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.shuffle import SHUFFLED_FORMATS, ShuffledWeights, shuffle_weights, unshuffle_weights
from narrowgemm.formats.spec import format_named
from narrowgemm.formats.weight_bits import GROUP, PLACEMENTS


def weights(fmt: str, n: int, k: int, seed: int = 0) -> QuantizedArray:
    """Weights of random bits, but for scales that are NaN."""
    random = np.random.default_rng(seed)
    spec = format_named(fmt)
    codes = random.integers(0, 256, (n, spec.code_bytes(1, k)), dtype=np.uint8)
    largest = 0x7E if spec.tensor_scale else 0xFE
    scales = random.integers(0, largest + 1, (n, k // spec.block), dtype=np.uint8).view(spec.scale_dtype)
    tensor_scale = jnp.float32(random.uniform(0.5, 2)) if spec.tensor_scale else None
    return QuantizedArray(jnp.asarray(codes), jnp.asarray(scales), tensor_scale, fmt, (n, k))


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=["-".join(key) for key in PLACEMENTS])
def test_codes_take_each_bit_of_their_words_once(placement) -> None:
    bits = range(len(placement.code_bits))
    places = {placement.source(code, bit) for code, bit in product(range(GROUP), bits)}
    assert places == set(product(range(placement.words), range(32)))


@pytest.mark.parametrize(
    ("fmt", "activation_bits", "n", "k"),
    [
        # Each format for each kind of activations; in N and in K less than a tile of 64 by 128, one, and several, the
        # last of them whole or not; and an odd number of NVFP4's blocks.
        ("mxfp4", 8, 1, 32),
        ("mxfp4", 16, 150, 288),
        ("nvfp4", 8, 65, 144),
        ("nvfp4", 16, 64, 16),
        ("mxfp6_e2m3", 8, 70, 288),
        ("mxfp6_e2m3", 16, 128, 256),
        ("mxfp6_e3m2", 8, 130, 160),
        ("mxfp6_e3m2", 16, 63, 128),
    ],
)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_shuffling_is_undone_bit_for_bit(fmt: str, activation_bits: int, n: int, k: int, seed: int) -> None:
    q = weights(fmt, n, k, seed)
    back = unshuffle_weights(shuffle_weights(q, activation_bits))
    assert (back.format, back.shape, back.tensor_scale) == (q.format, q.shape, q.tensor_scale)
    np.testing.assert_array_equal(back.codes, q.codes)
    np.testing.assert_array_equal(np.asarray(back.scales).view(np.uint8), np.asarray(q.scales).view(np.uint8))


@pytest.mark.parametrize("fmt", SHUFFLED_FORMATS)
def test_whole_tiles_take_no_more_bytes_than_the_format(fmt: str) -> None:
    q = weights(fmt, 128, 256)
    shuffled = shuffle_weights(q, 8)
    assert shuffled.tiles.nbytes + 4 * q.spec.tensor_scale == q.spec.storage_bytes(128, 256)


def test_is_a_pytree_that_passes_through_jit() -> None:
    shuffled = shuffle_weights(weights("nvfp4", 64, 128), 16)
    same = jax.jit(lambda x: x)(shuffled)
    assert (same.format, same.activation_bits, same.shape) == ("nvfp4", 16, (64, 128))
    np.testing.assert_array_equal(same.tiles, shuffled.tiles)


def test_refuses_other_formats_activations_and_tiles() -> None:
    q = narrowgemm.quantize(np.ones((64, 128), np.float32), "mxfp8_e4m3")
    with pytest.raises(ValueError, match="mxfp8_e4m3"):
        shuffle_weights(q, 8)
    with pytest.raises(ValueError, match="activation_bits=4"):
        shuffle_weights(weights("mxfp4", 64, 128), 4)
    with pytest.raises(ValueError, match=r"\(1, 1, 16, 64\).*\(1, 1, 17, 64\)"):
        ShuffledWeights(jnp.zeros((1, 1, 16, 64), jnp.uint32), None, "mxfp4", 8, (64, 128))
    tiles = jnp.zeros((1, 1, 18, 64), jnp.uint32)
    with pytest.raises(ValueError, match=r"tensor_scale are \(1,\) of float32, not \(\)"):
        ShuffledWeights(tiles, jnp.ones(1), "nvfp4", 8, (64, 128))
    with pytest.raises(ValueError, match="k=100 is not a multiple of the block of 16"):
        ShuffledWeights(tiles, None, "nvfp4", 8, (64, 100))


def test_a_stack_goes_through_vmap_alone() -> None:
    q = weights("mxfp4", 64, 128)
    stack = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), q)
    shuffled = jax.vmap(lambda each: shuffle_weights(each, 8))(stack)
    np.testing.assert_array_equal(shuffled.tiles[1], shuffle_weights(q, 8).tiles)
    for call in (lambda: shuffle_weights(stack, 8), lambda: unshuffle_weights(shuffled)):
        with pytest.raises(ValueError, match=r"a stack goes through jax\.vmap"):
            call()
