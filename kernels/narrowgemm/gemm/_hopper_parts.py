"""Parts of K that the blocks of a cluster compute side by side: whose steps are whose, and how many clusters run."""

from typing import Any

from narrowgemm.errors import UnsupportedError

#: Parts of K, which are the blocks of a cluster: powers of two up to the largest cluster of every Hopper.
SPLITS = (1, 2, 4, 8)
#: Parts of K of the tiles of the last wave alone.
TAIL_SPLITS = (1, 2)
#: Clusters that run at once, by their size. On an H200 32 of four took two waves: some group of multiprocessors has a
#: few that make no whole cluster; of eight ten seem to.
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 10}


def steps_of_part(part: Any, splits: int, k_steps: int) -> tuple[Any, Any]:
    """First K step of a part of K, and how many it has: at least one; Python, NumPy or traced integers."""
    first = part * k_steps // splits
    return first, (part + 1) * k_steps // splits - first


def tail_tiles(tiles: int, parts: int, multiprocessors: int) -> int:
    """Tiles of a last wave that clusters of `parts` blocks can divide: at most one a cluster, else none.

    All others are whole tiles of one block each; their number is then a multiple of the blocks.
    """
    clusters = multiprocessors // parts
    left = tiles % (clusters * parts)
    return left if left <= clusters else 0


def check_parts(kernel: str, steps: int, tiles: int, splits: int, tail_splits: int) -> None:
    """Raise UnsupportedError for parts of K that are not known, that have no step, or a tail that is none.

    steps: of K; tiles: of the whole grid.
    """
    for name, parts, known in (("splits", splits, SPLITS), ("tail_splits", tail_splits, TAIL_SPLITS)):
        if parts not in known or parts > steps:
            rule = f"is not one of {', '.join(map(str, known))} up to the {steps} steps of K"
            raise UnsupportedError(kernel, {name: parts}, rule, f"change {name}")
    if tail_splits == 1:
        return
    values: dict[str, object] = {"splits": splits, "tail_splits": tail_splits}
    if splits > 1:
        rule = "divide K of all tiles and of the last ones"
        raise UnsupportedError(kernel, values, rule, "leave one of them at 1")
    if not tail_tiles(tiles, tail_splits, CLUSTERS[1]):
        rule = f"finds no last wave to divide: {tiles} tiles on {CLUSTERS[1]} multiprocessors leave none, or too many"
        raise UnsupportedError(kernel, values | {"tiles": tiles}, rule, "use tail_splits=1")
