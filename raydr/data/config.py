"""Settings of the data: which reader, which subset, and noise injected on purpose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config, Pluggable
from raydr.data.readers.base import Reader


class DataConfig(Config):
    """What ``raydr prepare`` reads."""

    #: The format of the data, and where it is.
    reader: Annotated[Reader, Pluggable()]
    #: Rows that may be left out because they are malformed; the rest of them is in the quarantine file.
    max_bad_rows: int = Field(default=0, ge=0)
    #: Keep only so many queries of a split, chosen by (seed, query_id); for small trials.
    max_queries: dict[str, Annotated[int, Field(ge=1)]] = {}
    #: Passages in one part; a part is the unit of work of encoding.
    part_rows: int = Field(default=10_000, ge=1)
    #: Name of the split to train on.
    train_split: str = "train"
    #: Name of the split that chooses checkpoints and settings.
    dev_split: str = "dev"
    #: Splits that are searched and evaluated.
    test_splits: list[str] = ["test"]


class NoiseInjectionConfig(Config):
    """Noise put into the training split on purpose, with the truth kept in columns."""

    #: ``mismatched``: the positive is replaced by an unrelated passage; ``false_negatives``: known positives
    #: of queries with several are planted among the hard negatives.
    kind: Literal["mismatched", "false_negatives"] = "mismatched"
    #: Share of the pairs (or of the queries with several positives) that is made noisy.
    share: float = Field(default=0.2, ge=0, le=1)
