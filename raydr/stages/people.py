"""The workers that look decisions of people up: which pairs, or candidates, of a part they are about."""

from __future__ import annotations

import pyarrow as pa

from raydr.data.annotations import query_texts
from raydr.data.tables import pairs_of
from raydr.noise.candidates import candidates_of
from raydr.noise.decisions import Label, digest_texts
from raydr.noise.judges.people import PeopleJudge
from raydr.noise.verdict_report import verdict_table
from raydr.stages.judge_workers import JudgeJob, JudgeNegatives, JudgeWorker, PairsWorker


class DecisionsWorker(JudgeWorker):
    """Base of both: finds the decisions that hold for what is there now."""

    def decided(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        """Verdicts on those (query, passage) pairs that people have decided, with these texts."""
        job: JudgeJob = self.job
        assert isinstance(job.judge, PeopleJudge)
        about = {(label.query_id, label.passage_id) for label in job.settled}
        known = dict(zip(zip(query_ids, passage_ids, strict=True), truth, strict=True))
        pairs = [pair for pair in known if pair in about]
        texts = self.corpus.texts(self.corpus.rows_of([passage_id for _, passage_id in pairs]))
        queries = query_texts(self.data, job.split, [query_id for query_id, _ in pairs])
        labels = [
            Label(job.judge.subject, job.split, *pair, digest_texts(*shown))
            for pair, shown in zip(pairs, zip(queries, texts.titles, texts.texts, strict=True), strict=True)
        ]
        decided_N, verdicts = job.judge.decide(labels, job.settled)
        held = [pair for pair, is_decided in zip(pairs, decided_N, strict=True) if is_decided]
        held_queries, held_passages = ([pair[at] for pair in held] for at in (0, 1))
        return verdict_table(job.judge, held_queries, held_passages, verdicts, [known[pair] for pair in held])


class DecidePairs(DecisionsWorker, PairsWorker):
    """What people have decided of annotated pairs."""

    def judge_pairs(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        return self.decided(query_ids, passage_ids, truth)


class DecideNegatives(DecisionsWorker, JudgeNegatives):
    """What people have decided of candidates."""

    def judge(self, part: pa.Table, start: int, stop: int) -> pa.Table:
        pairs = pairs_of(candidates_of(part, start, stop).table)
        query_ids, passage_ids = ([pair[at] for pair in pairs] for at in (0, 1))
        return self.decided(query_ids, passage_ids, self.truth(pairs))
