"""Scores of a sample of queries with their positives, hard negatives and random passages, for an audit's pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raydr.data.annotations import query_texts
from raydr.data.schema import read_parquet
from raydr.noise.passage_kinds import draw_kinds
from raydr.stages.audit_parts import AuditInputs
from raydr.stages.parts import write_table
from raydr.stages.pool import Batch
from raydr.stages.row_ranges import range_in, written
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Part
from raydr.store.folder import Folder

SAMPLE = "sample.parquet"


def draw_pairs(
    inputs: AuditInputs, seed: int, output: Folder, num_queries: int, num_candidates: int, num_random: int
) -> Part:
    """Draw queries and their passages, and write them as (query_id, passage_id, kind); see :func:`draw_kinds`."""
    data, mined, sizes = inputs.data, inputs.negatives, (num_queries, num_candidates, num_random)
    return write_table(output, SAMPLE, draw_kinds(data, inputs.corpus, mined, inputs.split, seed, *sizes))


@dataclass(frozen=True)
class ScoresJob:
    """What every worker of one scoring knows; picklable."""

    inputs: AuditInputs
    output: Folder
    scoring: Scoring


class ScorePairs:
    """Holds the model; every call scores one range of the sample: similarity, without the scale τ."""

    def __init__(self, job: ScoresJob) -> None:
        self.job = job
        self.scorer = job.scoring.open()

    def __call__(self, batch: Batch) -> Batch:
        rows, inputs = range_in(batch), self.job.inputs
        table = rows.of(read_parquet(self.job.output.localize(rows.part)))
        query_ids, query_P = np.unique(table["query_id"].to_numpy(), return_inverse=True)
        passage_ids, passage_P = np.unique(table["passage_id"].to_numpy(), return_inverse=True)
        texts = inputs.corpus.texts(inputs.corpus.rows_of(passage_ids.tolist()))
        queries = query_texts(inputs.data, inputs.split, query_ids.tolist())
        scores_P = self.scorer.score(queries, texts, query_P.astype(np.int64), passage_P.astype(np.int64))
        return written(batch, self.job.output, table.append_column("score", pa.array(scores_P)))
