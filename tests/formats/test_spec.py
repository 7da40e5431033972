import numpy as np
import pytest

from narrowgemm.formats import reference
from narrowgemm.formats.spec import ELEMENTS, FORMATS, format_named


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_storage_is_the_bits_of_codes_and_scales(name: str) -> None:
    spec = FORMATS[name]
    rows, k = 3, 64
    blocks = {"fp8_e4m3_1x128": 3, "fp8_e4m3_128x128": 1}.get(name, rows * k // spec.block if spec.block else 0)
    scale_bits = 32 if name.endswith("x128") else 8
    bits = rows * k * spec.element.bits + blocks * scale_bits
    assert spec.storage_bytes(rows, k) == bits // 8 + (4 if spec.tensor_scale else 0)


@pytest.mark.parametrize(
    ("name", "shape", "scales_shape", "share"),
    [
        ("fp8_e4m3_1x128", (130, 300), (130, 3), 1 / 32),
        ("fp8_e4m3_128x128", (130, 300), (2, 3), 1 / 4096),
        ("fp8_e4m3_128x128", (128, 128), (1, 1), 1 / 4096),
        ("mxfp8_e4m3", (130, 96), (130, 3), 1 / 32),
        ("nvfp4", (130, 96), (130, 6), 1 / 16),
    ],
)
def test_blocks_that_end_early_have_a_scale_too(
    name: str, shape: tuple[int, int], scales_shape: tuple[int, int], share: float
) -> None:
    spec = FORMATS[name]
    assert spec.scales_shape(*shape) == scales_shape
    scales = scales_shape[0] * scales_shape[1] * (4 if name.startswith("fp8") else 1)
    assert spec.scale_bytes(*shape) == scales + (4 if spec.tensor_scale else 0)
    assert spec.bytes_per_element == spec.element.bits / 8 + share


def test_a_format_without_blocks_has_no_shape_of_scales() -> None:
    assert FORMATS["fp8_e4m3"].bytes_per_element == 1
    with pytest.raises(ValueError, match="fp8_e4m3: has no block scales"):
        FORMATS["fp8_e4m3"].scales_shape(3, 64)


@pytest.mark.parametrize("name", [element.name for element in ELEMENTS.values() if element.bits <= 16])
def test_the_table_of_elements_is_that_of_their_codes(name: str) -> None:
    element = ELEMENTS[name]
    values = reference.magnitudes(element)
    assert values[np.isfinite(values)].max() == element.max_finite
    assert np.isinf(values).any() == element.has_inf
    assert np.isnan(values).any() == element.has_nan
    assert 2.0**element.max_exponent <= element.max_finite < 2.0 ** (element.max_exponent + 1)


def test_an_unknown_format_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match=r"unknown format \['nvfp4'\]; did you mean nvfp4"):
        format_named(["nvfp4"])  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="unknown format 'nvfp'; did you mean nvfp4"):
        format_named("nvfp")
