"""Settings of the data: which reader, which subset, and noise injected on purpose."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from raydr.component import Config, Pluggable
from raydr.data.readers.base import Reader

#: How a second positive is made, see :mod:`raydr.data.second_positives`.
SecondPositiveSource = Literal["recut", "answer", "renamed"]


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
    #: Where the planted positives come from. Empty: from the data set's own judgments. Otherwise they are made for
    #: queries with one positive: ``recut``: cut anew from the positive's article, a few words further; ``answer``:
    #: other passages of the article that contain the answer; ``renamed``: Python code with other variable names.
    #: Answers are compared as ``evaluate.answer_match`` and ``evaluate.answer_query_prefixes`` say.
    sources: list[SecondPositiveSource] = []
    #: Least share of the question's words that a passage of ``answer`` has, besides the answer itself, which may stand
    #: there by chance; 0 asks for the answer alone.
    answer_overlap: float = Field(default=0.4, ge=0, le=1)
    #: Least and most words that ``recut`` shifts by.
    recut_words: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (30, 50)

    @model_validator(mode="after")
    def _sources_fit(self) -> NoiseInjectionConfig:
        if self.sources and self.kind != "false_negatives":
            raise ValueError("sources are for kind false_negatives: a mismatched passage needs no second positive")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError(f"sources names one twice: {', '.join(self.sources)}")
        if self.recut_words[0] > self.recut_words[1]:
            raise ValueError(f"recut_words: the least is above the most: {self.recut_words}")
        return self

    @property
    def adds_passages(self) -> bool:
        """Whether the corpus grows."""
        return any(source != "answer" for source in self.sources)

    def making_key(self) -> dict[str, Any]:
        """The settings that decide which second positives there are."""
        key: dict[str, Any] = {"sources": sorted(self.sources)}
        if "recut" in self.sources:
            key["recut_words"] = list(self.recut_words)
        if "answer" in self.sources:
            key["answer_overlap"] = self.answer_overlap
        return key
