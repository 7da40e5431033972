"""Orders of operands that toggle fewer bits: of K, the same for A and B, and of the rows of each.

A chain: each column (or row) is followed by the one of those left whose FP8 codes differ from its own in the fewest
bits. FP8 codes stand for those of every format, all of which have a sign and most of which have that exponent. Two
cheaper rules were tried and changed less than a hundredth: by the columns' mean magnitude, and by their part in the
largest singular vector.

Mean number of bits, of 8, that change from one FP8 code of 4096×4096 operands to the next (`models.toggles`):

                        along K in A, in B    along rows in A, in B
  normal                3.388   3.388         3.388   3.388
  normal, k             3.388   3.320         3.388   3.388
  normal, rows          3.388   3.388         3.320   3.320
  normal, sorted        0.078   0.078         1.048   1.049
  text                  3.532   3.532         3.404   3.376
  text, k               3.320   3.238         3.404   3.376
  text, rows            3.532   3.532         2.559   2.677

Columns of independent draws are all as far from each other as chance has it: there is little to order.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from narrowbench.models.toggles import Order
from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import quantize

#: More columns or rows are not chained: their distances to each other would take more than 4 GiB.
_MOST_CHAINED = 2**15
_CODE_BITS = 8


def in_order(a: jax.Array, b: jax.Array, order: Order, lanes: int) -> tuple[jax.Array, jax.Array]:
    """A (m, k) and B (n, k), f32, with the same values in another order; `lanes` elements of K go into one multiply.

    k:      C stays the same, up to rounding. The order is made of B alone.
    rows:   rows and columns of C are permuted.
    sorted: every row by value, each lane through a stretch of the values; C is another.
    Raises UnsupportedError for more columns or rows than can be held against each other.
    """
    if order == "sorted":
        columns = _in_lanes(jnp.arange(a.shape[1]), lanes)
        return jnp.sort(a, axis=1)[:, columns], jnp.sort(b, axis=1)[:, columns]
    if order == "rows":
        return a[_chain(a)], b[_chain(b)]
    columns = _in_lanes(_chain(b.T), lanes)
    return a[:, columns], b[:, columns]


def _in_lanes(chain: jax.Array, lanes: int) -> jax.Array:
    """Columns so placed that each lane goes through a stretch of the chain."""
    places = np.concatenate([np.arange(lane, len(chain), lanes) for lane in range(lanes)])
    return jnp.zeros_like(chain).at[places].set(chain)


def _chain(vectors: jax.Array) -> jax.Array:
    """Numbers of the vectors (count, length), each followed by that one of those left which agrees in the most bits."""
    count = len(vectors)
    if count > _MOST_CHAINED:
        raise UnsupportedError(
            "order", {"count": count}, f"is more than {_MOST_CHAINED} to order", "use a smaller shape"
        )
    agreement = _agreement(vectors)

    def follow(place: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        chain, is_left, last = carry
        is_left = is_left.at[last].set(False)
        following = jnp.argmax(jnp.where(is_left, agreement[last], -jnp.inf)).astype(jnp.int32)
        return chain.at[place].set(following), is_left, following

    start = jnp.zeros(count, jnp.int32), jnp.ones(count, bool), jnp.int32(0)
    chain: jax.Array = lax.fori_loop(1, count, follow, start)[0]
    return chain


def _agreement(vectors: jax.Array) -> jax.Array:
    """Bits that agree less those that differ, of every vector's FP8 codes with every other's, (count, count).

    Products of ±1, bit by bit: whole numbers below 2^24, the same in f32 on every device, in whatever order of adding.
    """
    codes = lax.bitcast_convert_type(quantize(vectors, "fp8_e4m3").codes, jnp.uint8)

    def of_bit(total: jax.Array, bit: jax.Array) -> tuple[jax.Array, None]:
        signs = jnp.where((codes >> bit) & 1 == 1, jnp.float32(1), jnp.float32(-1))
        return total + signs @ signs.T, None

    start = jnp.zeros((len(vectors), len(vectors)), jnp.float32)
    agreement: jax.Array = lax.scan(of_bit, start, jnp.arange(_CODE_BITS, dtype=jnp.uint8))[0]
    return agreement
