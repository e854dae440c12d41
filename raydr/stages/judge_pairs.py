"""The worker that judges annotated pairs against a random sample of passages, which all queries share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.annotations import positives_of, query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import MISMATCHED
from raydr.data.schema import read_arrow, read_parquet, write_parquet
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.judges.base import FloatArray, Judge, SampleJudge, ScoredCandidates, SplitJudge, Verdicts
from raydr.noise.random_sample import SampleScorer, draw_sample
from raydr.noise.verdict_report import verdict_table
from raydr.stages.pool import Batch
from raydr.stages.row_ranges import RowRange
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Part, write_and_record
from raydr.store.folder import Folder

#: Folders of parts.
VERDICTS, MEASURES, DETECTION = "verdicts", "measures", "detection"


@dataclass(frozen=True)
class PairsJob:
    """What every worker of one judging knows; small and picklable."""

    judge: Judge
    split: str
    dataset: Folder
    corpus: Folder
    output: Folder
    scoring: Scoring
    seed: int


class PairsWorker(ABC):
    """An actor whose every call judges (or measures) one range of the judgments.

    Args:
        job: what every worker knows.
    """

    def __init__(self, job: PairsJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
        noise = self.data.qrels(job.split)["noise"]
        self.truth_is_known = noise.null_count < len(noise)

    def __call__(self, batch: Batch) -> Batch:
        mine = RowRange.of(batch)
        rows = read_arrow(self.data.artifact.local(mine.part)).slice(mine.start, mine.end - mine.start)
        pairs = rows.filter(pc.greater(rows["relevance"], 0))
        truth = [noise == MISMATCHED if self.truth_is_known else None for noise in pairs["noise"].to_pylist()]
        table = self.judge(pairs["query_id"].to_pylist(), pairs["passage_id"].to_pylist(), truth)
        return mine.written(self.job.output, table)

    @abstractmethod
    def judge(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        """Verdicts (or measures) on the pairs."""


class JudgePairs(PairsWorker):
    """Holds the model and the vectors of a random sample that all queries share."""

    def __init__(self, job: PairsJob) -> None:
        super().__init__(job)
        scorer = job.scoring.open()
        assert isinstance(scorer, DualEncoderScorer)
        assert isinstance(job.judge, SampleJudge)
        self.rule = job.judge
        self.sample = SampleScorer(
            scorer, self.corpus, draw_sample(self.data, self.corpus, job.split, job.judge, job.seed)
        )

    def judge(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        judge = self.rule
        if isinstance(judge, SplitJudge):
            found = [judge.measure(block) for block in self._blocks(query_ids, passage_ids)]
            columns = {
                "query_id": pa.array(query_ids, pa.string()),
                "passage_id": pa.array(passage_ids, pa.string()),
                **{name: pa.array(_concatenate([one[name] for one in found])) for name in judge.measures},
                "truth": pa.array(truth, pa.bool_()),
            }
            return pa.table(columns)
        verdicts = [judge.judge(block) for block in self._blocks(query_ids, passage_ids)]
        together = Verdicts(
            _concatenate([one.score for one in verdicts]),
            np.concatenate([np.zeros(0, dtype="<U1"), *(one.action for one in verdicts)]),
            _concatenate([one.weight for one in verdicts]),
        )
        return verdict_table(judge, query_ids, passage_ids, together, truth)

    def _blocks(self, query_ids: list[str], passage_ids: list[str]) -> Iterator[ScoredCandidates]:
        unique = list(dict.fromkeys(query_ids))
        texts = dict(zip(unique, query_texts(self.data, self.job.split, unique), strict=True))
        return self.sample.score(query_ids, passage_ids, texts, positives_of(self.data, self.job.split, unique))


def decide_pairs(judge: SplitJudge, output: Folder, names: list[str]) -> tuple[dict[str, Part], dict[str, Any]]:
    """Decide on the measured pairs of a whole split, write verdicts and what they rest on.

    Args:
        judge: the judge.
        output: the artefact, with the measures.
        names: parts with measures.

    Returns:
        The parts with verdicts and with the judge's columns, and what the decision rests on.
    """
    tables = [read_parquet(output.localize(name)) for name in names]
    decision = judge.decide(
        {name: _concatenate([table[name].to_numpy() for table in tables]) for name in judge.measures}
    )
    verdicts = decision.verdicts
    columns = dict(decision.columns)
    if decision.probability is not None:
        columns["probability"] = decision.probability
    parts, start = {}, 0
    for name, table in zip(names, tables, strict=True):
        mine = slice(start, start + len(table))
        start += len(table)
        judged = verdict_table(
            judge,
            table["query_id"].to_pylist(),
            table["passage_id"].to_pylist(),
            Verdicts(verdicts.score[mine], verdicts.action[mine], verdicts.weight[mine]),
            table["truth"].to_pylist(),
        )
        kept = table.select(["query_id", "passage_id", "truth"])
        for column, values in columns.items():
            kept = kept.append_column(column, pa.array(values[mine]))
        for folder, rows in ((VERDICTS, judged), (DETECTION, kept)):
            written = name.replace(f"{MEASURES}/", f"{folder}/", 1)
            parts[written] = write_and_record(output, written, len(rows), partial(write_parquet, rows))
    return parts, decision.facts


def _concatenate(arrays: list[FloatArray]) -> FloatArray:
    return np.concatenate([np.zeros(0), *arrays])
