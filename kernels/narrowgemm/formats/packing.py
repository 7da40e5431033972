"""Codes narrower than a byte, packed into bytes along K; each row on its own, padded with zero bits.

A row is one string of bits: code i takes bits i·w … i·w+w−1, and bit j is bit j mod 8 of byte j div 8. So FP4 goes two
to a byte, low nibble first, and FP6 four to three bytes.
"""

import jax
import jax.numpy as jnp

#: Bits of a code -> (codes, bytes) of the smallest group that ends on a whole byte.
_GROUPS = {4: (2, 1), 6: (4, 3)}


def pack(codes: jax.Array, bits: int) -> jax.Array:
    """Packs codes of `bits` bits (4 or 6), uint8 (rows, k), into uint8 (rows, ceil(k·bits/8)).

    Bits above `bits` of a code must be zero. Raises ValueError for another width.
    """
    group_codes, group_bytes = _group(bits)
    rows, k = codes.shape
    padded = jnp.pad(codes, ((0, 0), (0, -k % group_codes))).reshape(rows, -1, group_codes).astype(jnp.uint32)
    word = sum(padded[..., i] << (bits * i) for i in range(group_codes))
    packed = jnp.stack([(word >> (8 * i)) & 0xFF for i in range(group_bytes)], axis=-1)
    return packed.reshape(rows, -1)[:, : -(-k * bits // 8)].astype(jnp.uint8)


def unpack(packed: jax.Array, bits: int, k: int) -> jax.Array:
    """The `k` codes of each row of `packed`, uint8 (rows, k). Raises ValueError for a width or length that is wrong."""
    group_codes, group_bytes = _group(bits)
    rows, row_bytes = packed.shape
    if row_bytes != -(-k * bits // 8):
        raise ValueError(f"unpack: rows of {row_bytes} bytes, but k={k} codes of {bits} bits take {-(-k * bits // 8)}")
    padded = jnp.pad(packed, ((0, 0), (0, -row_bytes % group_bytes))).reshape(rows, -1, group_bytes).astype(jnp.uint32)
    word = sum(padded[..., i] << (8 * i) for i in range(group_bytes))
    codes = jnp.stack([(word >> (bits * i)) & ((1 << bits) - 1) for i in range(group_codes)], axis=-1)
    return codes.reshape(rows, -1)[:, :k].astype(jnp.uint8)


def _group(bits: int) -> tuple[int, int]:
    if bits not in _GROUPS:
        raise ValueError(f"packing: codes of {bits} bits; only {' and '.join(map(str, _GROUPS))} are packed")
    return _GROUPS[bits]
