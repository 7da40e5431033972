"""Micro-benchmarks of a device's own roofs: bytes it reads and copies a second, FLOP it does a second in each format.

A roof is what nothing on the device can exceed, so every candidate is tried and the fastest is measured:

- `read`: sums of long rows, and a product of a few vectors with a large matrix, which is what decoding does; of arrays
  far larger than the caches, and of the smallest that the rotation of operands allows, a little of which is still in a
  cache. Whichever streams faster is the roof: no GEMM under the same rotation reads faster.
- `copy`: every word read, changed and written, in place or elsewhere; bytes both ways count.
- `cache_read`: a third of the last-level cache (a GPU's L2), read again and again. No GEMM is held against it, for how
  much of its data comes from there is its schedule's affair: it says what a byte costs that does not come from memory.
- `shared_read`: what multiprocessors read of their own shared memory. Of Hopper, as is the next.
- `active_idle`: no roof, but the power of a board whose clocks are up and that does next to nothing; sustained alone.
- `flop`: large square GEMMs by every kernel of the device, vendor's and our own, on zeros and on normal data. On a
  board that its power limits the clock depends on how many bits toggle. Zeros toggle none, so the rate on zeros is the
  arithmetic roof proper: what the units do at the highest clock that the board gives them, whatever the data. The rate
  on normal data is the roof that its power leaves, and the gap between the two is that roof's reason. A CPU's clock
  does not depend on the data enough to see: there it is normal data alone.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from narrowbench.measure import onchip_roofs
from narrowbench.measure.accuracy import WrongResultError
from narrowbench.measure.bench import Bench
from narrowbench.measure.gemm import Prepared, prepare
from narrowbench.measure.launches import workload_of
from narrowbench.measure.recording import TimedCase, failure, rows_of
from narrowbench.measure.timing import Workload, probe_call_s
from narrowbench.names import DeviceClass
from narrowbench.store.rows import GemmCase, Mode, RoofCase, Row
from narrowgemm.errors import UnsupportedError
from narrowgemm.gemm.registry import kernel_named, kernel_names
from narrowgemm.problem import GemmProblem

#: Formats whose arithmetic has a roof of its own on a class of devices.
_GPU_FORMATS = ("f32", "bf16", "fp8_e4m3")
FORMATS: dict[DeviceClass, tuple[str, ...]] = {
    "cpu": ("f32", "bf16"),
    "gpu": _GPU_FORMATS,
    "hopper": _GPU_FORMATS,
    "blackwell": (*_GPU_FORMATS, "mxfp8_e4m3", "mxfp4", "nvfp4"),
    "tpu": ("bf16", "fp8_e4m3", "int8"),
}

#: Large enough that nothing but arithmetic counts.
_CPU_SHAPES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
_SHAPES = ((8192, 8192, 8192),)

#: Fewest bytes of one array that is read or copied: far above launch overhead, and above three last-level caches.
_CPU_ARRAY_BYTES, _ARRAY_BYTES = 2**27, 2**30
_ROW_WORDS = 4096
#: Of the last-level cache, what is read again and again: a GPU whose cache has two halves may keep a copy in each.
_CACHE_SHARE = 1 / 3
_CACHE_ROW_WORDS = 1024
_SMALL_FACTORS = 2 * 3 * 5 * 7 * 11 * 13
#: A first look lasts milliseconds, on a board whose clock is still rising: the fastest may look slower by this factor.
_FIRST_LOOK: dict[Mode, float] = {"burst": 1.2, "sustained": 1.0}
_DOT_ROWS = 16


@dataclass(frozen=True)
class Roof:
    """One roof of a device in one mode, before anybody knows which candidate is the fastest."""

    quantity: str
    format: str | None
    distribution: str | None
    mode: Mode

    def __str__(self) -> str:
        return " ".join(part for part in (self.quantity, self.format, self.distribution, self.mode) if part)

    def is_of(self, case: object) -> bool:
        """Whether a row's case is of this roof, whatever the work of its launch was."""
        return isinstance(case, RoofCase) and roof_case(self, case.work) == case


@dataclass(frozen=True)
class Candidate:
    """One way to reach a roof: work of a launch, in bytes or FLOP, and how to make it ready."""

    work: int
    method: str
    prepare: Callable[[Bench], Prepared]


def roofs_of(device_class: DeviceClass, modes: Sequence[Mode], formats: Sequence[str] | None = None) -> list[Roof]:
    """Every roof of such a device; of arithmetic those of `formats`, all of them if null."""
    distributions = ("normal",) if device_class == "cpu" else ("zeros", "normal")
    flop = [
        ("flop", name, data)
        for name in FORMATS[device_class]
        for data in distributions
        if formats is None or name in formats
    ]
    on_chip = ("shared_read",) if device_class == "hopper" else ()
    moved = [(quantity, None, None) for quantity in ("read", "copy", "cache_read", *on_chip)]
    roofs = [Roof(*roof, mode) for mode in modes for roof in (*moved, *flop)]
    waits = device_class == "hopper" and "sustained" in modes
    return [*roofs, Roof("active_idle", None, None, "sustained")] if waits else roofs


def measure_roof(roof: Roof, bench: Bench) -> list[Row]:
    """The row of a roof: of its fastest candidate, or with the reasons why none could be run.

    A first look picks those that may be the fastest; they are measured in turn. Of sustained ones, whose windows take a
    minute each, it picks the fastest alone.
    """
    looked: list[tuple[float, TimedCase, Prepared]] = []
    refused = []
    for candidate in candidates(roof, bench):
        try:
            prepared = candidate.prepare(bench)
        except (UnsupportedError, WrongResultError) as error:
            refused.append(f"{candidate.method}: {error}")
            continue
        launch_s = probe_call_s(prepared.workload) / prepared.workload.launches_per_call
        looked.append((candidate.work / launch_s, roof_case(roof, candidate.work), prepared))
    if not looked:
        refusal = UnsupportedError(str(roof), {"candidates": len(refused)}, "could not be run", "; ".join(refused))
        return [failure(roof_case(roof, nominal_work(roof, bench)), bench.device, refusal)]
    likely_rate = max(rate for rate, _, _ in looked) / _FIRST_LOOK[roof.mode]
    rows = rows_of([(case, prepared) for rate, case, prepared in looked if rate >= likely_rate], bench, None)
    return [max(rows, key=_median_rate)]


def _median_rate(row: Row) -> float:
    assert isinstance(row.case, RoofCase)
    return 0.0 if row.timing is None else row.case.work / median(row.timing.samples_s)


def nominal_work(roof: Roof, bench: Bench) -> int:
    """Bytes or FLOP of a launch of the largest candidate: what a roof that could not be measured is filed under."""
    if roof.quantity == "active_idle":
        return 1
    if roof.quantity != "flop":
        return _array_bytes(bench) * (2 if roof.quantity == "copy" else 1)
    m, n, k = _shapes(bench)[-1]
    return 2 * m * n * k


def candidates(roof: Roof, bench: Bench) -> Iterator[Candidate]:
    """Every way to reach the roof on the bench's device."""
    if roof.quantity == "read":
        for size in sorted({_least_bytes(bench), _array_bytes(bench)}):
            yield _row_sums(size)
            yield _dot(size, bench)
    elif roof.quantity == "copy":
        yield _copy(bench)
        yield _copy_in_place(bench)
    elif roof.quantity == "cache_read":
        yield from _cache_reads(bench)
    elif roof.quantity == "shared_read":
        yield _shared_reads()
    elif roof.quantity == "active_idle":
        yield Candidate(1, "one warpgroup waits", _wait)
    else:
        yield from _gemms(roof, bench)


def roof_case(roof: Roof, work: int) -> RoofCase:
    """The roof as a row names it, once the work of a launch is known."""
    return RoofCase.model_validate(vars(roof) | {"work": work})


def _gemms(roof: Roof, bench: Bench) -> Iterator[Candidate]:
    device_class = bench.device.device_class
    for name in kernel_names():
        if not name.startswith(("xla_", f"{device_class}_")):
            continue
        kernel = kernel_named(name)
        if roof.format not in kernel.a_formats or roof.format not in kernel.b_formats:
            continue
        for m, n, k in _shapes(bench):
            case = GemmCase(
                kernel=name,
                suite="roofs",
                m=m,
                n=n,
                k=k,
                a_format=roof.format,
                b_format=roof.format,
                out_format="f32" if device_class == "cpu" else "bf16",
                distribution=roof.distribution or "normal",
                seed=0,
                mode=roof.mode,
                cache="rotated",
            )
            yield Candidate(case.problem.flop, f"{name} {m}×{n}×{k}", _native_gemm(case))


def _native_gemm(case: GemmCase) -> Callable[[Bench], Prepared]:
    def make(bench: Bench) -> Prepared:
        prepared = prepare(case, bench)
        if prepared.compiled is not None and prepared.compiled.upcast:
            problem: GemmProblem = case.problem
            raise UnsupportedError(
                case.kernel, {"a_format": problem.a_format}, "is widened before it is multiplied", "it has no roof here"
            )
        method = {"kernel": case.kernel, "m": case.m, "n": case.n, "k": case.k, "out_format": case.out_format}
        return replace(prepared, config=method | (prepared.config or {}))

    return make


def _row_sums(size: int) -> Candidate:
    rows = -(-size // (4 * _ROW_WORDS))
    work, result_bytes = 4 * rows * (_ROW_WORDS + 1), 4 * rows
    return _streaming("row sums", lambda x: jnp.sum(x, axis=1), [(rows, jnp.float32)], work, result_bytes)


def _dot(size: int, bench: Bench) -> Candidate:
    """A few rows of A with a large B, K contiguous in both: bytes of A, B and C."""
    dtype = jnp.float32 if bench.device.platform == "cpu" else jnp.bfloat16
    width = jnp.dtype(dtype).itemsize
    n = -(-size // (width * _ROW_WORDS))

    def launch(a: jax.Array, b: jax.Array) -> jax.Array:
        product = lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return lax.convert_element_type(product, dtype)

    work = width * (_DOT_ROWS * _ROW_WORDS + n * _ROW_WORDS + _DOT_ROWS * n)
    return _streaming(f"dot of {_DOT_ROWS} rows", launch, [(_DOT_ROWS, dtype), (n, dtype)], work, width * _DOT_ROWS * n)


def _copy(bench: Bench) -> Candidate:
    """Not a plain copy, which XLA would hand to a copy engine that shares nothing with kernels."""
    rows = -(-_array_bytes(bench) // (4 * _ROW_WORDS))
    size = 4 * rows * _ROW_WORDS
    return _streaming("every word inverted", lambda x: ~x, [(rows, jnp.uint32)], 2 * size, size)


def _copy_in_place(bench: Bench) -> Candidate:
    """Into the memory it came from: on a CPU the pages of a fresh result cost more than the copying."""
    rows = -(-_array_bytes(bench) // (4 * _ROW_WORDS))
    size = 4 * rows * _ROW_WORDS

    def make(bench: Bench) -> Prepared:
        invert = jax.jit(lambda x: ~x, donate_argnums=0)
        arrays = [_filled(rows, jnp.uint32, seed) for seed in range(2)]

        def enqueue(call: int) -> Any:
            arrays[call % 2] = invert(arrays[call % 2])
            return arrays[call % 2]

        # No more calls in flight than arrays: an array that was given away again can no longer be waited for.
        in_flight = 1 if bench.device.platform == "cpu" else 2
        workload = Workload(enqueue, jax.block_until_ready, 1, in_flight, rotation_sets=2, rotation_bytes=2 * size)
        return Prepared(workload, None, None, {"method": "every word inverted in place"}, None)

    return Candidate(2 * size, "every word inverted in place", make)


def _cache_reads(bench: Bench) -> Iterator[Candidate]:
    """Of an array that stays in the cache. A CPU takes so long for one pass that what memory is read with will do."""
    if bench.device.cache_bytes is None:
        yield Candidate(nominal_work(Roof("cache_read", None, None, "burst"), bench), "row sums", _of_unknown_cache)
        return
    size = max(4 * _ROW_WORDS, int(bench.device.cache_bytes * _CACHE_SHARE))
    if bench.device.platform == "cpu":
        yield _row_sums(size)
        yield _dot(size, bench)
    else:
        yield _many_row_sums(size, _array_bytes(bench))


def _of_unknown_cache(_: Bench) -> Prepared:
    raise UnsupportedError(
        "cache_read", {"cache_bytes": None}, "needs the last-level cache's size", "read memory alone"
    )


def _many_row_sums(size: int, least_work: int) -> Candidate:
    """Sums of the rows of an array of at most `size` bytes, many passes a launch, for one takes microseconds.

    Each pass inverts other bits, lest XLA take all passes for one. The number of rows has no small factor, so that
    cores that take rows in turn get others in the next pass, and none finds a row in its own, smaller cache.
    """
    row_bytes = 4 * _CACHE_ROW_WORDS
    rows = _without_small_factors(size // row_bytes)
    passes = -(-least_work // (rows * row_bytes))

    def launch(x: jax.Array) -> jax.Array:
        return jnp.sum(x[None] ^ lax.broadcasted_iota(jnp.uint32, (passes, 1, 1), 0), axis=-1)

    def make(bench: Bench) -> Prepared:
        words = _filled(rows, jnp.uint32, 0, _CACHE_ROW_WORDS)
        workload = workload_of(launch, [(words,)], words.nbytes, 4 * passes * rows, bench.device.platform)
        return Prepared(workload, None, None, {"method": "row sums", "passes": passes, "bytes": words.nbytes}, None)

    return Candidate(passes * rows * row_bytes, "row sums", make)


def _shared_reads() -> Candidate:
    cores = int(jax.devices()[0].core_count)

    def make(bench: Bench) -> Prepared:
        words = _filled(onchip_roofs.SLOTS, jnp.uint32, 0, onchip_roofs.SLOT_WORDS)
        launch = onchip_roofs.read_shared(cores)
        workload = workload_of(launch, [(words,)], words.nbytes, cores * words.nbytes, bench.device.platform)
        return Prepared(workload, None, None, {"method": "every warpgroup its own words", "cores": cores}, None)

    return Candidate(onchip_roofs.shared_bytes(cores), "every warpgroup its own words", make)


def _wait(bench: Bench) -> Prepared:
    words = _filled(1, jnp.uint32, 0, onchip_roofs.THREADS)[0]
    workload = workload_of(onchip_roofs.wait, [(words,)], words.nbytes, words.nbytes, bench.device.platform)
    return Prepared(workload, None, None, {"method": "one warpgroup waits"}, None)


def _without_small_factors(most: int) -> int:
    """The largest number up to `most`, and at least 1, that no prime up to 13 divides."""
    return next((number for number in range(most, 1, -1) if math.gcd(number, _SMALL_FACTORS) == 1), 1)


def _streaming(
    method: str,
    launch: Callable[..., Any],
    operands: Sequence[tuple[int, Any]],
    work: int,
    result_bytes: int,
) -> Candidate:
    """A launch over operands of so many rows and a dtype, which are larger than the caches."""

    def make(bench: Bench) -> Prepared:
        operand_set = tuple(_filled(rows, dtype, 0) for rows, dtype in operands)
        set_bytes = sum(array.nbytes for array in operand_set)
        workload = workload_of(launch, [operand_set], set_bytes, result_bytes, bench.device.platform)
        return Prepared(workload, None, None, {"method": method}, None)

    return Candidate(work, method, make)


@partial(jax.jit, static_argnums=(0, 1, 3))
def _filled(rows: int, dtype: Any, seed: int, columns: int = _ROW_WORDS) -> jax.Array:
    """Words without a pattern that a memory could compress, cheaply: `jax.random` takes longer than the measurement."""
    number = lax.broadcasted_iota(jnp.uint32, (rows, columns), 0) * jnp.uint32(columns)
    number += lax.broadcasted_iota(jnp.uint32, (rows, columns), 1) + jnp.uint32(seed)
    # The finaliser of MurmurHash3: every bit of the number changes about half of the bits.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        number = (number ^ (number >> shift)) * jnp.uint32(factor)
    words: jax.Array = number if dtype == jnp.uint32 else ((number >> 8).astype(jnp.float32) * 2.0**-24).astype(dtype)
    return words


def _shapes(bench: Bench) -> tuple[tuple[int, int, int], ...]:
    return _CPU_SHAPES if bench.device.platform == "cpu" else _SHAPES


def _array_bytes(bench: Bench) -> int:
    """Bytes of an array that caches make no difference to."""
    return max(_CPU_ARRAY_BYTES if bench.device.platform == "cpu" else _ARRAY_BYTES, _least_bytes(bench))


def _least_bytes(bench: Bench) -> int:
    """Bytes that operands of a rotated case go through at least; of an unknown cache, those of a large array."""
    if bench.device.cache_bytes is None:
        return _CPU_ARRAY_BYTES if bench.device.platform == "cpu" else _ARRAY_BYTES
    return int(bench.protocol.rotation_l2_multiple * bench.device.cache_bytes)
