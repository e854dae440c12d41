"""Queries of the training split that are put into splits of their own, for data that come without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from raydr.data.readers.base import Row
from raydr.errors import DataError
from raydr.seeding import stable_hash64


@dataclass(frozen=True)
class HoldOut:
    """Which queries are held out.

    Args:
        split: that they are taken from.
        shares: of its queries, by the split that they go to.
        seed: decides with each query's id.
    """

    split: str
    shares: Mapping[str, float]
    seed: int

    def moved(self, row: Row) -> Row:
        """A query, judgment or negative in the split of its query.

        Raises:
            DataError: the data have a split of that name of their own.

        >>> rows = [Row("queries", "train", {"query_id": f"q{at}"}, at) for at in range(1000)]
        >>> found = [HoldOut("train", {"dev": 0.1, "test": 0.2}, seed=0).moved(row).split for row in rows]
        >>> {split: found.count(split) // 10 for split in ("dev", "test", "train")}
        {'dev': 9, 'test': 20, 'train': 69}
        """
        if row.split in self.shares:
            raise DataError(
                f"the data have a split {row.split!r}, which data.hold_out is to make of {self.split!r}: leave it out "
                "there, or give the split to make another name"
            )
        return replace(row, split=self._split_of(row.values["query_id"])) if row.split == self.split else row

    def _split_of(self, query_id: str) -> str:
        at = stable_hash64(self.seed, "hold out", query_id) / 2**64
        for split, share in self.shares.items():
            if at < share:
                return split
            at -= share
        return self.split
