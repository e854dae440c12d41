"""Settings of evaluation and of run fusion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raydr.component import Config
from raydr.evaluation.linking import linking_measures
from raydr.evaluation.metrics import MeasureName


class EvaluateConfig(Config):
    """Measures and their uncertainty."""

    measures: Annotated[list[MeasureName], Field(min_length=1)] = [
        "R@1",
        "R@5",
        "R@20",
        "R@100",
        "RR@10",
        "nDCG@10",
        "AP",
    ]
    """Measures in ir-measures' notation, against the qrels."""

    answer_cutoffs: list[Annotated[int, Field(ge=1)]] = [1, 5, 20, 100]
    """Cut-offs of answer-in-passage accuracy, where the queries have answers."""

    answer_match: Literal["string", "regex"] = "string"
    """Comparison of answers: as normalised token sequences, or as regular expressions."""

    answer_query_prefixes: list[str] = []
    """Prefixes of the ids of queries that count for answer accuracy; all if empty."""

    linking_depth: int | None = Field(default=None, ge=1)
    """For entity linking: adds accuracies, normalised by the queries with a relevant passage in the first
    ``linking_depth`` (64 in the papers, the reranker's depth); null: none."""

    confidence: float = Field(default=0.95, gt=0, lt=1)
    """Confidence level of the bootstrap intervals."""

    bootstrap_samples: int = Field(default=2000, ge=100)
    """Resamplings of the queries for the intervals."""

    permutations: int = Field(default=10_000, ge=100)
    """Random swaps of the paired test; few queries are tested exactly."""

    def of_answers(self) -> EvaluateConfig:
        """Return the settings of answer matching, with all others at their defaults."""
        return EvaluateConfig(answer_match=self.answer_match, answer_query_prefixes=self.answer_query_prefixes)

    @property
    def scored_measures(self) -> list[str]:
        """Measures, and the measures behind accuracies."""
        return [*self.measures, *(linking_measures(self.linking_depth) if self.linking_depth else [])]


#: Name of the fused system, and the largest number of systems with tuned weights.
FUSED = "fused"
_MOST_MIXED = 4


class FuseConfig(Config):
    """Fusion of several systems' runs into the run of the system ``fused``."""

    systems: list[str] = Field(default=["bm25", "trained"], min_length=2)
    """Fused systems: ``bm25``, models, imported runs, reranked runs (``trained+ranker``)."""

    by: Literal["ranks", "scores"] = "ranks"
    """Values that are fused: ``ranks``, 1 / (rank_offset + rank) (reciprocal rank fusion), or ``scores``, scaled to [0,
    1] over each query's list. A passage missing from a run has 0."""

    rank_offset: int = Field(default=60, ge=0)
    """Offset of the ranks; larger values emphasise the first ranks less."""

    weights: Literal["equal", "dev"] | list[Annotated[float, Field(ge=0)]] = "equal"
    """Weights of the systems: ``equal``; ``dev``: the mixture, in steps of 0.1, that is best on ``data.dev_split``; or
    a number for each system."""

    measure: MeasureName = "RR@10"
    """Measure that ``dev`` maximises, in ir-measures' notation."""

    @model_validator(mode="after")
    def _fit_together(self) -> FuseConfig:
        twice = sorted({system for system in self.systems if self.systems.count(system) > 1})
        if twice:
            raise ValueError(f"systems: {twice[0]} is listed more than once")
        if any(system.split("+")[0] == FUSED for system in self.systems):
            raise ValueError(f"systems: {FUSED} is the result and cannot be an input")
        if isinstance(self.weights, list) and (len(self.weights) != len(self.systems) or not sum(self.weights)):
            raise ValueError(
                f"weights: {self.weights} must have a number for each of {self.systems}, at least one above 0"
            )
        if self.weights == "dev" and len(self.systems) > _MOST_MIXED:
            raise ValueError(f"weights: dev mixes at most {_MOST_MIXED} systems, got {len(self.systems)}")
        return self

    def in_use(self) -> FuseConfig:
        """Return these settings, with the default offset if ranks are not fused."""
        if self.by == "ranks":
            return self
        return self.model_copy(update={"rank_offset": FuseConfig.model_fields["rank_offset"].default})
