"""Workers of judges: of candidate negatives, and of annotated pairs, with a random sample or read singly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.judged import DETECTION, MEASURES, VERDICTS, Earlier
from raydr.artefacts.scoring import CandidateScores, PairReader, Scoring
from raydr.data import Corpus, Dataset
from raydr.data.dataset import known_false_negatives, never_negatives_of, positives_of, query_texts
from raydr.data.noise_injection import MISMATCHED
from raydr.data.tables import pairs_of, read_arrow, read_parquet
from raydr.distributed.parts import range_in, write_table, written
from raydr.distributed.pool import Batch
from raydr.noise.candidates import Candidates, candidates_of, mined_scores
from raydr.noise.decisions import Label
from raydr.noise.judges.base import FloatArray, Judge, SampleJudge, ScoredCandidates, SecondJudge, SplitJudge, Verdicts
from raydr.noise.margins import Margins
from raydr.noise.verdict_report import verdict_table
from raydr.store import Artifact, Folder, Part

if TYPE_CHECKING:
    from raydr.models.pair_scoring import DualEncoderScorer


@dataclass(frozen=True)
class JudgeJob:
    """Input of the workers of a judge; picklable.

    Args:
        judge: judge with its settings.
        split: judged split.
        data, corpus: judgments and passages.
        negatives: judged candidates; None for judges of pairs.
        scoring: scoring of pairs; None: the miner's scores.
        seed: seed of random samples.
        output: folder of the artefact.
        settled: whether each decided label is wrong, for judges that read decisions.
        earlier: verdicts of the earlier judge; None: all rows are judged.
    """

    judge: Judge
    split: str
    data: Dataset
    corpus: Corpus
    negatives: Artifact | None
    scoring: Scoring | None
    seed: int
    output: Folder
    settled: Mapping[Label, bool] = field(default_factory=dict)
    earlier: Earlier | None = None


class JudgeWorker(ABC):
    """Actor that holds the model; each call judges (or measures) a range and writes it.

    Args:
        job: input of the workers.
    """

    def __init__(self, job: JudgeJob) -> None:
        self.job = job
        self.data, self.corpus = job.data, job.corpus
        self.scorer = job.scoring.open() if job.scoring is not None else None
        #: P(wrong label) of the doubtful pairs of the current part; None: all rows are judged.
        self.suspected: dict[tuple[str, str], float] | None = None
        self._suspected_of: int | None = None

    @property
    def judged(self) -> Artifact:
        """Artefact of the judged rows."""
        return self.job.negatives or self.data.artifact

    def __call__(self, batch: Batch) -> Batch:
        rows = range_in(batch)
        earlier, rule = self.job.earlier, self.job.judge
        if earlier is not None and rows.at != self._suspected_of:
            assert isinstance(rule, SecondJudge)
            self.suspected, self._suspected_of = earlier.suspected(rule, rows.at), rows.at
        table = self.judge(read_arrow(self.judged.local(rows.part)), rows.start, rows.stop)
        return written(batch, self.job.output, table)

    def suspicion(self, pairs: Iterable[tuple[str, str]]) -> FloatArray:
        """Return P(wrong label) of doubtful pairs, by the earlier judge."""
        assert self.suspected is not None
        return np.array([self.suspected[pair] for pair in pairs], dtype=np.float64)

    @abstractmethod
    def judge(self, part: pa.Table, start: int, stop: int) -> pa.Table:
        """Return verdicts (or measures) on rows of a part."""


class JudgeNegatives(JudgeWorker):
    """Judges candidates by a model's scores, or by the miner's."""

    def judge(self, part: pa.Table, start: int, stop: int) -> pa.Table:
        candidates, rule = candidates_of(part, start, stop), self.job.judge
        to_judge = candidates.undecided()
        if self.suspected is not None:
            to_judge = to_judge.among(self.suspected)
        scores_M, positive_Q, likeness_M = self._scores(to_judge, candidates)
        if positive_Q is not None:
            # A query without a positive's score gets no verdict; the driver counts these.
            known_Q = np.isfinite(positive_Q)
            known_M = known_Q[to_judge.query_M]
            scores_M, to_judge, positive_Q = scores_M[known_M], to_judge.only(known_Q), positive_Q[known_Q]
            likeness_M = None if likeness_M is None else likeness_M[known_M]
        verdicts = rule.judge(ScoredCandidates(scores_M, to_judge.offsets, positive_Q, likeness_M))
        query_ids, passage_ids = (to_judge.table[name].to_pylist() for name in ("query_id", "passage_id"))
        truth = self.truth(list(zip(query_ids, passage_ids, strict=True)))
        return verdict_table(rule, query_ids, passage_ids, verdicts, truth)

    def truth(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Return whether each candidate is a known false negative; null without injected noise."""
        wrong = self._false_negatives
        return [pair in wrong if wrong else None for pair in pairs]

    def _scores(self, to_judge: Candidates, candidates: Candidates) -> CandidateScores:
        if self.job.judge.reads == "earlier":
            return CandidateScores(self.suspicion(pairs_of(to_judge.table)))
        if self.scorer is None:
            return CandidateScores(*mined_scores(to_judge, self.job.judge.name))
        return self._score(to_judge, candidates.relabelled())

    def _score(self, to_judge: Candidates, relabelled: dict[str, list[str]]) -> CandidateScores:
        """Score candidates by the model; a cross-encoder scores no positives."""
        assert self.job.scoring is not None
        assert self.scorer is not None
        reader = PairReader(self.data, self.corpus, self.job.split, self.scorer)
        if self.job.scoring.is_cross_encoder:
            return CandidateScores(reader.candidates(to_judge, {}).scores_M)
        judged = positives_of(self.data, self.job.split, to_judge.query_ids)
        known = {
            query_id: [*judged.get(query_id, []), *relabelled.get(query_id, [])] for query_id in to_judge.query_ids
        }
        return reader.candidates(to_judge, known, self.job.judge.reads_likeness)

    @cached_property
    def _false_negatives(self) -> set[tuple[str, str]]:
        return known_false_negatives(self.data, self.job.split)


class PairsWorker(JudgeWorker):
    """Judges annotated pairs."""

    def judge(self, part: pa.Table, start: int, stop: int) -> pa.Table:
        rows = part.slice(start, stop - start)
        pairs = rows.filter(pc.greater(rows["relevance"], 0))
        if self.suspected is not None:
            pairs = pairs.filter(pa.array([pair in self.suspected for pair in pairs_of(pairs)], pa.bool_()))
        truth = [noise == MISMATCHED if self._truth_is_known else None for noise in pairs["noise"].to_pylist()]
        return self.judge_pairs(pairs["query_id"].to_pylist(), pairs["passage_id"].to_pylist(), truth)

    @abstractmethod
    def judge_pairs(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        """Return verdicts (or measures) on the pairs."""

    def verdicts(
        self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None], blocks: Iterable[ScoredCandidates]
    ) -> pa.Table:
        """Return verdicts, or the measures of judges that decide on all pairs at once."""
        judge = self.job.judge
        if isinstance(judge, SplitJudge):
            measured = [judge.measure(block) for block in blocks]
            columns = {
                "query_id": pa.array(query_ids, pa.string()),
                "passage_id": pa.array(passage_ids, pa.string()),
                **{name: pa.array(_concatenate([part[name] for part in measured])) for name in judge.measures},
                "truth": pa.array(truth, pa.bool_()),
            }
            return pa.table(columns)
        verdicts = [judge.judge(block) for block in blocks]
        together = Verdicts(
            _concatenate([part.score for part in verdicts]),
            np.concatenate([np.zeros(0, dtype="<U1"), *(part.action for part in verdicts)]),
            _concatenate([part.weight for part in verdicts]),
        )
        return verdict_table(judge, query_ids, passage_ids, together, truth)

    @cached_property
    def _truth_is_known(self) -> bool:
        noise = self.data.qrels(self.job.split)["noise"]
        return bool(noise.null_count < len(noise))


class ReadPairs(PairsWorker):
    """Judges pairs by a model that reads query and passage together, or by the earlier judge."""

    def judge_pairs(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        if self.scorer is None:
            scores_M = self.suspicion(zip(query_ids, passage_ids, strict=True))
        else:
            queries = query_texts(self.data, self.job.split, query_ids)
            passages = self.corpus.texts(self.corpus.rows_of(passage_ids))
            each = np.arange(len(query_ids))
            scores_M = self.scorer.score(queries, passages, each, each)
        return self.verdicts(query_ids, passage_ids, truth, [ScoredCandidates(scores_M, np.arange(len(query_ids) + 1))])


class JudgePairs(PairsWorker):
    """Judges pairs against a random sample of passages, whose vectors all queries share."""

    def __init__(self, job: JudgeJob) -> None:
        from raydr.noise.random_sample import SampleScorer, draw_sample

        super().__init__(job)
        assert isinstance(job.judge, SampleJudge)
        sample = draw_sample(self.data, self.corpus, job.split, job.judge, job.seed)
        self.sample = SampleScorer(cast("DualEncoderScorer", self.scorer), self.corpus, sample)

    def judge_pairs(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        return self.verdicts(query_ids, passage_ids, truth, self._blocks(query_ids, passage_ids))

    def _blocks(self, query_ids: list[str], passage_ids: list[str]) -> Iterator[ScoredCandidates]:
        unique = list(dict.fromkeys(query_ids))
        texts = dict(zip(unique, query_texts(self.data, self.job.split, unique), strict=True))
        return self.sample.score(query_ids, passage_ids, texts, never_negatives_of(self.data, self.job.split, unique))


def decide_pairs(
    judge: SplitJudge, output: Folder, margins: Folder | None, names: list[str]
) -> tuple[dict[str, Part], dict[str, Any]]:
    """Decide on the measured pairs of a split; write verdicts and their basis.

    Args:
        judge: judge with its settings.
        output: folder of the artefact.
        margins: cross-fitted margins; None: the artefact's own measures.
        names: parts with measures.

    Returns:
        The parts with verdicts and with the judge's columns, and the basis of the decision.
    """
    tables = [read_parquet((output if margins is None else margins).localize(name)) for name in names]
    if margins is not None:
        decision = judge.decide_margins(Margins.of(pa.concat_tables(tables)))
    else:
        together = {name: _concatenate([table[name].to_numpy() for table in tables]) for name in judge.measures}
        decision = judge.decide(together)
    verdicts = decision.verdicts
    columns = dict(decision.columns)
    if decision.probability is not None:
        columns["probability"] = decision.probability
    parts, start = {}, 0
    for name, table in zip(names, tables, strict=True):
        mine = slice(start, start + len(table))
        start += len(table)
        query_ids, passage_ids, truth = (table[column].to_pylist() for column in ("query_id", "passage_id", "truth"))
        decided = Verdicts(verdicts.score[mine], verdicts.action[mine], verdicts.weight[mine])
        judged = verdict_table(judge, query_ids, passage_ids, decided, truth)
        kept = table.select(["query_id", "passage_id", "truth"])
        for column, values in columns.items():
            kept = kept.append_column(column, pa.array(values[mine]))
        for folder, rows in ((VERDICTS, judged), (DETECTION, kept)):
            part = name.replace(f"{MEASURES}/", f"{folder}/", 1)
            parts[part] = write_table(output, part, rows)
    return parts, decision.facts


def _concatenate(arrays: list[FloatArray]) -> FloatArray:
    return np.concatenate([np.zeros(0), *arrays])
