"""Scores of a sample of queries with their positives, hard negatives and random passages, for an audit's pictures."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from raydr.data.schema import read_parquet
from raydr.noise.passage_kinds import draw_kinds
from raydr.stages.audit_parts import AuditInputs
from raydr.stages.pair_reader import PairReader
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
        inputs = job.inputs
        self.reader = PairReader(inputs.data, inputs.corpus, inputs.split, job.scoring.open())

    def __call__(self, batch: Batch) -> Batch:
        rows = range_in(batch)
        table = rows.of(read_parquet(self.job.output.localize(rows.part)))
        scores_P = self.reader.scores(table["query_id"].to_pylist(), table["passage_id"].to_pylist())
        return written(batch, self.job.output, table.append_column("score", pa.array(scores_P)))
