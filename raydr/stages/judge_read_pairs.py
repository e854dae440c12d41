"""The worker that judges annotated pairs with a model that reads query and passage together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import MISMATCHED
from raydr.data.schema import read_arrow, write_parquet
from raydr.noise.judges.base import Judge, ScoredCandidates
from raydr.stages.judge_negatives import query_texts, verdict_table, verdicts_name
from raydr.stages.units import Scoring, Unit, unit_of, write_unit
from raydr.storage import Folder


@dataclass(frozen=True)
class ReadPairsJob:
    """What every worker of one judging knows; small and picklable."""

    judge: Judge
    split: str
    dataset: Folder
    corpus: Folder
    output: Folder
    scoring: Scoring

    def name_of(self, unit: Unit) -> str:
        return verdicts_name(self.split, unit.number)


class ReadPairs:
    """An actor that holds the cross-encoder; every call judges one unit of the judgments."""

    def __init__(self, job: ReadPairsJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
        self.scorer = job.scoring.open()
        noise = self.data.qrels(job.split)["noise"]
        self.truth_is_known = noise.null_count < len(noise)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        unit = unit_of(batch)
        rows = read_arrow(self.data.artifact.local(unit.part)).slice(unit.start, unit.end - unit.start)
        table = self._judge(rows.filter(pc.greater(rows["relevance"], 0)))
        name = self.job.name_of(unit)
        return write_unit(self.job.output, name, table.num_rows, lambda path: write_parquet(table, path))

    def _judge(self, pairs: pa.Table) -> pa.Table:
        query_ids, passage_ids = pairs["query_id"].to_pylist(), pairs["passage_id"].to_pylist()
        truth = [noise == MISMATCHED if self.truth_is_known else None for noise in pairs["noise"].to_pylist()]
        queries = query_texts(self.data, self.job.split, query_ids)
        passages = self.corpus.texts(self.corpus.rows_of(passage_ids))
        each = np.arange(len(query_ids))
        scores = self.scorer.score(queries, passages, each, each)
        verdicts = self.job.judge.judge(ScoredCandidates(scores, np.arange(len(query_ids) + 1)))
        return verdict_table(self.job.judge, query_ids, passage_ids, verdicts, truth)
