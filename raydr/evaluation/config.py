"""Settings of evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from raydr.component import Config
from raydr.evaluation.linking import linking_measures
from raydr.evaluation.metrics import check_measures


class EvaluateConfig(Config):
    """Which measures, and how their uncertainty is shown."""

    measures: list[str] = ["R@1", "R@5", "R@20", "R@100", "RR@10", "nDCG@10", "AP"]
    """Measures in ir-measures' notation, against the qrels."""

    answer_cutoffs: list[Annotated[int, Field(ge=1)]] = [1, 5, 20, 100]
    """Cut-offs of answer-in-passage accuracy, where the queries have answers."""

    answer_match: Literal["string", "regex"] = "string"
    """How answers are compared: as normalised token sequences, or as regular expressions."""

    answer_query_prefixes: list[str] = []
    """Only queries whose id starts with one of these count for answer accuracy; all if empty."""

    linking_depth: int | None = Field(default=None, ge=1)
    """For entity linking: adds accuracies, normalised by the queries with a relevant one among so many first passages
    (64 in the papers, what a reranker was given); none if null."""

    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Of the bootstrap intervals."""

    bootstrap_samples: int = Field(default=2000, ge=100)
    """Resamplings of the queries for the intervals."""

    permutations: int = Field(default=10_000, ge=100)
    """Random swaps of the paired test; all of them where the queries are few."""

    @property
    def scored_measures(self) -> list[str]:
        """The measures, and those that accuracies are made of."""
        return [*self.measures, *(linking_measures(self.linking_depth) if self.linking_depth else [])]

    @field_validator("measures")
    @classmethod
    def _are_measures(cls, measures: list[str]) -> list[str]:
        check_measures(measures)
        return measures
