"""Parts of K that the blocks of a cluster compute side by side: whose steps are whose, and how many clusters run."""

from typing import Any

#: Parts of K, which are the blocks of a cluster: powers of two up to the largest cluster of every Hopper.
SPLITS = (1, 2, 4, 8)
#: Clusters that run at once, by their size. On an H200 32 of four took two waves: some group of multiprocessors has a
#: few that make no whole cluster; of eight ten seem to.
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 10}


def steps_of_part(part: Any, splits: int, k_steps: int) -> tuple[Any, Any]:
    """First K step of a part of K, and how many it has: at least one; Python, NumPy or traced integers."""
    first = part * k_steps // splits
    return first, (part + 1) * k_steps // splits - first
