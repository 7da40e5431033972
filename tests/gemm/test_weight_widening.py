import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import narrowgemm
from narrowgemm.formats import reference
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.formats.shuffle import SHUFFLED_FORMATS, placement_of, shuffle_weights
from narrowgemm.formats.spec import E8M0, format_named
from narrowgemm.gemm import oracle
from narrowgemm.gemm._hopper_weights_space import TILE_N, box_columns, piece, steps_of_part
from narrowgemm.gemm._weight_widening import Fragments, fragments_bf16, fragments_fp8, scale_f32, widen
from narrowgemm.gemm._words import FloatOperations, WordOperations
from narrowgemm.tiling import ceil_div


def _scale_f32(word: Any, factor: float) -> Any:
    return (np.asarray(word).view(np.float32) * np.float32(factor)).view(np.uint32)


def _multiply_bf16(left: Any, right: Any) -> Any:
    """FP32 holds the product of two BF16; an FP32 of 8 significant bits is a BF16."""
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [(x << s & 0xFFFF0000).astype(np.uint32).view(np.float32) for s in (16, 0) for x in (left, right)]
        low, high = ((x * y).astype(ml_dtypes.bfloat16).view(np.uint16) for x, y in (parts[:2], parts[2:]))
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


WORDS = WordOperations(
    operator.and_,
    operator.or_,
    lambda word, count: np.left_shift(word, np.uint32(count)),
    lambda word, count: np.right_shift(word, np.uint32(count)),
    np.uint32,
    lambda word, value: np.where(word == np.uint32(value), np.uint32(0xFFFFFFFF), np.uint32(0)),
)
FLOATS = FloatOperations(_scale_f32, _multiply_bf16)
THREAD = np.arange(128)
#: PTX ISA, wgmma's fragments: a thread's first row, and its place among the four that share a row.
ROW, QUAD = 16 * (THREAD // 32) + THREAD % 32 // 4, THREAD % 4


def weights(fmt: str, n: int, k: int) -> QuantizedArray:
    """Random codes with every scale that is not NaN."""
    random, spec = np.random.default_rng(0), format_named(fmt)
    codes = random.integers(0, 256, (n, spec.code_bytes(1, k)), dtype=np.uint8)
    signed = np.arange(0x7F) if spec.tensor_scale else np.arange(0xFF)
    scales = random.permutation(np.resize(signed, n * k // spec.block)).astype(np.uint8)
    return QuantizedArray(codes, scales.reshape(n, -1).view(spec.scale_dtype), None, fmt, (n, k))


def loaded(tile: np.ndarray, fmt: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Words of all threads, read as the kernel reads them."""
    flat, spec = tile.reshape(-1), format_named(fmt)
    planes = spec.element.bits // 2
    codes = [flat[512 * plane + 4 * THREAD + j] for plane in range(planes) for j in range(4)]
    scale_words = 64 // spec.block
    return codes, [flat[512 * planes + scale_words * (THREAD // 4) + j] for j in range(scale_words)]


def values_of(fragments: Fragments, lane_bits: int, columns: int) -> np.ndarray:
    """The arrays (arrays, 64, columns) that the tensor core sees, by PTX's figures of the fragments."""
    dtype = ml_dtypes.float8_e4m3fn if lane_bits == 8 else ml_dtypes.bfloat16
    lanes = 32 // lane_bits
    out = np.full((len(fragments.arrays), 64, columns), np.nan)
    for number, registers in enumerate(fragments.arrays):
        for index, register in enumerate(registers):
            fragment, half_k, half_row = index // 4, index // 2 % 2, index % 2
            words = np.broadcast_to(register, THREAD.shape).astype("<u4")
            values = words.view(dtype).reshape(128, lanes).astype(np.float64)
            for lane in range(lanes):
                k = fragment * 8 * lanes + half_k * 4 * lanes + lanes * QUAD + lane
                out[number, ROW + 8 * half_row, k] = values[:, lane]
    assert not np.isnan(out).any()
    return out


@pytest.mark.parametrize("fmt", SHUFFLED_FORMATS)
def test_fp8_fragments_times_their_scales_are_the_weights(fmt: str) -> None:
    q = weights(fmt, 64, 256)
    spec, placement = q.spec, placement_of(q.spec, 8)
    tiles = np.asarray(shuffle_weights(q, 8).tiles)
    exact = reference.dequantize(q)
    for tile in range(2):
        fragments = fragments_fp8(*loaded(tiles[0, tile], fmt), (WORDS, FLOATS), spec, placement)
        arrays = values_of(fragments, 8, 32)
        total = np.zeros((64, 128))
        for block, (array, rows) in enumerate(zip(arrays, fragments.row_scales, strict=True)):
            scales = np.empty(64)
            for half, words in enumerate(rows):
                scales[ROW + 8 * half] = words.view(np.float32)
            first = 32 * (block * spec.block // 32)
            total[:, first : first + 32] += array * scales[:, None] * 2.0**placement.exponent
        np.testing.assert_array_equal(total, exact[:, 128 * tile : 128 * tile + 128])


@pytest.mark.parametrize("fmt", SHUFFLED_FORMATS)
def test_bf16_fragments_are_the_weights_wherever_fp32_holds_them(fmt: str) -> None:
    q = weights(fmt, 64, 1024)
    tiles = np.asarray(shuffle_weights(q, 16).tiles)
    with np.errstate(over="ignore"):
        exact = reference.dequantize(q).astype(np.float32)
    for tile in range(8):
        fragments = fragments_bf16(*loaded(tiles[0, tile], fmt), (WORDS, FLOATS), q.spec, placement_of(q.spec, 16))
        got = np.concatenate(values_of(fragments, 16, 64), axis=1)
        np.testing.assert_array_equal(got, exact[:, 128 * tile : 128 * tile + 128])


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4"])
def test_every_scale_becomes_its_fp32(fmt: str) -> None:
    spec = format_named(fmt)
    codes = np.arange(256, dtype=np.uint32)
    got = np.asarray(scale_f32(codes, spec, WORDS, FLOATS)).view(np.float32)
    # ml_dtypes flushes nothing, but NumPy has no other way to 2^-127 than through float64.
    exact = codes.astype(np.uint8).view(spec.scale_dtype).astype(np.float64)
    np.testing.assert_array_equal(got.astype(np.float64), exact)
    assert spec.scale_dtype != E8M0 or got[0] == 2.0**-127


@pytest.mark.parametrize(("fmt", "activation_bits", "most"), [
    ("mxfp4", 8, 0.65), ("mxfp6_e2m3", 8, 0.65), ("mxfp6_e3m2", 8, 0.75),
    ("mxfp4", 16, 1.4), ("mxfp6_e2m3", 16, 1.7), ("mxfp6_e3m2", 16, 1.35),
])  # fmt: skip
def test_widening_takes_few_operations_a_weight(fmt: str, activation_bits: int, most: float) -> None:
    """A masked word is ORed in the same three-input operation: shifts and masks count."""
    count = 0

    def counted(*_: Any) -> int:
        nonlocal count
        count += 1
        return 0

    placement = placement_of(format_named(fmt), activation_bits)
    do = WordOperations(counted, lambda *_: 0, counted, counted, lambda _: 0, counted)
    widen([0] * placement.words, placement, do)
    assert count / 16 <= most


@pytest.mark.parametrize(("k_steps", "splits"), [(1, 1), (7, 3), (10, 6), (64, 5)])
def test_parts_of_k_take_every_step_once(k_steps: int, splits: int) -> None:
    taken = [first + i for first, steps in (steps_of_part(p, splits, k_steps) for p in range(splits))
             for i in range(steps)]  # fmt: skip
    assert taken == list(range(k_steps))


def box(array: np.ndarray, *slices: tuple[int, int]) -> np.ndarray:
    """What TMA brings of the first axes, (start, extent) each: zeros where the array has nothing."""
    padded = np.pad(array, [(0, start + extent) for start, extent in slices] + [(0, 0)] * (array.ndim - len(slices)))
    return padded[tuple(np.s_[start : start + extent] for start, extent in slices)]


@pytest.mark.parametrize("fmt", SHUFFLED_FORMATS)
@pytest.mark.parametrize(("a_format", "tile_m", "splits"), [("fp8_e4m3", 16, 2), ("bf16", 8, 3)])
def test_the_kernels_data_movement_computes_the_product(fmt: str, a_format: str, tile_m: int, splits: int) -> None:
    """A model of the kernel by its own index functions and layouts, with N, M and K ragged; sums in float64."""
    m, n, k = 19, 208, 416
    random = np.random.default_rng(1)
    a, b = (narrowgemm.quantize(random.normal(size=(rows, k)).astype(np.float32), name)
            if name != "bf16" else QuantizedArray(random.normal(size=(rows, k)).astype(ml_dtypes.bfloat16),
                                                  None, None, "bf16", (rows, k))
            for rows, name in ((m, a_format), (n, fmt)))  # fmt: skip
    activation_bits = a.spec.element.bits
    tiles = np.asarray(shuffle_weights(b, activation_bits).tiles)
    placement, width = placement_of(b.spec, activation_bits), box_columns(a_format)
    convert = fragments_fp8 if activation_bits == 8 else fragments_bf16
    codes = np.asarray(a.codes).astype(np.float64)
    pieces = ceil_div(m, tile_m), ceil_div(n, TILE_N), splits
    out = np.full((splits, pieces[0] * tile_m, pieces[1] * TILE_N), np.nan)
    for index in range(pieces[0] * pieces[1] * pieces[2]):
        row, column, part = piece(index, pieces)
        first, steps = steps_of_part(part, splits, tiles.shape[1])
        for consumer in range(2):
            total = np.zeros((64, tile_m))
            for k_step in range(first, first + steps):
                tile = box(tiles, (2 * column, 2))[consumer, k_step]
                found = convert(*loaded(tile, fmt), (WORDS, FLOATS), b.spec, placement)
                arrays = values_of(found, activation_bits, width)
                for number, array in enumerate(arrays):
                    x = box(codes, (row * tile_m, tile_m),
                            (128 * k_step + number * (128 // width) // len(arrays) * width, width))  # fmt: skip
                    scales = np.ones(64)
                    for half, words in enumerate(found.row_scales[number] if found.row_scales else ()):
                        scales[ROW + 8 * half] = words.view(np.float32)
                    total += scales[:, None] * (array @ x.T)
            start = (2 * column + consumer) * 64
            out[part, row * tile_m : (row + 1) * tile_m, start : start + 64] = total.T
    unit = 2.0**placement.exponent if activation_bits == 8 else 1.0
    for scale in (a.tensor_scale, b.tensor_scale):
        unit *= 1.0 if scale is None else float(scale)
    np.testing.assert_allclose(out.sum(axis=0)[:m, :n] * unit, oracle.exact(a, b), rtol=1e-9, atol=1e-9)
