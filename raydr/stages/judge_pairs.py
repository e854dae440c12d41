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
from numpy.typing import NDArray

from raydr.data.annotations import positives_of, query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import MISMATCHED
from raydr.data.schema import read_arrow, read_parquet, write_parquet
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.judges.base import FloatArray, Judge, SampleJudge, ScoredCandidates, SplitJudge, Verdicts
from raydr.noise.verdict_report import verdict_table
from raydr.seeding import stable_hash64
from raydr.stages.pool import Batch
from raydr.stages.row_ranges import RowRange
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Part, write_and_record
from raydr.store.folder import Folder

#: Folders of parts.
VERDICTS, MEASURES, DETECTION = "verdicts", "measures", "detection"
#: Scores held at once.
_BLOCK_SCORES = 4_000_000


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


@dataclass(frozen=True)
class Sample:
    """The random passages: their vectors (S, D), and hashes of their contents."""

    vectors: NDArray[np.float32]
    content_hashes: NDArray[np.uint64]


def draw_sample(data: Dataset, corpus: Corpus, split: str, judge: SampleJudge, seed: int) -> NDArray[np.int64]:
    """Corpus rows of the sample, a function of the seed, the judge and the data; the same for every worker."""
    rng = np.random.default_rng(stable_hash64("judge sample", judge.name, seed))
    pool = np.arange(len(corpus))
    if judge.sample == "positives":
        qrels = data.qrels(split)
        relevant = qrels.filter(pc.greater(qrels["relevance"], 0))
        pool = np.sort(corpus.rows_of(sorted(set(relevant["passage_id"].to_pylist()))))
    return np.sort(rng.choice(pool, size=min(judge.num_random, len(pool)), replace=False))


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
        self.scorer, self.rule = scorer, job.judge
        rows = draw_sample(self.data, self.corpus, job.split, job.judge, job.seed)
        texts = self.corpus.texts(rows)
        vectors = scorer.encode("passage", texts.titles, texts.texts)
        self.sample = Sample(vectors, self.corpus.content_hashes(rows))

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
        """Scores of the pairs and of their samples, a block at a time: all of a unit's would not fit."""
        if not query_ids:
            return
        unique = list(dict.fromkeys(query_ids))
        position = {query_id: at for at, query_id in enumerate(unique)}
        query_N = np.array([position[query_id] for query_id in query_ids])
        vectors_QD = self.scorer.encode("query", None, query_texts(self.data, self.job.split, unique))
        rows = self.corpus.rows_of(passage_ids)
        texts = self.corpus.texts(rows)
        positive_ND = self.scorer.encode("passage", texts.titles, texts.texts)
        known = positives_of(self.data, self.job.split, unique)
        step = max(1, _BLOCK_SCORES // len(self.sample.vectors))
        for start in range(0, len(query_ids), step):
            pairs = slice(start, start + step)
            query_BD = vectors_QD[query_N[pairs]]
            allowed_BS = np.stack([self._allowed(known[query_id]) for query_id in query_ids[pairs]])
            random_BS = self.scorer.scale * (query_BD @ self.sample.vectors.T).astype(np.float64)
            positive_B = self.scorer.scale * np.einsum("bd,bd->b", query_BD, positive_ND[pairs]).astype(np.float64)
            offsets = np.concatenate([[0], np.cumsum(allowed_BS.sum(axis=1))]).astype(np.int64)
            yield ScoredCandidates(random_BS[allowed_BS], offsets, positive_B)

    def _allowed(self, positives: list[str]) -> NDArray[np.bool_]:
        """Passages of the sample that are neither a known positive of the query nor a copy of one."""
        hashes = self.corpus.content_hashes(self.corpus.rows_of(positives))
        return ~np.isin(self.sample.content_hashes, hashes)


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
