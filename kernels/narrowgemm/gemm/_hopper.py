"""What Hopper's kernels share: the roles of a thread block, what TMA addresses, and how operands reach a kernel."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem

#: Warpgroups of a block that multiply; one more loads.
CONSUMERS = 2
#: Registers a thread of so many consumers, and of the producer: no more in all than a block is launched with, 65,536
#: over its threads rounded down to 8 (168, 128, 96), for `setmaxnreg` waits for ever for more. Of two and three
#: consumers they are all of them.
REGISTERS = {2: (232, 40), 3: (160, 32), 4: (104, 40)}
CONSUMER_REGISTERS, PRODUCER_REGISTERS = REGISTERS[CONSUMERS]
#: TMA addresses rows: their length in bytes is a multiple of this (CUDA driver API, cuTensorMapEncodeTiled).
TMA_ROW_BYTES = 16


def check_row(kernel: str, name: str, extent: int, fmt: str) -> None:
    """Raise UnsupportedError where rows of `extent` elements are no whole 16 bytes."""
    step = TMA_ROW_BYTES * 8 // format_named(fmt).element.bits
    if extent % step:
        raise UnsupportedError(
            kernel,
            {name: extent},
            f"is not a multiple of {step}: TMA takes rows of whole 16 bytes, here of {fmt}",
            f"pad {name} to {math.ceil(extent / step) * step}",
        )


def is_admitted[Config](
    check: Callable[[str, GemmProblem, Config], None], kernel: str, problem: GemmProblem, config: Config
) -> bool:
    """Whether `check` lets the config do the problem."""
    try:
        check(kernel, problem, config)
    except UnsupportedError:
        return False
    return True


def scale_operand(tensor_scale: jax.Array | None) -> jax.Array:
    """A tensor scale as a kernel reads it; the kernel multiplies the two, for a launch of its own costs more."""
    return jnp.ones(1, jnp.float32) if tensor_scale is None else tensor_scale.reshape(1)
