"""Signals: data on queries and passages besides their texts, such as scores of a ranker, for the losses.

A signal has two parts:

* a :class:`Signal`, from an input of the training. It looks up the values of a batch when the batch is made.
* a :class:`BatchSignal`, the values of a batch as tensors. It writes them into the
  :class:`~raydr.losses.base.Candidates` of a loss, or excludes candidates.

Batches, their encodings and the trainer carry signals and do not read them. A new signal is a class here, and a loss
that reads it by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.corpus import Corpus
from raydr.data.embeddings import Embeddings
from raydr.data.examples import Examples, Ragged
from raydr.data.tables import read_parquet
from raydr.errors import ConfigError, DataError
from raydr.losses.base import LOG_DRAW_PROB, RANKER_SCORES, Candidates
from raydr.models.batching import move
from raydr.store.artifact import Artifact
from raydr.training.collectives import gather
from raydr.training.sections import GuideConfig
from raydr.training.training import OptionalInputs


@dataclass(frozen=True)
class DrawnBatch:
    """The queries of a batch and the passages drawn for them, G for each query, the positive first.

    Args:
        query_rows: int64, (Q,): positions of the queries in the examples.
        passage_rows: int64, (Q, G): rows of the passages in the corpus.
        is_listed: bool, (Q, G): True at the annotated positive and at negatives from the query's candidate list. False
            at random passages and empty places.
        log_draw_prob: float32, (Q, G): log-probability of the draw of a negative; NaN if unknown.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    is_listed: NDArray[np.bool_]
    log_draw_prob: NDArray[np.float32]


@dataclass(frozen=True)
class Cells:
    """The rows and columns of a score matrix.

    Args:
        rows: queries of the batch, which are the rows of the matrix.
        own_QG: int64, columns of each query's own G passages.
        hash_C: int64, content hash of each column's passage.
    """

    rows: slice
    own_QG: Tensor
    hash_C: Tensor


class Signal(Protocol):
    """A signal of a whole training."""

    def of(self, drawn: DrawnBatch) -> BatchSignal | None:
        """Look up the signal of a batch, in the thread that makes batches; None without values."""


@dataclass(frozen=True)
class BatchSignal(ABC):
    """A signal of a batch; its tensors move to the device with the batch."""

    def to(self, device: torch.device) -> Self:
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: move(value, device) for name, value in tensors.items()})

    def gathered(self) -> Self:
        """Return the signal with its values of all ranks' passages, if it needs them; called once per batch."""
        return self

    @abstractmethod
    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        """Return the candidates with the signal."""


@dataclass(frozen=True)
class PlaceSignal(BatchSignal):
    """A number for each of a query's own passages.

    Args:
        name: name of the signal.
        value_QG: float32, NaN if unknown.
    """

    name: str
    value_QG: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        unknown_QC = torch.full_like(candidates.scores_QC, math.nan)
        value_QC = unknown_QC.scatter(1, cells.own_QG, self.value_QG[cells.rows])
        return candidates.with_signals(**{self.name: value_QC})


@dataclass(frozen=True)
class QuerySignal(BatchSignal):
    """A number for each query.

    Args:
        name: name of the signal.
        value_Q: float32, value of each query.
    """

    name: str
    value_Q: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        return candidates.with_signals(**{self.name: self.value_Q[cells.rows]})


class DrawProbabilities:
    """Log-probabilities of the draws of hard negatives, if the sampler knows all of them."""

    def of(self, drawn: DrawnBatch) -> PlaceSignal | None:
        negatives_QN = drawn.log_draw_prob[:, 1:]
        if not negatives_QN.size or np.isnan(negatives_QN).any():
            return None
        return PlaceSignal(LOG_DRAW_PROB, torch.from_numpy(drawn.log_draw_prob))


@dataclass(frozen=True)
class PassageWeights:
    """Weights of judges for the candidates of a query, also where a candidate is in the batch for another query."""

    examples: Examples
    corpus: Corpus

    def of(self, drawn: DrawnBatch) -> BatchPassageWeights | None:
        examples, query_rows = self.examples, drawn.query_rows
        weighted = [np.flatnonzero(np.asarray(examples.weights[int(at)]) != 1) for at in query_rows]
        width = max(len(places) for places in weighted)
        if not width:
            return None
        hashes = np.zeros((len(weighted), width), dtype=np.int64)
        logs = np.zeros((len(weighted), width), dtype=np.float32)
        for line, (at, places) in enumerate(zip(query_rows.tolist(), weighted, strict=True)):
            rows = np.asarray(examples.negatives[at])[places]
            hashes[line, : len(places)] = self.corpus.content_hashes(rows).view(np.int64)
            logs[line, : len(places)] = np.log(np.asarray(examples.weights[at])[places])
        return BatchPassageWeights(torch.from_numpy(hashes), torch.from_numpy(logs))


@dataclass(frozen=True)
class BatchPassageWeights(BatchSignal):
    """The candidates of each query with a weight other than 1, drawn or not.

    Args:
        hash_QW: int64, content hashes of these candidates, padded with 0.
        log_weight_QW: float32, log weights of these candidates, padded with 0.
    """

    hash_QW: Tensor
    log_weight_QW: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        log_weight_QC = torch.zeros_like(candidates.scores_QC)
        columns = zip(self.hash_QW[cells.rows].unbind(dim=1), self.log_weight_QW[cells.rows].unbind(dim=1), strict=True)
        for hash_Q, log_Q in columns:
            same_QC = hash_Q.unsqueeze(1) == cells.hash_C.unsqueeze(0)
            log_weight_QC = torch.where(same_QC, log_Q.unsqueeze(1), log_weight_QC)
        return replace(candidates, log_weight_QC=log_weight_QC)


@dataclass(frozen=True)
class RankerScores:
    """Scores of the examples' pairs by a ranker.

    Args:
        keys: int64, (P,), ascending: position of a pair's query · num_passages + corpus row of its passage.
        scores: float32, (P,), scores of the pairs.
        num_passages: number of passages of the corpus.
    """

    keys: NDArray[np.int64]
    scores: NDArray[np.float32]
    num_passages: int

    @classmethod
    def join(cls, scores: pa.Table, examples: Examples, corpus: Corpus) -> RankerScores:
        """Look up the score of every positive and of every candidate that may be drawn.

        Args:
            scores: (query_id, passage_id, score), in any order; scores of other pairs are ignored.
            examples: training queries.
            corpus: passages.

        Raises:
            DataError: a pair has no score.
        """
        owner = pc.index_in(scores["query_id"], value_set=pa.array(examples.query_ids, pa.string()))
        owner_P = np.asarray(pc.fill_null(owner, -1).to_numpy(), dtype=np.int64)
        known = owner_P >= 0
        rows_P = corpus.rows_of_column(scores["passage_id"].filter(pa.array(known)))
        keys, first = np.unique(owner_P[known] * len(corpus) + rows_P, return_index=True)
        joined = cls(keys, scores["score"].to_numpy().astype(np.float32)[known][first], len(corpus))
        joined._require(examples.positives, "positives", examples, corpus)
        joined._require(examples.negatives, "candidates", examples, corpus)
        return joined

    def _require(self, pairs: Ragged, what: str, examples: Examples, corpus: Corpus) -> None:
        query_P = np.repeat(np.arange(len(pairs)), np.diff(pairs.offsets))
        missing = np.flatnonzero(~np.isin(self._keys_of(query_P, pairs.values), self.keys))
        if len(missing):
            query_id = examples.query_ids[query_P[missing[0]]]
            passage_id = corpus.ids(pairs.values[missing[:1]])[0]
            raise DataError(
                f"{len(missing)} of {len(query_P)} {what} have no score of the ranker, the first is passage "
                f"{passage_id!r} of query {query_id!r}: the scores must be of the candidates of this training"
            )

    def _keys_of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.int64]:
        return query_P * self.num_passages + passage_P

    def scores_of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return scores, (P,), of pairs of a position in the examples and a row of the corpus."""
        return self.scores[np.searchsorted(self.keys, self._keys_of(query_P, passage_P))]

    def of(self, drawn: DrawnBatch) -> PlaceSignal:
        listed_QG = drawn.is_listed
        scores_QG = np.full(listed_QG.shape, np.nan, dtype=np.float32)
        query_QG = np.broadcast_to(drawn.query_rows[:, None], listed_QG.shape)
        scores_QG[listed_QG] = self.scores_of(query_QG[listed_QG], drawn.passage_rows[listed_QG])
        return PlaceSignal(RANKER_SCORES, torch.from_numpy(scores_QG))


@dataclass(frozen=True)
class Guide:
    """Vectors of the training queries and of the corpus by a guide, and the rule that excludes candidates.

    Args:
        queries: vectors of the split's queries.
        query_rows: int64, row of each example in ``queries``.
        passages: vectors of the corpus, in its order.
        rule: limit of a candidate's score.
    """

    queries: Embeddings
    query_rows: NDArray[np.int64]
    passages: Embeddings
    rule: GuideConfig

    @classmethod
    def join(cls, queries: Embeddings, passages: Embeddings, query_ids: Sequence[str], rule: GuideConfig) -> Guide:
        """Look up the vector of each example.

        Args:
            queries: vectors of at least the examples' queries.
            passages: vectors of the corpus.
            query_ids: ids of the examples.
            rule: limit of a candidate's score.

        Raises:
            DataError: a query has no vector.
        """
        parts = [queries.ids(part).combine_chunks() for part in range(len(queries.part_names))]
        rows = pc.index_in(pa.array(query_ids, pa.string()), value_set=pa.concat_arrays(parts))
        if rows.null_count:
            missing = query_ids[rows.is_null().to_numpy(zero_copy_only=False).argmax()]
            raise DataError(f"the guide's vectors at {queries.artifact.folder} lack query {missing!r}")
        return cls(queries, rows.to_numpy().astype(np.int64), passages, rule)

    def of(self, drawn: DrawnBatch) -> BatchGuide:
        vectors = self.queries.take(self.query_rows[drawn.query_rows]), self.passages.take(drawn.passage_rows.ravel())
        query_QD, passage_PD = (torch.from_numpy(vectors_ND.astype(np.float32)) for vectors_ND in vectors)
        return BatchGuide(query_QD, passage_PD, self.rule)


@dataclass(frozen=True)
class BatchGuide(BatchSignal):
    """Vectors of a batch by a guide.

    Args:
        query_QD: float32, vectors of this rank's queries.
        passage_CD: float32, vectors of this rank's passages, and after :meth:`gathered` of all ranks' passages.
        rule: limit of a candidate's score.
    """

    query_QD: Tensor
    passage_CD: Tensor
    rule: GuideConfig

    def gathered(self) -> Self:
        return replace(self, passage_CD=gather(self.passage_CD))

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        """Exclude candidates that the guide scores higher than the query's positive less the margin."""
        guide_QC = self.query_QD[cells.rows] @ self.passage_CD.T
        positive_Q1 = candidates.positive_Q.unsqueeze(1)
        excluded_QC = candidates.excluded_QC | (guide_QC > self.rule.limits(guide_QC.gather(1, positive_Q1)))
        return replace(candidates, excluded_QC=excluded_QC.scatter(1, positive_Q1, False))


def read_ranker_scores(scores: Artifact, split: str) -> pa.Table:
    """Return the scores of a split in a ``ranker_scores`` artefact."""
    return pa.concat_tables([read_parquet(scores.local(name)) for name in scores.parts(f"scores/{split}")])


def signals_of_examples(examples: Examples, corpus: Corpus) -> list[Signal]:
    """Return the signals of the examples and of their draws, which need no further input."""
    if (np.asarray(examples.weights.values) == 1).all():
        return [DrawProbabilities()]
    return [PassageWeights(examples, corpus), DrawProbabilities()]


def read_signals(
    inputs: OptionalInputs[Artifact], split: str, rule: GuideConfig | None, examples: Examples, corpus: Corpus
) -> list[Signal]:
    """Read the signals among the inputs of a training.

    Args:
        inputs: optional inputs of the training.
        split: split of the training.
        rule: setting ``train.guide``.
        examples: training queries.
        corpus: passages.

    Raises:
        ConfigError: ``train.guide`` is set, and the inputs have no vectors of a guide.
        DataError: an artefact lacks a query or a pair.
    """
    signals: list[Signal] = []
    if inputs.ranker_scores is not None:
        signals.append(RankerScores.join(read_ranker_scores(inputs.ranker_scores, split), examples, corpus))
    if rule is not None:
        if inputs.guide_queries is None or inputs.guide_passages is None:
            raise ConfigError("train.guide is set, and the training has no vectors of a guide")
        vectors = Embeddings(inputs.guide_queries), Embeddings(inputs.guide_passages)
        signals.append(Guide.join(*vectors, examples.query_ids, rule))
    return signals
