"""Decisions of people: workers that look up decided labels, and the drops that they warrant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from raydr.artefacts.judge_workers import JudgeJob, JudgeNegatives, JudgeWorker, PairsWorker
from raydr.artefacts.judged import Earlier
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import pairs_of, places_of
from raydr.noise.candidates import candidates_of
from raydr.noise.decisions import Label, Subject, digest_texts
from raydr.noise.judges.calibrated import CalibratedJudge
from raydr.noise.judges.people import PeopleJudge
from raydr.noise.verdict_report import verdict_table
from raydr.noise.warranty import SuspectSets, lots_of


def labels_of(
    data: Dataset, corpus: Corpus, subject: Subject, split: str, pairs: Sequence[tuple[str, str]]
) -> list[Label]:
    """Return the labels of (query, passage) pairs with their current texts."""
    texts = corpus.texts(corpus.rows_of([passage_id for _, passage_id in pairs]))
    queries = query_texts(data, split, [query_id for query_id, _ in pairs])
    shown = zip(queries, texts.titles, texts.texts, strict=True)
    return [Label(subject, split, *pair, digest_texts(*of_pair)) for pair, of_pair in zip(pairs, shown, strict=True)]


def current_rows(
    table: pa.Table, data: Dataset, corpus: Corpus, subject: Subject, split: str, decided: Collection[Label]
) -> dict[Label, int]:
    """Return the row of each decided label whose texts are still those that were read.

    Args:
        table: verdicts with the columns query_id and passage_id.
        data, corpus: current texts.
        subject, split: subject and split of the verdicts.
        decided: labels with decisions.
    """
    place = places_of(table, {(label.query_id, label.passage_id) for label in decided})
    labels = labels_of(data, corpus, subject, split, list(place))
    return {label: row for label, row in zip(labels, place.values(), strict=True) if label in decided}


def warrant(
    earlier: Earlier, data: Dataset, corpus: Corpus, judge: CalibratedJudge, settled: Mapping[Label, bool]
) -> tuple[Earlier, dict[str, Any]]:
    """Set the threshold of an earlier judge to what decisions warrant; return it and the basis.

    Args:
        earlier: verdicts of the earlier judge.
        data, corpus: texts, which must equal those of the decisions.
        judge: judge with the bound.
        settled: whether each label is wrong.
    """
    tables, evidence_N = earlier.read()
    together = pa.concat_tables(tables.values())
    rows = current_rows(together, data, corpus, judge.subject, earlier.split, settled)
    sets = SuspectSets(evidence_N, lots_of(judge.subject, together), judge.max_right_dropped, judge.confidence)
    warranty = sets.warrant([*rows.values()], [not settled[label] for label in rows])
    noun = "pairs" if judge.subject == "pairs" else "candidates"
    return replace(earlier, threshold=warranty.threshold), {
        "num_decided": warranty.num_decided,
        "num_drops": warranty.num_drops,
        "threshold": warranty.threshold,
        "warranty": warranty.sentence(noun),
    }


class DecisionsWorker(JudgeWorker):
    """Base of both workers: selects decisions that match the current texts."""

    def decided(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        """Return verdicts on (query, passage) pairs with a decision on their current texts."""
        job: JudgeJob = self.job
        assert isinstance(job.judge, PeopleJudge)
        about = {(label.query_id, label.passage_id) for label in job.settled}
        known = dict(zip(zip(query_ids, passage_ids, strict=True), truth, strict=True))
        pairs = [pair for pair in known if pair in about]
        labels = labels_of(self.data, self.corpus, job.judge.subject, job.split, pairs)
        decided_N, verdicts = job.judge.decide(labels, job.settled)
        held = [pair for pair, is_decided in zip(pairs, decided_N, strict=True) if is_decided]
        held_queries, held_passages = ([pair[at] for pair in held] for at in (0, 1))
        return verdict_table(job.judge, held_queries, held_passages, verdicts, [known[pair] for pair in held])


class DecidePairs(DecisionsWorker, PairsWorker):
    """Worker for decisions on annotated pairs."""

    def judge_pairs(self, query_ids: list[str], passage_ids: list[str], truth: list[bool | None]) -> pa.Table:
        return self.decided(query_ids, passage_ids, truth)


class DecideNegatives(DecisionsWorker, JudgeNegatives):
    """Worker for decisions on candidates."""

    def judge(self, part: pa.Table, start: int, stop: int) -> pa.Table:
        pairs = pairs_of(candidates_of(part, start, stop).table)
        query_ids, passage_ids = ([pair[at] for pair in pairs] for at in (0, 1))
        return self.decided(query_ids, passage_ids, self.truth(pairs))
