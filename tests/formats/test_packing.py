import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgemm.formats import packing, reference
from narrowgemm.formats.spec import FORMATS

pack = jax.jit(packing.pack, static_argnums=1)
unpack = jax.jit(packing.unpack, static_argnums=(1, 2))


@given(bits=st.sampled_from([4, 6]), k=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_packing_round_trips_and_equals_the_reference(bits: int, k: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (3, k), np.uint8)
    packed = np.asarray(pack(codes, bits))
    np.testing.assert_array_equal(packed, reference.pack(codes, bits))
    np.testing.assert_array_equal(np.asarray(unpack(packed, bits, k)), codes)
    np.testing.assert_array_equal(reference.unpack(packed, bits, k), codes)


@pytest.mark.parametrize("name", ["fp4_e2m1", "fp6_e2m3", "mxfp4", "mxfp6_e3m2", "nvfp4"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 64])
def test_packed_size_is_what_the_table_says(name: str, k: int) -> None:
    spec = FORMATS[name]
    packed = packing.pack(np.zeros((5, k), np.uint8), spec.element.bits)
    assert packed.size == spec.code_bytes(5, k)


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of 3 bytes, but k=8 codes of 4 bits take 4"):
        packing.unpack(np.zeros((2, 3), np.uint8), 4, 8)


def test_a_width_that_is_not_packed_is_refused() -> None:
    with pytest.raises(ValueError, match="codes of 5 bits"):
        packing.pack(np.zeros((2, 3), np.uint8), 5)
