"""Settings of the data: reader, subset, held-out queries, and injected noise."""

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
    """Settings of ``raydr prepare``."""

    reader: Annotated[Reader, Pluggable()]
    """Format and location of the data."""

    max_bad_rows: int = Field(default=0, ge=0)
    """Maximum of malformed rows, which are left out and kept in the quarantine file; more are an error."""

    max_queries: dict[str, Annotated[int, Field(ge=1)]] = {}
    """Maximum of queries of a split, chosen by a hash of (seed, query_id); for small trials."""

    part_rows: int = Field(default=10_000, ge=1)
    """Passages of a part, the unit of work of encoding."""

    train_split: str = "train"
    """Name of the split to train on."""

    dev_split: str = "dev"
    """Name of the split by which checkpoints and settings are chosen."""

    test_splits: list[str] = ["test"]
    """Splits that are searched and evaluated."""

    hold_out: dict[str, Annotated[float, Field(gt=0, lt=1)]] = {}
    """Shares of the training queries that become other splits, for data without them, for example
    ``{dev: 0.1, test: 0.1}``; chosen by a hash of (seed, query_id)."""

    leaked_queries: Literal["keep", "leave_out"] = "keep"
    """Treatment of training queries that are also in the dev split or a test split, word for word or nearly. They are
    kept with a warning, or left out of training."""

    skip_own_id: bool = False
    """Whether the passage with a query's id is left out of the query's results and negatives. Set it where queries are
    passages of the corpus, as in BEIR's ArguAna."""

    @model_validator(mode="after")
    def _something_is_left(self) -> DataConfig:
        if sum(self.hold_out.values()) >= 1:
            raise ValueError(f"hold_out: the shares add up to {sum(self.hold_out.values()):g}, and leave nothing")
        if self.train_split in self.hold_out:
            raise ValueError(f"hold_out: {self.train_split!r} is the split that queries are taken from")
        return self

    @property
    def held_out_splits(self) -> list[str]:
        """Splits for evaluation."""
        return [split for split in dict.fromkeys([self.dev_split, *self.test_splits]) if split != self.train_split]


class NoiseInjectionConfig(Config):
    """Noise to inject into the training split; columns keep the truth."""

    kind: Literal["mismatched", "near", "judged", "false_negatives"] = "mismatched"
    """Kind of noise. ``mismatched`` replaces positives by unrelated passages. ``near`` replaces them by positives of
    other queries that BM25 ranks high for the query. ``judged`` turns passages that people judged wrong (relevance 0)
    into positives. ``false_negatives`` plants positives of queries with several among the hard negatives."""

    ranks: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (5, 50)
    """First and last rank from which ``near`` draws; positives of other queries are ranked."""

    share: float = Field(default=0.2, ge=0, le=1)
    """Share of the eligible queries that become noisy. Eligible are queries with a positive; for ``near`` with passages
    at these ranks; for ``judged`` with a passage that is judged wrong; for ``false_negatives`` with several
    positives."""

    @field_validator("ranks")
    @classmethod
    def _in_order(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        if ranks[0] > ranks[1]:
            raise ValueError(f"ranks={list(ranks)} are no range; expected first ≤ last")
        return ranks


@dataclass(frozen=True)
class HoldOut:
    """Assignment of queries to held-out splits.

    Args:
        split: split to take queries from.
        shares: share of its queries for each held-out split.
        seed: seed of the choice.
    """

    split: str
    shares: Mapping[str, float]
    seed: int

    def moved(self, row: Row) -> Row:
        """Put a query, judgment or negative into the split of its query.

        Raises:
            DataError: the data already have a split with the name of a held-out split.

        >>> rows = [Row("queries", "train", {"query_id": f"q{at}"}, at) for at in range(1000)]
        >>> splits = [HoldOut("train", {"dev": 0.1, "test": 0.2}, seed=0).moved(row).split for row in rows]
        >>> {split: splits.count(split) // 10 for split in ("dev", "test", "train")}
        {'dev': 9, 'test': 20, 'train': 69}
        """
        if row.split in self.shares:
            raise DataError(
                f"the data already have a split {row.split!r}, which data.hold_out would take from {self.split!r}: "
                "remove it from data.hold_out, or choose another name"
            )
        return replace(row, split=self._split_of(row.values["query_id"])) if row.split == self.split else row

    def _split_of(self, query_id: str) -> str:
        at = stable_hash64(self.seed, "hold out", query_id) / 2**64
        # A key has no order of settings, so that none may decide.
        for split, share in sorted(self.shares.items()):
            if at < share:
                return split
            at -= share
        return self.split
