"""Signals: what a training knows of its queries and passages besides their texts, from its inputs to the loss.

A signal has two parts:

* a :class:`Signal`, read from an input of the training. It looks up what it knows of a batch when the batch is made.
* a :class:`BatchSignal`, the tensors of a batch. It writes them into the :class:`~raydr.losses.base.Candidates` of a
  loss, or excludes candidates.

Batches, their encodings and the trainer carry signals and read none of them. A new signal is a class here, and a loss
that reads it by its name.
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
        log_draw_prob: float32, (Q, G): log-probability with which a negative was drawn; NaN where it is unknown.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    is_listed: NDArray[np.bool_]
    log_draw_prob: NDArray[np.float32]


@dataclass(frozen=True)
class Cells:
    """Where the queries of a score matrix have their passages.

    Args:
        rows: the queries of the batch that are the rows of the matrix.
        own_QG: int64, the columns of each query's own G passages.
        hash_C: int64, content hash of each column's passage.
    """

    rows: slice
    own_QG: Tensor
    hash_C: Tensor


class Signal(Protocol):
    """A signal of a whole training."""

    def of(self, drawn: DrawnBatch) -> BatchSignal | None:
        """Look up the signal of a batch; None if nothing is known of it. Called in the thread that makes batches."""


@dataclass(frozen=True)
class BatchSignal(ABC):
    """A signal of a batch; its fields that are tensors go to the device with the batch."""

    def to(self, device: torch.device) -> Self:
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: move(value, device) for name, value in tensors.items()})

    def gathered(self) -> Self:
        """Return the signal with what it needs of other ranks' passages; each rank calls this once for a batch."""
        return self

    @abstractmethod
    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        """Return the candidates with the signal written into them."""


@dataclass(frozen=True)
class PlaceSignal(BatchSignal):
    """A number for each passage of a query's own.

    Args:
        name: of the signal.
        value_QG: float32, NaN where nothing is known.
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
        name: of the signal.
        value_Q: float32.
    """

    name: str
    value_Q: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        return candidates.with_signals(**{self.name: self.value_Q[cells.rows]})


class DrawProbabilities:
    """Log-probabilities with which hard negatives were drawn, where the sampler knows all of them."""

    def of(self, drawn: DrawnBatch) -> PlaceSignal | None:
        negatives_QN = drawn.log_draw_prob[:, 1:]
        if not negatives_QN.size or np.isnan(negatives_QN).any():
            return None
        return PlaceSignal(LOG_DRAW_PROB, torch.from_numpy(drawn.log_draw_prob))


@dataclass(frozen=True)
class PassageWeights:
    """Weights that judges gave to candidates of a query. They hold for a passage whoever brings it into the batch."""

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
    """The passages that weigh less for each query, drawn or not.

    Args:
        hash_QW: int64, their content hashes, padded with 0.
        log_weight_QW: float32, their log weights, padded with 0.
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
    """A ranker's scores of the examples' pairs.

    Args:
        keys: int64, (P,), ascending: a pair's position of the query · num_passages + row of the passage.
        scores: float32, (P,).
        num_passages: of the corpus.
    """

    keys: NDArray[np.int64]
    scores: NDArray[np.float32]
    num_passages: int

    @classmethod
    def join(cls, scores: pa.Table, examples: Examples, corpus: Corpus) -> RankerScores:
        """Look up the score of every positive and of every candidate that may be drawn.

        Args:
            scores: (query_id, passage_id, score), in any order; scores of other pairs are ignored.
            examples: the training queries.
            corpus: the passages.

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
                f"{passage_id!r} of query {query_id!r}: were other candidates scored than are trained on?"
            )

    def _keys_of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.int64]:
        return query_P * self.num_passages + passage_P

    def scores_of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return scores, (P,), of queries at positions of the examples with passages at rows of the corpus."""
        return self.scores[np.searchsorted(self.keys, self._keys_of(query_P, passage_P))]

    def of(self, drawn: DrawnBatch) -> PlaceSignal:
        listed_QG = drawn.is_listed
        scores_QG = np.full(listed_QG.shape, np.nan, dtype=np.float32)
        query_QG = np.broadcast_to(drawn.query_rows[:, None], listed_QG.shape)
        scores_QG[listed_QG] = self.scores_of(query_QG[listed_QG], drawn.passage_rows[listed_QG])
        return PlaceSignal(RANKER_SCORES, torch.from_numpy(scores_QG))


@dataclass(frozen=True)
class Guide:
    """A guide's vectors of the training queries and of the corpus, and the rule by which it excludes candidates.

    Args:
        queries: its vectors of the split's queries.
        query_rows: int64, the row of each example among them.
        passages: its vectors of the corpus, in the order of the corpus.
        rule: how near to a query a candidate may be.
    """

    queries: Embeddings
    query_rows: NDArray[np.int64]
    passages: Embeddings
    rule: GuideConfig

    @classmethod
    def join(cls, queries: Embeddings, passages: Embeddings, query_ids: Sequence[str], rule: GuideConfig) -> Guide:
        """Look up the vector of each example.

        Args:
            queries: vectors of at least these queries.
            passages: vectors of the corpus.
            query_ids: of the examples.
            rule: of the guide.

        Raises:
            DataError: a query has no vector.
        """
        parts = [queries.ids(part).combine_chunks() for part in range(len(queries.part_names))]
        rows = pc.index_in(pa.array(query_ids, pa.string()), value_set=pa.concat_arrays(parts))
        if rows.null_count:
            missing = query_ids[rows.is_null().to_numpy(zero_copy_only=False).argmax()]
            raise DataError(f"the guide's vectors at {queries.artifact.folder} have none of query {missing!r}")
        return cls(queries, rows.to_numpy().astype(np.int64), passages, rule)

    def of(self, drawn: DrawnBatch) -> BatchGuide:
        vectors = self.queries.take(self.query_rows[drawn.query_rows]), self.passages.take(drawn.passage_rows.ravel())
        query_QD, passage_PD = (torch.from_numpy(vectors_ND.astype(np.float32)) for vectors_ND in vectors)
        return BatchGuide(query_QD, passage_PD, self.rule)


@dataclass(frozen=True)
class BatchGuide(BatchSignal):
    """A guide's vectors of a batch.

    Args:
        query_QD: float32, of this rank's queries.
        passage_CD: float32, of this rank's passages; of all ranks' once it is gathered.
        rule: how near to a query a candidate may be.
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
    """Return all of a ``ranker_scores`` artefact's scores of a split."""
    return pa.concat_tables([read_parquet(scores.local(name)) for name in scores.parts(f"scores/{split}")])


def signals_of_examples(examples: Examples, corpus: Corpus) -> list[Signal]:
    """Return the signals that the examples and their draws carry themselves."""
    if (np.asarray(examples.weights.values) == 1).all():
        return [DrawProbabilities()]
    return [PassageWeights(examples, corpus), DrawProbabilities()]


def read_signals(
    inputs: OptionalInputs[Artifact], split: str, rule: GuideConfig | None, examples: Examples, corpus: Corpus
) -> list[Signal]:
    """Read the signals that a training has as inputs.

    Args:
        inputs: the artefacts.
        split: that is trained on.
        rule: ``train.guide``.
        examples: the training queries.
        corpus: the passages.

    Raises:
        ConfigError: ``train.guide`` is set, and there are no vectors of a guide.
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
