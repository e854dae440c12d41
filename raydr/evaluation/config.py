"""Settings of evaluation, and of the fusion of runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raydr.component import Config
from raydr.evaluation.linking import linking_measures
from raydr.evaluation.metrics import MeasureName


class EvaluateConfig(Config):
    """Which measures, and how their uncertainty is shown."""

    measures: list[MeasureName] = ["R@1", "R@5", "R@20", "R@100", "RR@10", "nDCG@10", "AP"]
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

    def of_answers(self) -> EvaluateConfig:
        """What decides whether a passage answers a query; all else at its default."""
        return EvaluateConfig(answer_match=self.answer_match, answer_query_prefixes=self.answer_query_prefixes)

    @property
    def scored_measures(self) -> list[str]:
        """Return the measures, and those that accuracies are computed from."""
        return [*self.measures, *(linking_measures(self.linking_depth) if self.linking_depth else [])]


#: What the fused system is called, and the most systems that mixtures are tried of.
FUSED = "fused"
_MOST_MIXED = 4


class FuseConfig(Config):
    """How the runs of several systems become one, that of the system ``fused``."""

    systems: list[str] = Field(default=["bm25", "trained"], min_length=2)
    """Whose runs: ``bm25``, models, runs of other programs, reranked ones (``trained+ranker``)."""

    by: Literal["ranks", "scores"] = "ranks"
    """What of a run counts: ``ranks``, 1 / (rank_offset + rank) (reciprocal rank fusion), or ``scores``, scaled to
    [0, 1] over each query's list. A passage that a run has not found has 0."""

    rank_offset: int = Field(default=60, ge=0)
    """The larger, the less the first ranks stand out."""

    weights: Literal["equal", "dev"] | list[Annotated[float, Field(ge=0)]] = "equal"
    """What each system's word counts for: ``equal``; ``dev``: the mixture, in steps of 0.1, that is best on the split
    ``data.dev_split``, which no test split takes part in; or a number a system."""

    measure: MeasureName = "RR@10"
    """The measure by which ``dev`` chooses, in ir-measures' notation; higher is better."""

    @model_validator(mode="after")
    def _fit_together(self) -> FuseConfig:
        twice = sorted({system for system in self.systems if self.systems.count(system) > 1})
        if twice:
            raise ValueError(f"systems: {twice[0]} is there more than once")
        if any(system.split("+")[0] == FUSED for system in self.systems):
            raise ValueError(f"systems: {FUSED} is what is made of them, and cannot be one of them")
        if isinstance(self.weights, list) and (len(self.weights) != len(self.systems) or not sum(self.weights)):
            raise ValueError(f"weights: {self.weights} are not one for each of {self.systems}, with one above 0")
        if self.weights == "dev" and len(self.systems) > _MOST_MIXED:
            raise ValueError(f"weights: dev mixes at most {_MOST_MIXED} systems, there are {len(self.systems)}")
        return self

    def in_use(self) -> FuseConfig:
        """Return these settings, the offset at its default where ranks do not count."""
        if self.by == "ranks":
            return self
        return self.model_copy(update={"rank_offset": FuseConfig.model_fields["rank_offset"].default})
