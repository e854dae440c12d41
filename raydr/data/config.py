"""Settings of the data: which reader, which subset, which queries are held out, and noise injected on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from raydr.component import Config, Pluggable
from raydr.data.readers.base import Reader, Row
from raydr.errors import DataError
from raydr.seeding import stable_hash64


class DataConfig(Config):
    """What ``raydr prepare`` reads."""

    reader: Annotated[Reader, Pluggable()]
    """The format of the data, and where it is."""

    max_bad_rows: int = Field(default=0, ge=0)
    """Rows that may be left out because they are malformed; the rest of them is in the quarantine file."""

    max_queries: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Keep only so many queries of a split, chosen by (seed, query_id); for small trials."""

    part_rows: int = Field(default=10_000, ge=1)
    """Passages in one part; a part is the unit of work of encoding."""

    train_split: str = "train"
    """Name of the split to train on."""

    dev_split: str = "dev"
    """Name of the split that chooses checkpoints and settings."""

    test_splits: list[str] = ["test"]
    """Splits that are searched and evaluated."""

    hold_out: dict[str, Annotated[float, Field(gt=0, lt=1)]] = {}
    """Shares of the training split's queries that become other splits, for data that come without them, for example
    ``{dev: 0.1, test: 0.1}``; chosen by (seed, query_id)."""

    leaked_queries: Literal["keep", "leave_out"] = "keep"
    """Treatment of training queries that the dev split or a test split has too, word for word or nearly. They are kept
    with a warning, or left out of the training."""

    skip_own_id: bool = False
    """Whether a passage with the query's own id is never a result and never a negative of the query. Set it where
    queries are passages of the corpus, as in BEIR's ArguAna."""

    @model_validator(mode="after")
    def _something_is_left(self) -> DataConfig:
        if sum(self.hold_out.values()) >= 1:
            raise ValueError(f"hold_out: the shares add up to {sum(self.hold_out.values()):g}, and leave nothing")
        if self.train_split in self.hold_out:
            raise ValueError(f"hold_out: {self.train_split!r} is the split that queries are taken from")
        return self

    @property
    def held_out_splits(self) -> list[str]:
        """Return the splits for evaluation."""
        return [split for split in dict.fromkeys([self.dev_split, *self.test_splits]) if split != self.train_split]


class NoiseInjectionConfig(Config):
    """Noise put into the training split on purpose, with the truth kept in columns."""

    kind: Literal["mismatched", "near", "judged", "false_negatives"] = "mismatched"
    """``mismatched``: the positive is replaced by an unrelated passage; ``near``: by a positive of another query that
    BM25 ranks high for this query; ``judged``: passages that people judged wrong (relevance 0) count as positives, as
    where nobody has judged; ``false_negatives``: known positives of queries with several are planted among the
    hard negatives."""

    ranks: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (5, 50)
    """First and last rank that ``near`` draws from, among the positives of the split; the query's own have no rank."""

    share: float = Field(default=0.2, ge=0, le=1)
    """Share of the eligible queries that is made noisy: all with a positive; for ``near`` those with passages at these
    ranks; for ``judged`` those with a passage that is judged wrong; for ``false_negatives`` those with several
    positives."""

    @field_validator("ranks")
    @classmethod
    def _in_order(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        if ranks[0] > ranks[1]:
            raise ValueError(f"ranks={list(ranks)} are no range; expected first ≤ last")
        return ranks


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
        """Put a query, judgment or negative into the split of its query.

        Raises:
            DataError: the data have a split of that name of their own.

        >>> rows = [Row("queries", "train", {"query_id": f"q{at}"}, at) for at in range(1000)]
        >>> splits = [HoldOut("train", {"dev": 0.1, "test": 0.2}, seed=0).moved(row).split for row in rows]
        >>> {split: splits.count(split) // 10 for split in ("dev", "test", "train")}
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
