"""The device's half of `triton_persistent`. It needs Triton: nothing but that module imports it.

Each program of the grid takes every so-manieth tile of C. The memory's side is the copy engine's alone: tiles of A, B
and C go by tensor descriptors, which also cut off what lies outside the matrices, and what is read there is zero. With
`FLATTEN` the loops over tiles and over K become one, so that the next tile's operands are fetched while this one is
stored. FP8 products are summed in the tensor core's own registers (fast accumulation), Triton's default on Hopper.
"""

import triton
import triton.language as tl


@triton.jit
def tile_place(tile, tiles_m, tiles_n, BAND: tl.constexpr):
    """Row and column of a tile of C. Tiles go down `BAND` rows before the next column, so that A's rows stay in the L2.

    The last band has what rows are left.
    """
    of_band = BAND * tiles_n
    first_row = tile // of_band * BAND
    rows = tl.minimum(tiles_m - first_row, BAND)
    within = tile % of_band
    return first_row + within % rows, within // rows


@triton.jit
def triton_persistent_fp8_e4m3(
    a_tiles,
    b_tiles,
    c_tiles,
    a_scale,
    b_scale,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
    HALVES: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    """C (m, n) in BF16 of A (m, k) and B (n, k), times the FP32 scales that `a_scale` and `b_scale` point at.

    With `HALVES` a tile of C is stored in two halves, side by side, which takes half the shared memory.
    """
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    scale = tl.load(a_scale) * tl.load(b_scale)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        row, column = tile_place(tile, tiles_m, tiles_n, BAND)
        top, left = row * BLOCK_M, column * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(k, BLOCK_K)):
            a = a_tiles.load([top, step * BLOCK_K])
            b = b_tiles.load([left, step * BLOCK_K])
            sums = tl.dot(a, b.T, sums)
        sums = sums * scale
        if HALVES:
            pair = tl.permute(tl.reshape(sums, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            near, far = tl.split(pair)
            c_tiles.store([top, left], tl.cast(near, tl.bfloat16))
            c_tiles.store([top, left + BLOCK_N // 2], tl.cast(far, tl.bfloat16))
        else:
            c_tiles.store([top, left], tl.cast(sums, tl.bfloat16))
