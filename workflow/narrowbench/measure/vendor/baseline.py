"""What a baseline of another library is made of, and what it can refuse.

The library is handed the very operands that kernels get, in the memory that JAX gave them, and writes into an array
that JAX owns. It launches on the device's default stream, of which `narrowbench.measure.vendor.marks` knows when it is
through.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from narrowgemm.errors import UnsupportedError
from narrowgemm.formats.quantize import QuantizedArray
from narrowgemm.problem import GemmProblem


@dataclass(frozen=True)
class Way:
    """One of the ways in which a library can do a problem: an algorithm, or a config of a kernel.

    config: what a row says of it.
    launch: what `Library.bound` gave for a set of operands -> None; enqueues on the default stream.
    """

    config: dict[str, object]
    launch: Callable[[Any], object]


class Library(Protocol):
    """A library made ready for one problem."""

    def bound(self, a: QuantizedArray, b: QuantizedArray, out: jax.Array) -> Any:
        """A set of operands (m, k) and (n, k) and the array (m, n) that is written, as its ways launch on them.

        No array is copied, but for operands of one byte that go as bytes. The caller keeps `a`, `b` and `out`.
        """
        ...

    def ways(self, bound: Any) -> Sequence[Way]:
        """All ways that are worth timing on operands like these, the library's own first guess first.

        Raises UnsupportedError where it has none.
        """
        ...


@dataclass(frozen=True)
class Baseline:
    """A GEMM of another library, to be compared with.

    name:           the stem.
    operand_format: of a and of b.
    out_formats:    that it can store.
    arches:         architectures that it runs on, as `narrowgemm.gemm.device.arch_of` names them.
    check:          problem -> None; raises UnsupportedError with the rule and the remedy.
    load:           imports the library; raises UnsupportedError, naming the package, where it is not installed.
    open:           problem -> the library made ready for it, once `load` went well.
    """

    name: str
    operand_format: str
    out_formats: tuple[str, ...]
    arches: tuple[str, ...]
    check: Callable[[GemmProblem], None]
    load: Callable[[], object]
    open: Callable[[GemmProblem], Library]


def imported(baseline: str, package: str, module: str) -> Any:
    """The module of a package that is no dependency of this project.

    Raises UnsupportedError, naming the package, where it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library of the package's own is missing
        raise UnsupportedError(
            baseline,
            {"package": package},
            f"cannot be imported: {error}",
            f"install {package} into this Python (pip install {package}), or leave the baseline out of the campaign",
        ) from error


def check_multiples(baseline: str, problem: GemmProblem, least_n: int, least_k: int) -> None:
    """Raises UnsupportedError unless n and k are multiples of these: rows have to begin at whole 16 bytes."""
    for name, extent, least in (("n", problem.n, least_n), ("k", problem.k, least_k)):
        if extent % least:
            raise UnsupportedError(
                baseline,
                {name: extent},
                f"is not a multiple of {least}, so that rows do not begin at whole 16 bytes",
                f"pad {name} to {-(-extent // least) * least}",
            )


def scale_of(operand: QuantizedArray) -> jax.Array:
    """The operand's FP32 scale, a scalar."""
    return jnp.ones((), jnp.float32) if operand.tensor_scale is None else operand.tensor_scale


def as_tensor(torch: Any, array: jax.Array) -> Any:
    """The array's memory as a torch tensor, by DLPack and not copied; elements of one byte go as bytes, in a copy.

    DLPack's name for FP8 is newer than some that read it. Raises RuntimeError where memory was copied unasked.
    """
    if array.dtype.itemsize == 1:
        return torch.from_dlpack(jax.block_until_ready(lax.bitcast_convert_type(array, jnp.uint8)))
    tensor = torch.from_dlpack(jax.block_until_ready(array))
    if tensor.data_ptr() != array.unsafe_buffer_pointer():
        raise RuntimeError(f"DLPack handed out a copy of {array.dtype}{array.shape}, and not its memory")
    return tensor
