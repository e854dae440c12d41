"""Scores of a sample of queries with their positives, hard negatives and random passages, for an audit's pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from raydr.data.annotations import query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet, write_parquet
from raydr.noise.passage_kinds import draw_kinds
from raydr.stages.audit_parts import AuditInputs
from raydr.stages.pool import Batch
from raydr.stages.row_ranges import RowRange
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Artifact, Part, write_and_record
from raydr.store.folder import Folder

SAMPLE = "sample.parquet"


def draw_pairs(
    inputs: AuditInputs, seed: int, output: Folder, num_queries: int, num_candidates: int, num_random: int
) -> Part:
    """Draw queries and their passages, and write them as (query_id, passage_id, kind); see :func:`draw_kinds`."""
    data, corpus = Dataset.open(inputs.dataset), Corpus.open(inputs.corpus)
    mined = Artifact.open(inputs.negatives, "negatives") if inputs.negatives is not None else None
    table = draw_kinds(data, corpus, mined, inputs.split, seed, num_queries, num_candidates, num_random)
    return write_and_record(output, SAMPLE, len(table), partial(write_parquet, table))


@dataclass(frozen=True)
class ScoresJob:
    """What every worker of one scoring knows; small and picklable."""

    inputs: AuditInputs
    output: Folder
    scoring: Scoring


class ScorePairs:
    """Holds the model; every call scores one range of the sample: similarity, without the scale τ."""

    def __init__(self, job: ScoresJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.inputs.dataset), Corpus.open(job.inputs.corpus)
        self.scorer = job.scoring.open()

    def __call__(self, batch: Batch) -> Batch:
        rows = RowRange.of(batch)
        table = read_parquet(self.job.output.localize(rows.part)).slice(rows.start, rows.end - rows.start)
        query_ids, query_P = np.unique(table["query_id"].to_numpy(), return_inverse=True)
        passage_ids, passage_P = np.unique(table["passage_id"].to_numpy(), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passage_ids.tolist()))
        queries = query_texts(self.data, self.job.inputs.split, query_ids.tolist())
        scores_P = self.scorer.score(queries, texts, query_P.astype(np.int64), passage_P.astype(np.int64))
        return rows.written(self.job.output, table.append_column("score", pa.array(scores_P)))
