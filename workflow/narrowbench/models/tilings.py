"""What each family of kernels makes of its config: the schedule of tiles and the shape of the multiply. No JAX.

The kernels' own modules need JAX, so their configs come here as the mappings that result rows carry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narrowbench.models.traffic import Schedule
from narrowgemm.formats.spec import format_named
from narrowgemm.problem import GemmProblem

#: Bytes of K in a stage, in every kernel here: the widest swizzle atom.
_STAGE_K_BYTES = 128
#: Rows of one wgmma, and of one block's part of a tcgen05 multiply.
_WGMMA_M, _TCGEN05_M = 64, 128
#: Hopper kernels that widen weights in registers: other tiles, and a time of widening that no term here has.
_PACKED_WEIGHTS = "hopper_wgmma_w"
#: Consumer warpgroups of the Hopper kernels whose config does not say how many.
_CONSUMERS = 2
#: Elements of K in a stage of the Hopper kernels with packed weights.
_WEIGHTS_TILE_K = 128
#: Bits of weights and of activations, as they end a stem.
_PACKED = re.compile(r"w\d+a\d+")


@dataclass(frozen=True)
class Tiling:
    """A schedule and what the tile's inner loop and its end look like.

    mma_m, mma_n:   rows of A and of B that one multiply reads from shared memory, of all cores of a unit that share it.
    overlaps_store: whether the result of a tile is stored while the next one is computed.
    """

    schedule: Schedule
    mma_m: int
    mma_n: int
    overlaps_store: bool


def tiling_of(kernel: str, config: Mapping[str, Any], problem: GemmProblem, cores: int) -> Tiling:
    """The tiling of a kernel with a config, on a device of `cores`.

    Raises ValueError for a kernel whose schedule is not known, as a vendor's, and for a config that lacks a field.
    """
    if not has_known_schedule(kernel):
        known = ", ".join(f"{family}_*" for family in _MAKERS)
        raise ValueError(f"{kernel}: its schedule is not known; known are those of {known}")
    try:
        return _MAKERS[_family(kernel)](config, problem, cores)
    except KeyError as missing:
        raise ValueError(f"{kernel}: its config has no {missing}, which the time model needs") from None


def has_known_schedule(kernel: str) -> bool:
    """Whether `tiling_of` knows the kernel's family: our own, and no vendor's, and none that widens packed weights."""
    return _family(kernel) in _MAKERS and not kernel.startswith(_PACKED_WEIGHTS)


def assumed_tiling(problem: GemmProblem, cores: int) -> Tiling:
    """What a vendor's kernel is taken to do: tiles of 128×256 in bands of 8. An assumption, not a finding."""
    schedule = Schedule(tile_m=128, tile_n=256, tile_k=_stage_k(problem), units=cores)
    return Tiling(schedule, mma_m=_WGMMA_M, mma_n=256, overlaps_store=True)


def _family(kernel: str) -> str:
    """Architecture and engine of a kernel's stem, and whether its weights are packed or its rows few."""
    before, _, last = kernel.rpartition("_")
    if _PACKED.fullmatch(last):
        return f"{before}_w"
    engine = "_".join(kernel.split("_")[:2])
    return f"{engine}_decode" if last == "decode" else engine


def _hopper(config: Mapping[str, Any], problem: GemmProblem, cores: int) -> Tiling:
    """A cluster loads the operands of all its blocks once. The consumers share a tile, or take tiles in turn."""
    cluster_m, cluster_n = config["cluster_m"], config["cluster_n"]
    columns = config["tile_n"] // (config.get("consumers", _CONSUMERS) if config["split"] == "n" else 1)
    schedule = Schedule(
        tile_m=config["tile_m"] * cluster_m,
        tile_n=config["tile_n"] * cluster_n,
        tile_k=_stage_k(problem),
        units=cores // (cluster_m * cluster_n),
        cores_per_unit=cluster_m * cluster_n,
        raster=config["raster"],
        raster_width=config["raster_width"],
    )
    return Tiling(schedule, mma_m=_WGMMA_M, mma_n=columns, overlaps_store=config["split"] is None)


def _hopper_weights(config: Mapping[str, Any], _: GemmProblem, cores: int) -> Tiling:
    """The weights go through registers, 64 rows a consumer: they are read once, A once for each 64."""
    schedule = Schedule(
        tile_m=config["tile_m"],
        tile_n=_CONSUMERS * _WGMMA_M,
        tile_k=_WEIGHTS_TILE_K,
        units=cores,
        split_k=config["splits"],
    )
    return Tiling(schedule, mma_m=config["tile_m"], mma_n=_WGMMA_M, overlaps_store=False)


def _hopper_decode(config: Mapping[str, Any], _: GemmProblem, cores: int) -> Tiling:
    """All of M in one tile, 64 rows of B a multiply; a cluster's blocks take parts of K and add them on chip."""
    schedule = Schedule(
        tile_m=config["tile_m"],
        tile_n=config["tile_n"],
        tile_k=config["tile_k"],
        units=cores,
        split_k=config["splits"],
        sums_on_chip=True,
    )
    return Tiling(schedule, mma_m=config["tile_m"], mma_n=_WGMMA_M, overlaps_store=config["splits"] == 1)


def _blackwell(config: Mapping[str, Any], problem: GemmProblem, cores: int) -> Tiling:
    """A pair of blocks makes a tile of twice the rows, of which each holds half of both operands."""
    ctas = config["ctas"]
    schedule = Schedule(
        tile_m=_TCGEN05_M * ctas,
        tile_n=config["tile_n"],
        tile_k=_stage_k(problem),
        units=cores // ctas,
        cores_per_unit=ctas,
        raster=config["raster"],
        raster_width=config["raster_width"],
    )
    return Tiling(schedule, mma_m=_TCGEN05_M * ctas, mma_n=config["tile_n"], overlaps_store=config["accumulators"] > 1)


def _stage_k(problem: GemmProblem) -> int:
    """Elements of K in a stage, of the operand with the wider elements."""
    bits = max(format_named(name).element.bits for name in (problem.a_format, problem.b_format))
    return 8 * _STAGE_K_BYTES // bits


#: Family of kernels -> what makes their tiling of a config.
_MAKERS = {
    "hopper_wgmma": _hopper,
    "hopper_wgmma_w": _hopper_weights,
    "hopper_wgmma_decode": _hopper_decode,
    "blackwell_tcgen05": _blackwell,
}
