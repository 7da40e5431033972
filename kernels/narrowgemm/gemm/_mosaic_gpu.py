"""The one place that touches what JAX does not promise to keep of its Mosaic GPU back end."""

from typing import Any

import jax
import jax.numpy as jnp
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax.experimental.pallas import mosaic_gpu as plgpu

#: Shared memory one thread block can have on compute capability 9.0 and 10.x.
#: Source: CUDA C++ Programming Guide, technical specifications per compute capability (227 KB).
SHARED_MEMORY_BYTES = 227 * 1024

#: Widths of the swizzle patterns that TMA and the tensor cores share (PTX ISA, swizzling modes).
SWIZZLE_BYTES = (32, 64, 128)

#: Names of the axes of a persistent kernel: clusters, blocks of one, and warpgroups of a block.
TILE_AXIS, CTA_AXIS, WARPGROUP_AXIS = "tile", "cta", "warpgroup"

#: Thread blocks that the interpreter runs side by side: more cost time and find no more races.
_INTERPRETED_CORES = 2


def interpret_params(interpret: bool) -> Any:
    """What a kernel's `interpret` argument becomes: GPU interpret mode with race detection, or none."""
    return plgpu.InterpretGPUParams(detect_races=True, inline_mgpu="ignore") if interpret else False


def races_found() -> bool:
    """Whether the kernel interpreted last had a data race. Raises RuntimeError if none was interpreted."""
    races = gpu_callbacks.get_races()
    return bool(races.races_found)


def core_count(interpret: bool) -> int:
    """Streaming multiprocessors of the device that is compiled for, absent or not."""
    if interpret:
        return _INTERPRETED_CORES
    return int(jax.extend.backend.get_default_device().core_count)


def tile_loop(tiles: int, dynamic: bool) -> Any:
    """Decorator that calls body(info, carry=tiles before this one) -> carry + 1 for the tiles of this cluster.

    The decorated name becomes how many there were. `info` has `index` (of one axis) and `local_index`. Dynamic: the
    hardware hands out the tiles of a grid that has one cluster a tile. The interpreter never takes over another's.
    """
    carry = jnp.int32(0)
    if not dynamic:
        return plgpu.nd_loop((tiles,), collective_axes=TILE_AXIS, init_carry=carry)
    return plgpu.dynamic_scheduling_loop(
        (TILE_AXIS,), thread_axis=WARPGROUP_AXIS, cluster_axes=(CTA_AXIS,), init_carry=carry
    )


def tile_buffer(count: int, rows: int, element: Any, interpret: bool, *, columns: int) -> Any:
    """Scratch for `count` tiles rows×columns in shared memory, K contiguous, to be taken apart by `views`.

    A tensor core reads 8-row blocks one swizzle atom wide. Pallas would cut global memory into the same blocks, and so
    refuse extents that are no multiple of them. Where a row is exactly one atom, a plain row-major tile is the same
    bytes and lets TMA take any extent; elements narrower than a byte travel as bytes. The interpreter has no aliasing
    and no such rule.

    Raises ValueError for a row that is no swizzle atom.
    """
    bits = jnp.finfo(element).bits
    swizzle_bytes = columns * bits // 8
    if swizzle_bytes not in SWIZZLE_BYTES:
        raise ValueError(
            f"tile_buffer: a row of {columns} {jnp.dtype(element)} is {swizzle_bytes} bytes, not one of {SWIZZLE_BYTES}"
        )
    swizzle = plgpu.SwizzleTransform(swizzle_bytes)  # type: ignore[abstract]
    tiling = plgpu.TilingTransform((8, columns))  # type: ignore[abstract]
    blocks = plgpu.SMEM((count, rows, columns), element, transforms=(tiling, swizzle))
    if interpret:
        return blocks
    travelling = (columns, element) if bits >= 8 else (swizzle_bytes, jnp.uint8)
    return plgpu.RefUnion(plgpu.SMEM((count, rows, travelling[0]), travelling[1], transforms=(swizzle,)), blocks)


def views(buffer: Any, interpret: bool) -> tuple[Any, Any]:
    """What TMA copies into or out of, and what the tensor core or the registers use, of a `tile_buffer`."""
    return (buffer, buffer) if interpret else tuple(buffer)


def saturating_cast(x: Any, dtype: Any, interpret: bool) -> Any:
    """x in `dtype`, FP8 saturated and NaN kept: the GPU's conversion does so itself, the interpreter's is told to."""
    if interpret and jnp.dtype(dtype).itemsize == 1:
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)
