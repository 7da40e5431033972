"""The part of the schema that is of many products in one launch: a batch, or groups of rows with a B of their own."""

from functools import cache
from typing import Annotated, Literal, get_args

import numpy as np
from pydantic import BeforeValidator, PositiveInt

from narrowbench.store.strict import Strict
from narrowgemm.errors import unknown_name

#: A group's popularity is the sum of so many exponential variates, a gamma variate of this shape. Its standard
#: deviation is then half its mean, and the most popular of 32 groups has about twice its share: a router that was
#: trained to balance its experts, and does not quite.
_EXPONENTIALS = 4

Kind = Literal["batched", "equal", "ragged"]


def _known(kind: object) -> object:
    if kind not in get_args(Kind):
        raise ValueError(unknown_name("kind of groups", str(kind), get_args(Kind)))
    return kind


class Groups(Strict):
    """How many products are done in one launch, and how the M rows of a case, which are those of all, belong to them.

    batched: `count` products of M / count rows each, a stack of as many A as of B.
    equal:   consecutive groups of rows of one A, each with its own B; sizes differ by at most one row.
    ragged:  the same, each row in a group by itself: groups have popularities, drawn from the case's seed, and a row
             goes to each with that probability. Some may be empty.

    Sizes of equal and ragged groups are data on the device, which no kernel is compiled for.
    """

    count: PositiveInt
    kind: Annotated[Kind, BeforeValidator(_known)]

    def __str__(self) -> str:
        return f"{self.count} {self.kind}"

    @property
    def many(self) -> Literal["batched", "grouped"]:
        """What the kernels' registry calls such products."""
        return "batched" if self.kind == "batched" else "grouped"

    def sizes(self, m: int, seed: int) -> tuple[int, ...]:
        """Rows of each group, `m` in all: every machine draws the same."""
        if self.kind == "ragged":
            return _ragged(self.count, m, seed)
        each, more = divmod(m, self.count)
        return tuple(each + (group < more) for group in range(self.count))

    def multiplied(self, m: int, seed: int) -> int:
        """Groups that have rows, and so need their B."""
        return sum(size > 0 for size in self.sizes(m, seed))


def check_rows(groups: Groups | None, m: int) -> None:
    """Raise ValueError for rows that do not make up a batch."""
    if groups is not None and groups.kind == "batched" and m % groups.count:
        raise ValueError(f"m={m} is not a multiple of {groups.count}: the products of a batch have the same rows")


@cache
def _ragged(count: int, m: int, seed: int) -> tuple[int, ...]:
    """By uniform variates alone: NumPy keeps their stream from version to version, and not that of other draws."""
    rng = np.random.default_rng([seed % 2**64, count, m])
    popularity = -np.log(1.0 - rng.random((count, _EXPONENTIALS))).sum(axis=1)
    ends = np.cumsum(popularity / popularity.sum())
    of_row = np.minimum(np.searchsorted(ends, rng.random(m), side="right"), count - 1)
    return tuple(int(size) for size in np.bincount(of_row, minlength=count))
