"""The worker that judges annotated pairs with a model that reads query and passage together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raydr.data.annotations import query_texts
from raydr.noise.judges.base import ScoredCandidates
from raydr.noise.verdict_report import verdict_table
from raydr.stages.judge_pairs import PairsJob, PairsWorker


class ReadPairs(PairsWorker):
    """Holds the cross-encoder."""

    def __init__(self, job: PairsJob) -> None:
        super().__init__(job)
        self.scorer = job.scoring.open()

    def judge(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        queries = query_texts(self.data, self.job.split, query_ids)
        passages = self.corpus.texts(self.corpus.rows_of(passage_ids))
        each = np.arange(len(query_ids))
        scores = self.scorer.score(queries, passages, each, each)
        verdicts = self.job.judge.judge(ScoredCandidates(scores, np.arange(len(query_ids) + 1)))
        return verdict_table(self.job.judge, query_ids, passage_ids, verdicts, truth)
