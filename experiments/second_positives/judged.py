"""What is known of the training queries before second positives are made, and what a second positive is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from raydr.data.corpus import hash_content
from raydr.data.tables import passages_by_query, relevant
from raydr.evaluation.answer_match import AnswerMatcher, MatchRule, counts_for_answers

#: How a second positive is made, each in a module of its own.
Source = Literal["recut", "answer", "renamed"]


@dataclass(frozen=True)
class Passage:
    """One passage of the corpus, or a new one."""

    passage_id: str
    title: str
    text: str


def hashes_of(passages: Sequence[Passage]) -> list[int]:
    """Hashes of titles and texts, as the corpus has them."""
    columns = [one.title for one in passages], [one.text for one in passages]
    hashes: list[int] = hash_content(*(pa.array(column, pa.string()) for column in columns)).tolist()
    return hashes


@dataclass(frozen=True)
class SecondPositive:
    """One further positive of a query, and how it was made.

    Args:
        query_id: the query.
        passage_id: the further positive.
        made: how.
        made_from: the passages that its text, or the knowledge that it is a positive, comes from; the judged one first.
        shift: words between the start of the judged passage and its own, for ``recut``; negative if it starts earlier.
    """

    query_id: str
    passage_id: str
    made: Source
    made_from: tuple[str, ...]
    shift: int | None = None

    def order(self) -> tuple[str, str]:
        """By query and passage id."""
        return self.query_id, self.passage_id


@dataclass(frozen=True)
class Judged:
    """What is known of the training queries before.

    Args:
        positives: positives (relevance > 0) of each query, sorted.
        judged: all passages that are judged for a query, also the non-relevant ones: never a second positive.
        matchers: of the queries whose answers can be looked for in a passage.
    """

    positives: Mapping[str, Sequence[str]]
    judged: Mapping[str, Collection[str]]
    matchers: Mapping[str, AnswerMatcher]

    def queries_of(self, passage_ids: Iterable[str]) -> dict[str, list[str]]:
        """The queries, sorted, that have each passage as a positive."""
        found: dict[str, list[str]] = {passage_id: [] for passage_id in passage_ids}
        for query_id, positives in sorted(self.positives.items()):
            for passage_id in found.keys() & positives:
                found[passage_id].append(query_id)
        return found


def read_judged(queries: pa.Table, qrels: pa.Table, rule: MatchRule, prefixes: Sequence[str]) -> Judged:
    """The judgments of a split by query.

    Args:
        queries: queries of the split.
        qrels: its judgments.
        rule: how answers are compared.
        prefixes: only queries whose id starts with one of these have answers to look for (yes and no are none).

    Raises:
        DataError: an answer is not a valid regular expression.
    """
    positives = passages_by_query(relevant(qrels))
    matchers = {
        row["query_id"]: AnswerMatcher(row["query_id"], row["answers"], rule)
        for row in queries.select(["query_id", "answers"]).to_pylist()
        if row["query_id"] in positives and counts_for_answers(row["query_id"], row["answers"], prefixes)
    }
    return Judged({one: sorted(ids) for one, ids in positives.items()}, passages_by_query(qrels), matchers)
