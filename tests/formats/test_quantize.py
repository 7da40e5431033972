"""JAX quantisation against the NumPy oracle, bit for bit, and what a `QuantizedArray` refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float, UInt8

from narrowgemm.formats import reference
from narrowgemm.formats.quantize import SCALE_RULES, QuantizedArray, as_quantized, dequantize, quantize
from narrowgemm.formats.spec import FORMATS

ROWS, K = 3, 64
DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)
SPECIAL = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3.4e38, -3.4e38, 448, 464, 480, 0.5])


def any_bits(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2**32, (ROWS, K), np.uint32).view(np.float32)


def subnormal(rng: np.random.Generator) -> np.ndarray:
    sign = rng.integers(0, 2, (ROWS, K), np.uint32) << 31
    return (rng.integers(0, 2**23, (ROWS, K), np.uint32) | sign).view(np.float32)


def special(rng: np.random.Generator) -> np.ndarray:
    x = rng.choice(SPECIAL, (ROWS, K))
    x[0] = rng.choice(np.float32([0, -0.0]), K)
    return x


def ties(rng: np.random.Generator) -> np.ndarray:
    return (rng.integers(-256, 256, (ROWS, K)) / 16).astype(np.float32)


def wide_range(rng: np.random.Generator) -> np.ndarray:
    return (rng.normal(size=(ROWS, K)) * 2.0 ** rng.integers(-140, 120, (ROWS, 1))).astype(np.float32)


KINDS = (any_bits, subnormal, special, ties, wide_range)


def bits(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=8)
@given(
    rule=st.sampled_from(SCALE_RULES),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    out=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_quantisation_equals_the_oracle_bit_for_bit(
    name: str, rule: str, kind: Any, dtype: Any, out: Any, seed: int
) -> None:
    with np.errstate(all="ignore"):
        x = kind(np.random.default_rng(seed)).astype(dtype)
    expected, got = reference.quantize(x, name, rule), quantize(x, name, scale_rule=rule)
    for part in ("codes", "scales", "tensor_scale"):
        theirs, ours = getattr(expected, part), getattr(got, part)
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(bits(ours), bits(theirs), err_msg=part)
    np.testing.assert_array_equal(bits(dequantize(got, out)), bits(reference.dequantize(expected, out)))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_sizes_are_what_the_table_says(name: str) -> None:
    q = quantize(np.ones((ROWS, K), np.float32), name)
    leaves = jax.tree.leaves(q)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) == q.spec.storage_bytes(ROWS, K)


def test_the_scale_rules_differ_where_the_papers_say() -> None:
    x = np.full((1, 32), 500.0, np.float32)  # 448 < 500 < 512: floor saturates, round_up halves
    floor, round_up = quantize(x, "mxfp8_e4m3"), quantize(x, "mxfp8_e4m3", scale_rule="round_up")
    assert float(floor.scales[0, 0]) == 1.0
    assert float(round_up.scales[0, 0]) == 2.0
    assert float(dequantize(floor)[0, 0]) == 448.0
    assert float(dequantize(round_up)[0, 0]) == 512.0


def test_what_is_not_finite_stays_so_in_the_narrowest_place() -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 3], x[0, 40] = np.inf, np.nan
    for name, spec in FORMATS.items():
        value = np.asarray(dequantize(quantize(x, name)))
        if spec.element.has_nan:
            assert np.isnan(value[0, 40])
            assert not np.isfinite(value[0, 3])
            lost = 2
        else:
            lost = 128 if spec.block is None else 2 * spec.block
        assert np.count_nonzero(~np.isfinite(value)) == lost, name


@pytest.mark.parametrize(
    ("name", "start", "scale", "packed"),
    [
        ("mxfp6_e2m3", [1.0, -0.625, 3.5, 0.25], 0.5, [0x90, 0xEA, 0x11, 0]),
        ("mxfp4", [0.5, -1.0, 3.0, -6.0], 1.0, [0xA1, 0xF5, 0]),
    ],
)
def test_the_worked_examples_of_the_format_page(name: str, start: list[float], scale: float, packed: list[int]) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = start
    q = quantize(x, name)
    assert float(q.scales[0, 0]) == scale
    np.testing.assert_array_equal(q.codes[0, : len(packed)], packed)
    np.testing.assert_array_equal(dequantize(q), x)


@pytest.mark.parametrize("name", ["fp8_e4m3_1x128", "fp8_e4m3_128x128"])
@pytest.mark.parametrize("shape", [(1, 1), (127, 128), (129, 127), (130, 300), (256, 256)])
def test_blocks_of_128_that_end_early_equal_the_oracle_bit_for_bit(name: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[1])
    x = (rng.normal(size=shape) * 2.0 ** rng.integers(-130, 120, shape)).astype(np.float32)
    x[rng.random(shape) < 0.01] = np.inf
    expected, got = reference.quantize(x, name), quantize(x, name)
    assert got.scales.dtype == jnp.float32
    assert got.scales.shape == (-(-shape[0] // (128 if name.endswith("128x128") else 1)), -(-shape[1] // 128))
    np.testing.assert_array_equal(bits(got.codes), bits(expected.codes))
    np.testing.assert_array_equal(bits(got.scales), bits(expected.scales))
    for dtype in DTYPES:
        np.testing.assert_array_equal(bits(dequantize(got, dtype)), bits(reference.dequantize(expected, dtype)))


def test_a_block_of_128_takes_its_own_largest_magnitude_to_448() -> None:
    x = np.ones((130, 300), np.float32)
    x[5, 130], x[129, 299] = 896.0, -1344.0
    rows, blocks = quantize(x, "fp8_e4m3_1x128"), quantize(x, "fp8_e4m3_128x128")
    one = np.float32(1 / 448)
    np.testing.assert_array_equal(rows.scales[5], [one, 2.0, one])
    np.testing.assert_array_equal(rows.scales[129], [one, one, 3.0])
    np.testing.assert_array_equal(rows.scales[0], [one, one, one])
    np.testing.assert_array_equal(blocks.scales, [[one, 2.0, one], [one, one, 3.0]])
    for q in (rows, blocks):
        assert float(dequantize(q)[5, 130]) == 896.0
        assert float(dequantize(q)[129, 299]) == -1344.0
    assert float(dequantize(rows)[4, 130]) == 1.0
    # In the same block as 896: 1 / 2 is a number of E4M3, and 1 / 3 is not.
    assert float(dequantize(blocks)[4, 130]) == 1.0
    assert float(dequantize(blocks)[128, 299]) == 3 * 0.34375


def test_scales_of_another_shape_are_refused_for_blocks_of_128() -> None:
    codes = np.zeros((130, 300), ml_dtypes.float8_e4m3fn)
    for name, right in (("fp8_e4m3_1x128", (130, 3)), ("fp8_e4m3_128x128", (2, 3))):
        QuantizedArray(codes, np.ones(right, np.float32), None, name, (130, 300))
        for wrong in ((right[0], 2), (right[0] + 1, 3)):
            with pytest.raises(ValueError, match="scales has shape"):
                QuantizedArray(codes, np.ones(wrong, np.float32), None, name, (130, 300))
    with pytest.raises(ValueError, match="scales has dtype float64, not float32"):
        QuantizedArray(codes, np.ones((130, 3)), None, "fp8_e4m3_1x128", (130, 300))


def test_int8_takes_the_largest_magnitude_to_127_and_rounds_ties_to_even() -> None:
    x = np.float32([[254, -254, 1, -1, 3, -3, -0.0, 0.99]])
    q = quantize(x, "int8")
    assert q.codes.dtype == jnp.int8
    assert float(q.tensor_scale) == 2.0
    np.testing.assert_array_equal(q.codes, [[127, -127, 0, 0, 2, -2, 0, 0]])
    assert not np.signbit(dequantize(q)[0, 6])  # an integer has no zero of its own for −0


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_int8_code_times_a_scale_is_dequantised_exactly_and_rounded_once(dtype: Any) -> None:
    codes = jnp.arange(-128, 128, dtype=jnp.int8).reshape(4, 64)
    for scale in np.float32([1, 1 / 3, 1e-38, 3e36, 2.0**-126]):
        q = QuantizedArray(codes, None, jnp.asarray(scale), "int8", (4, 64))
        np.testing.assert_array_equal(bits(dequantize(q, dtype)), bits(reference.dequantize(q, dtype)))
    # −128, the one code that quantising never makes, with the significand of 24 bits that is the longest
    q = QuantizedArray(codes, None, jnp.float32(1.9999999), "int8", (4, 64))
    assert float(dequantize(q)[0, 0]) == -128 * float(np.float32(1.9999999))


@settings(max_examples=50)
@given(code=st.integers(-127, 127), amax=st.floats(2.0**-100, 2.0**100, width=32), seed=st.integers(0, 2**32 - 1))
def test_int8_codes_next_to_a_midpoint_are_those_of_the_oracle(code: int, amax: float, seed: int) -> None:
    """The quotient has one bit to spare: what lies within a few FP32 steps of a tie tells whether it is enough."""
    scale = np.float32(amax / 127)
    x = np.full(K, np.float32((code + 0.5) * np.float64(scale)))
    steps = np.random.default_rng(seed).integers(-3, 4, K)
    x = (x.view(np.int32) + steps.astype(np.int32)).view(np.float32).reshape(1, K)
    x[0, 0] = amax
    np.testing.assert_array_equal(quantize(x, "int8").codes, reference.quantize(x, "int8").codes)


def test_an_all_zero_block_has_scale_one() -> None:
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        q = quantize(np.zeros((1, 32), np.float32), name)
        assert np.all(np.asarray(q.scales).astype(np.float32) == 1.0)


def test_it_is_a_pytree_that_survives_jit_vmap_and_tree_map() -> None:
    x = np.random.default_rng(0).normal(size=(2, ROWS, K)).astype(np.float32)
    q = quantize(x[0], "nvfp4")
    same = jax.jit(lambda q: q)(q)
    assert (same.format, same.shape) == ("nvfp4", (ROWS, K))
    np.testing.assert_array_equal(dequantize(same), dequantize(q))
    stacked = jax.vmap(lambda row: quantize(row, "nvfp4"))(x)
    values = jax.vmap(dequantize)(stacked)
    np.testing.assert_array_equal(values[0], dequantize(q))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(q)]
    assert paths == [".codes", ".scales", ".tensor_scale"]
    assert jax.tree.map(lambda leaf: leaf.dtype, q).codes == jnp.uint8


def test_shapes_and_dtypes_are_as_annotated() -> None:
    q = quantize(np.ones((ROWS, K), np.float32), "nvfp4")
    assert isinstance(q.codes, UInt8[Array, f"{ROWS} {K // 2}"])
    assert isinstance(dequantize(q), Float[Array, f"{ROWS} {K}"])
    assert q.scales.dtype == ml_dtypes.float8_e4m3fn
    assert isinstance(q.tensor_scale, Float[Array, ""])


@pytest.mark.parametrize(
    ("x", "name", "text"),
    [
        (np.ones((2, 33), np.float32), "mxfp4", "k=33 is not a multiple of the block of 32; pad K with zeros to 64"),
        (np.ones((2, 24), np.float32), "nvfp4", "k=24 is not a multiple of the block of 16"),
        (np.ones((0, 32), np.float32), "mxfp4", r"shape \(0, 32\) has an empty axis"),
        (np.ones((2, 0), np.float32), "fp8_e4m3", r"shape \(2, 0\) has an empty axis"),
        (np.ones((2, 32)), "fp8_e4m3", "dtype float64"),
        (np.ones((2, 2, 32), np.float32), "fp8_e4m3", "3 axes"),
        (np.ones((2, 32), np.float32), "mxfp5", "unknown format 'mxfp5'; did you mean"),
    ],
)
def test_bad_input_is_refused(x: np.ndarray, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        quantize(x, name)


def test_an_unknown_scale_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scale_rule 'flor'; did you mean floor"):
        quantize(np.ones((2, 32), np.float32), "mxfp4", scale_rule="flor")


def test_dequantising_to_a_narrow_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype float8_e4m3fn is not float32"):
        dequantize(quantize(np.ones((2, 32), np.float32), "mxfp4"), jnp.float8_e4m3fn)


GOOD: dict[str, Any] = {
    "codes": np.zeros((2, 16), np.uint8),
    "scales": np.ones((2, 1), ml_dtypes.float8_e8m0fnu),
    "tensor_scale": None,
    "format": "mxfp4",
    "shape": (2, 32),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"codes": np.zeros((2, 32), np.uint8)}, r"codes has shape \(2, 32\), not \(2, 16\)"),
        ({"codes": np.zeros((2, 16), np.int8)}, "codes has dtype int8, not uint8"),
        ({"scales": np.ones((2, 2), ml_dtypes.float8_e8m0fnu)}, r"scales has shape \(2, 2\), not \(2, 1\)"),
        ({"scales": np.ones((2, 1), np.float32)}, "scales has dtype float32, not float8_e8m0fnu"),
        ({"scales": None}, r"scales is None, not an array \(2, 1\)"),
        ({"tensor_scale": np.float32(1)}, "tensor_scale given, but the format has none"),
        ({"format": "fp4_e2m1", "scales": None, "tensor_scale": np.ones(2, np.float32)},
         r"tensor_scale has shape \(2,\), not \(\)"),
        ({"format": "fp4_e2m1"}, "scales given, but the format has no block scales"),
        ({"shape": (2, 40)}, "k=40 is not a multiple of the block of 32"),
        ({"shape": (2, 0)}, "empty axis"),
    ],
)  # fmt: skip
def test_a_quantized_array_of_wrong_parts_is_refused(change: dict[str, Any], text: str) -> None:
    QuantizedArray(**GOOD)
    with pytest.raises(ValueError, match=text):
        QuantizedArray(**GOOD | change)


def test_plain_arrays_count_as_the_format_of_their_dtype() -> None:
    q = as_quantized(jnp.ones((2, 3), jnp.float8_e5m2))
    assert (q.format, q.shape, q.tensor_scale) == ("fp8_e5m2", (2, 3), None)
    q = as_quantized(np.array([[-128, 127]], np.int8))
    assert (q.format, q.tensor_scale) == ("int8", None)
    np.testing.assert_array_equal(dequantize(q), [[-128.0, 127.0]])
    with pytest.raises(ValueError, match="dtype int16, which is no format's"):
        as_quantized(np.ones((2, 3), np.int16))
    with pytest.raises(ValueError, match="has 1 axes, not 2"):
        as_quantized(np.ones(3, np.float32))


@pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "nvfp4", "fp8_e4m3_1x128", "fp8_e4m3_128x128"])
def test_negative_scales_from_elsewhere_are_multiplied_with_their_sign(name: str) -> None:
    q = quantize(np.random.default_rng(0).standard_normal((130, 160)).astype(np.float32), name)
    negated = np.random.default_rng(1).integers(0, 2, () if q.scales is None else q.scales.shape).astype(bool)
    scales = None if q.scales is None else jnp.where(negated, -q.scales, q.scales)
    tensor_scale = None if q.tensor_scale is None else -q.tensor_scale
    signed = QuantizedArray(q.codes, scales, tensor_scale, name, q.shape)
    np.testing.assert_array_equal(
        np.asarray(dequantize(signed)).view(np.uint32), reference.dequantize(signed, np.float32).view(np.uint32)
    )
    assert (np.asarray(dequantize(signed)) != np.asarray(dequantize(q))).any()


def test_both_codes_of_nan_are_nan_in_a_scale_of_nvfp4() -> None:
    q = quantize(np.ones((1, 32), np.float32), "nvfp4")
    scales = jnp.asarray(np.uint8([[0x7F, 0xFF]]).view(ml_dtypes.float8_e4m3fn))
    assert np.isnan(np.asarray(dequantize(QuantizedArray(q.codes, scales, q.tensor_scale, "nvfp4", q.shape)))).all()


@pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp8_e4m3", "fp8_e4m3_1x128", "bf16"])
def test_a_stack_is_not_dequantised_as_if_it_were_one(name: str) -> None:
    stack = jax.vmap(lambda x: quantize(x, name))(jnp.ones((1, 128, 128)))
    with pytest.raises(ValueError, match=r"q does not hold what it says: .*\(1, 128, 128\), not \(128, 128\); a stack"):
        dequantize(stack)
    np.testing.assert_array_equal(np.asarray(jax.vmap(dequantize)(stack)), 1.0)
