import numpy as np
import pytest

from narrowgemm.formats import reference
from narrowgemm.formats.spec import ELEMENTS, FORMATS, format_named


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_storage_is_the_bits_of_codes_and_scales(name: str) -> None:
    spec = FORMATS[name]
    rows, k = 3, 64
    bits = rows * k * spec.element.bits + (0 if spec.block is None else rows * k // spec.block * 8)
    assert spec.storage_bytes(rows, k) == bits // 8 + (4 if spec.tensor_scale else 0)


@pytest.mark.parametrize("name", [element.name for element in ELEMENTS.values() if element.bits <= 16])
def test_the_table_of_elements_is_that_of_their_codes(name: str) -> None:
    element = ELEMENTS[name]
    values = reference.magnitudes(element)
    assert values[np.isfinite(values)].max() == element.max_finite
    assert np.isinf(values).any() == element.has_inf
    assert np.isnan(values).any() == element.has_nan
    assert 2.0**element.max_exponent <= element.max_finite < 2.0 ** (element.max_exponent + 1)


def test_an_unknown_format_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="unknown format 'nvfp'; did you mean nvfp4"):
        format_named("nvfp")
