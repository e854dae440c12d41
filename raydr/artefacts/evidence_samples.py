"""Samples of a training's queries, and their scores by BM25 and models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.artefacts.inspection import token_counter
from raydr.artefacts.scoring import Scoring
from raydr.data import Corpus, Dataset
from raydr.data.rows import join_passage
from raydr.data.tables import of_queries, relevant
from raydr.diagnosis.evidence import BoolArray, FloatArray, Lengths
from raydr.models.config import Side
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.models.tokens import TextTokenizer
from raydr.negatives.bm25 import index_texts
from raydr.negatives.config import BM25Config
from raydr.seeding import stable_hash64
from raydr.store import Artifact, Folder
from raydr.training.dev import DevSet, build_dev_set
from raydr.training.sections import DevConfig
from raydr.training.training import Training

#: Size of a split's sample: queries, and random passages beside their positives.
SAMPLE_SIZE = {"max_queries": 400, "random_passages": 2_000}

IntArray = NDArray[np.int64]
#: Returns scores (Q, U) of queries with all sampled passages.
Reader = Callable[[list[str]], FloatArray]


@dataclass(frozen=True)
class DiagnosisJob:
    """Input of a diagnosis; small and picklable.

    Args:
        data, corpus: training data.
        held_out: candidates for the held-out split; the first with judgments is used.
        hold_out: those that were held out of the training pairs.
        training: training settings.
        bm25: settings of BM25.
        trained, untrained: scoring by the model after and before training.
        fold: scoring by the model of the first fold, which was trained on the others; set with ``margins``.
        negatives: candidates used in training; None: those of the data set.
        margins: cross-fitted margins of the pairs; may be None.
        output: folder of the artefact.
    """

    data: Dataset
    corpus: Corpus
    held_out: tuple[str, ...]
    hold_out: tuple[str, ...]
    training: Training
    bm25: BM25Config
    trained: Scoring
    untrained: Scoring
    fold: Scoring | None
    negatives: Artifact | None
    margins: Artifact | None
    output: Folder

    def rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(stable_hash64("diagnosis", purpose, self.training.seed))

    def judged(self, split: str) -> tuple[pa.Table, pa.Table]:
        """Return queries, and their positive judgments within the corpus."""
        queries, qrels = self.data.queries(split), relevant(self.data.qrels(split))
        qrels = qrels.filter(pa.array(self.corpus.find(qrels["passage_id"].to_pylist()) >= 0))
        return queries, of_queries(qrels, queries["query_id"].to_pylist())

    def texts(self, rows: IntArray) -> list[str]:
        """Return passages in the form that BM25 reads."""
        texts = self.corpus.texts(rows)
        return list(map(join_passage, texts.titles, texts.texts))


@dataclass(frozen=True)
class Sample:
    """Queries of a split, and the passages that are searched.

    Args:
        chosen: sampled queries and passages.
        corpus: corpus of the passages.
    """

    chosen: DevSet
    corpus: Corpus

    @classmethod
    def of(cls, job: DiagnosisJob, split: str) -> Sample | None:
        """Draw the sample; None if no query of the split has a positive."""
        if split not in job.data.splits or not len(job.judged(split)[1]):
            return None
        config = DevConfig(**SAMPLE_SIZE, scope=job.training.train.dev.scope)
        tables = (*job.judged(split), job.data.dropped(split))
        return cls(build_dev_set(*tables, job.corpus, config, job.training.seed), job.corpus)

    @cached_property
    def positive_QP(self) -> BoolArray:
        place = {passage_id: at for at, passage_id in enumerate(self.chosen.passage_ids)}
        positive_QP = np.zeros((len(self.chosen.query_ids), len(place)), dtype=bool)
        for at, query_id in enumerate(self.chosen.query_ids):
            positive_QP[at, [place[passage_id] for passage_id in self.chosen.qrels[query_id]]] = True
        return positive_QP

    @property
    def pair_Q(self) -> IntArray:
        """Index of each query's first positive."""
        return np.asarray(self.positive_QP.argmax(axis=1))

    @property
    def pair_rows_Q(self) -> IntArray:
        """Corpus row of each query's first positive."""
        return self.chosen.passage_rows[self.pair_Q]

    @cached_property
    def null_QP(self) -> BoolArray:
        """Positives of other queries that are no copies of the query's own."""
        contents_P = self.corpus.content_hashes(self.chosen.passage_rows)
        own_QP = np.stack([np.isin(contents_P, contents_P[mine_P]) for mine_P in self.positive_QP])
        return np.asarray(self.positive_QP.any(axis=0) & ~own_QP)

    def positive_among(self, rows_U: IntArray) -> BoolArray:
        """Return which rows, a superset of the sample's, are positives of each query."""
        judged_QU = np.zeros((len(self.positive_QP), len(rows_U)), dtype=bool)
        judged_QU[:, np.searchsorted(rows_U, self.chosen.passage_rows)] = self.positive_QP
        return judged_QU

    def seen(self, scores_QU: FloatArray, rows_U: IntArray) -> FloatArray:
        """Return scores with the sample's own passages; −inf for excluded and dropped ones."""
        scores_QP = scores_QU[:, np.searchsorted(rows_U, self.chosen.passage_rows)]
        if self.chosen.elsewhere_QP is not None:
            scores_QP[self.chosen.elsewhere_QP] = -np.inf
        scores_QP[tuple(self.chosen.dropped_N2.T)] = -np.inf
        return scores_QP


def encoded(scorer: DualEncoderScorer, corpus: Corpus, rows: IntArray) -> NDArray[np.float32]:
    """Encode passages."""
    texts = corpus.texts(rows)
    return scorer.encode("passage", texts.titles, texts.texts)


def dense(scorer: DualEncoderScorer, vectors_UD: NDArray[np.float32]) -> Reader:
    """Return a reader by a model's similarities, without the scale."""
    import torch

    def read(queries: list[str]) -> FloatArray:
        queries_QD = torch.from_numpy(scorer.encode("query", None, queries))
        return np.asarray(scorer.config.score.all_pairs(queries_QD, torch.from_numpy(vectors_UD)).double().numpy())

    return read


def bm25(config: BM25Config, passages: list[str]) -> Reader:
    """Return a reader by BM25 over these passages alone."""
    index = index_texts(passages, config)

    def read(queries: list[str]) -> FloatArray:
        scores_QU = np.zeros((len(queries), len(passages)))
        for at, hits in enumerate(index.search(queries, len(passages)) if index is not None else ()):
            scores_QU[at, hits.rows] = hits.scores
        return scores_QU

    return read


def cut(tokenizer: TextTokenizer, texts: list[str]) -> list[str]:
    """Truncate texts at the last character that a model reads."""
    prefix, longest = tokenizer.side.prefix, tokenizer.side.max_length
    spans = tokenizer.tokenizer(
        [prefix + text for text in texts], truncation=True, max_length=longest, return_offsets_mapping=True
    )["offset_mapping"]
    ends = [max((end for _, end in span), default=0) for span in spans]
    return [text[: max(0, end - len(prefix))] for text, end in zip(texts, ends, strict=True)]


def lengths(job: DiagnosisJob, side: Side, sample: Sample) -> Lengths:
    """Count the tokens of the sample's texts before truncation."""
    texts = job.corpus.texts(sample.chosen.passage_rows)
    asked = (None, sample.chosen.query_texts) if side == "query" else (texts.titles, texts.texts)
    return Lengths(token_counter(job.training.model, side)(*asked), job.training.model.side(side).max_length)


def weight_size(scorer: DualEncoderScorer) -> float:
    """Return the root mean square of the weight matrices."""
    matrices = [matrix.detach().float() for matrix in scorer.towers["query"].parameters() if matrix.ndim > 1]
    squares = sum(float(matrix.square().sum()) for matrix in matrices)
    return math.sqrt(squares / sum(matrix.numel() for matrix in matrices))
