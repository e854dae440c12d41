"""Fusion of rankings by ranks or scores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from raydr.evaluation.metrics import Qrels, deepest_cutoff, parse_measures, score_queries

FloatArray = NDArray[np.float64]
By = Literal["ranks", "scores"]
#: Number of steps of the weights that are tried on dev.
GRID_STEPS = 10


@dataclass(frozen=True)
class Ranked:
    """A system's ranking for a query.

    Args:
        passage_ids: passage ids, best first.
        scores: their scores, descending.
    """

    passage_ids: Sequence[str]
    scores: FloatArray


@dataclass(frozen=True)
class Evidence:
    """Values of S systems for the P passages that any of them ranks for a query.

    Args:
        passage_ids: P ids in descending order: a stable sort by score then breaks ties as trec_eval does.
        values_SP: values in [0, 1]; 0 for passages missing from a system's list.
    """

    passage_ids: list[str]
    values_SP: FloatArray

    @classmethod
    def of(cls, lists: Sequence[Ranked | None], by: By, rank_offset: int) -> Evidence:
        """Combine the lists of a query.

        With r the rank of passage p and s its score in a list, its value is

            ranks:   (rank_offset + 1) / (rank_offset + r)   (reciprocal rank fusion, times a constant),
            scores:  (s - min s) / (max s - min s), over the list; 1 where all scores are equal.

        Source: Cormack, Clarke, Buettcher (SIGIR 2009), reciprocal rank fusion, whose offset is 60.

        Args:
            lists: list of each system; None without a list.
            by: values that are fused.
            rank_offset: offset of the ranks.

        >>> lists = [Ranked(["a", "b"], np.array([3.0, 1.0])), Ranked(["b"], np.array([0.5]))]
        >>> fused = Evidence.of(lists, "ranks", rank_offset=1)
        >>> fused.passage_ids, fused.values_SP.round(2).tolist()
        (['b', 'a'], [[0.67, 1.0], [1.0, 0.0]])
        >>> Evidence.of(lists, "scores", rank_offset=1).values_SP.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        ids = sorted(
            {passage_id for ranked in lists if ranked is not None for passage_id in ranked.passage_ids}, reverse=True
        )
        place = {passage_id: at for at, passage_id in enumerate(ids)}
        values_SP = np.zeros((len(lists), len(ids)))
        for values_P, ranked in zip(values_SP, lists, strict=True):
            if ranked is not None and len(ranked.passage_ids):
                values = _by_rank(ranked, rank_offset) if by == "ranks" else _by_score(ranked)
                values_P[[place[passage_id] for passage_id in ranked.passage_ids]] = values
        return cls(ids, values_SP)

    def best(self, weights_S: FloatArray, depth: int) -> tuple[list[str], NDArray[np.float32]]:
        """Return the best ``depth`` passages by Σ_s weight_s · value_s, best first, and these sums."""
        scores_P = (weights_S @ self.values_SP).astype(np.float32)
        order = np.argsort(-scores_P, kind="stable")[:depth]
        return [self.passage_ids[at] for at in order], scores_P[order]


def _by_rank(ranked: Ranked, offset: int) -> FloatArray:
    return (offset + 1.0) / (offset + np.arange(1.0, len(ranked.passage_ids) + 1.0))


def _by_score(ranked: Ranked) -> FloatArray:
    scores = np.asarray(ranked.scores, dtype=np.float64)
    low, high = scores.min(), scores.max()
    return np.ones(len(scores)) if low == high else (scores - low) / (high - low)


def equal_weights(num_systems: int) -> FloatArray:
    """Return equal weights that add up to 1.

    >>> equal_weights(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return np.full(num_systems, 1.0 / num_systems)


def mixtures(num_systems: int) -> FloatArray:
    """Return all weights in steps of 1/10 that add up to 1, the most even first, shape (mixtures, systems).

    >>> mixtures(2)[:3].tolist(), len(mixtures(3))
    ([[0.5, 0.5], [0.4, 0.6], [0.6, 0.4]], 66)
    """
    choices = itertools.product(range(GRID_STEPS + 1), repeat=num_systems)
    grid = [counts for counts in choices if sum(counts) == GRID_STEPS]
    grid.sort(key=lambda counts: (sum(count * count for count in counts), counts))
    return np.array(grid, dtype=np.float64) / GRID_STEPS


def choose_weights(
    evidence: Mapping[str, Evidence], qrels: Qrels, measure: str, grid_NS: FloatArray
) -> tuple[FloatArray, list[float]]:
    """Return the mixture with the highest mean over all judged queries, the first of equal mixtures.

    Args:
        evidence: values by query id.
        qrels: judgments; queries without evidence score 0.
        measure: measure in ir-measures' notation.
        grid_NS: mixtures to try.

    Returns:
        The best mixture, and the mean of each mixture.
    """
    parsed = parse_measures([measure], "fuse.measure")
    [name] = parsed
    depth = deepest_cutoff(parsed.values()) or max((len(lists.passage_ids) for lists in evidence.values()), default=1)
    means = []
    for weights_S in grid_NS:
        ranking = {query_id: lists.best(weights_S, depth)[0] for query_id, lists in evidence.items()}
        values = score_queries(parsed, qrels, ranking)[name]
        means.append(float(np.mean(list(values.values()))))
    return grid_NS[int(np.argmax(means))], means
