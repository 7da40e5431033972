import operator

import ml_dtypes
import numpy as np
import pytest

from narrowgemm.formats.spec import ELEMENTS
from narrowgemm.gemm._fp6_widening import PLACEMENT, widen
from narrowgemm.gemm._words import WordOperations

NUMPY = WordOperations(operator.and_, operator.or_, operator.lshift, operator.rshift, np.uint32, operator.eq)


@pytest.mark.parametrize("element", ["e2m3", "e3m2"])
@pytest.mark.parametrize("place", range(16))
def test_every_code_in_every_place_reads_as_its_value(element: str, place: int) -> None:
    random = np.random.default_rng(place)
    codes = random.integers(0, 64, (64, 16), dtype=np.uint8)
    codes[:, place] = np.arange(64)
    packed = np.packbits(np.unpackbits(codes[..., None], axis=-1, count=6, bitorder="little").reshape(64, 96),
                         axis=-1, bitorder="little")  # fmt: skip
    words = packed.view("<u4").astype(np.uint32)
    wide = np.stack(widen((words[:, 0], words[:, 1], words[:, 2]), element, NUMPY), axis=-1).astype("<u4")
    got = wide.view(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    exact = codes.view(ELEMENTS[element].dtype).astype(np.float64)
    np.testing.assert_array_equal(got * 2.0 ** PLACEMENT[element][1], exact)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(exact))
