"""The worker that judges candidate negatives: scores of a range's queries, verdicts, one Parquet file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from raydr.data.annotations import known_false_negatives, positives_of, query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.noise.candidates import Candidates, candidates_of, mined_scores
from raydr.noise.judges.base import FloatArray, Judge, ScoredCandidates
from raydr.noise.verdict_report import verdict_table
from raydr.stages.pool import Batch
from raydr.stages.row_ranges import RowRange
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


@dataclass(frozen=True)
class NegativesJob:
    """What every worker of one judging knows; small and picklable."""

    judge: Judge
    split: str
    dataset: Folder
    corpus: Folder
    negatives: Folder
    output: Folder
    #: None: the scores that the candidates were mined with.
    scoring: Scoring | None


class JudgeNegatives:
    """An actor that holds the model; every call judges one range and writes it."""

    def __init__(self, job: NegativesJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
        self.negatives = Artifact.open(job.negatives, "negatives")
        self.scorer = job.scoring.open() if job.scoring is not None else None

    def __call__(self, batch: Batch) -> Batch:
        rows = RowRange.of(batch)
        found = candidates_of(read_arrow(self.negatives.local(rows.part)), rows.start, rows.end)
        table = self._judge(found.undecided(), found.relabelled())
        return rows.written(self.job.output, table)

    def _judge(self, found: Candidates, relabelled: dict[str, list[str]]) -> pa.Table:
        mined = self.scorer is None
        scores_M, positive_Q = mined_scores(found, self.job.judge.name) if mined else self._score(found, relabelled)
        if positive_Q is not None:
            # Without a positive's score a query cannot be judged; it gets no verdict, which the driver counts.
            known_Q = np.isfinite(positive_Q)
            scores_M, found = scores_M[known_Q[found.query_M]], found.only(known_Q)
            positive_Q = positive_Q[known_Q]
        verdicts = self.job.judge.judge(ScoredCandidates(scores_M, found.offsets, positive_Q))
        return verdict_table(
            self.job.judge,
            found.table["query_id"].to_pylist(),
            found.table["passage_id"].to_pylist(),
            verdicts,
            self._truth(found),
        )

    def _score(self, found: Candidates, relabelled: dict[str, list[str]]) -> tuple[FloatArray, FloatArray | None]:
        """The model's scores of the candidates and, for dual encoders, of each query's best scored positive."""
        scoring, scorer = self.job.scoring, self.scorer
        assert scoring is not None
        assert scorer is not None
        positives: dict[str, list[str]] = {}
        if not scoring.is_cross_encoder:
            judged = positives_of(self.data, self.job.split, found.query_ids)
            positives = {one: [*judged.get(one, []), *relabelled.get(one, [])] for one in found.query_ids}
        owners = [at for at, query_id in enumerate(found.query_ids) for _ in positives.get(query_id, [])]
        positive_ids = [one for query_id in found.query_ids for one in positives.get(query_id, [])]
        passage_ids = found.table["passage_id"].to_pylist() + positive_ids
        unique, passage_P = np.unique(np.asarray(passage_ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(unique.tolist()))
        query_P = np.concatenate([found.query_M, np.array(owners, dtype=np.int64)])
        queries = query_texts(self.data, self.job.split, found.query_ids)
        scores_P = scorer.score(queries, texts, query_P, passage_P.astype(np.int64))
        num = len(found.table)
        if scoring.is_cross_encoder:
            return scores_P, None
        best_Q = np.full(len(found.query_ids), -np.inf)
        np.maximum.at(best_Q, query_P[num:], scores_P[num:])
        return scores_P[:num], best_Q

    def _truth(self, found: Candidates) -> list[bool | None]:
        """Whether a candidate is known to be a false negative, for each; None if no noise was injected."""
        if not self._false_negatives:
            return [None] * len(found.table)
        pairs = zip(found.table["query_id"].to_pylist(), found.table["passage_id"].to_pylist(), strict=True)
        return [pair in self._false_negatives for pair in pairs]

    @cached_property
    def _false_negatives(self) -> set[tuple[str, str]]:
        return known_false_negatives(self.data, self.job.split)
