"""Counts and token lengths of a data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.inspection_report import AnswerReport, Example, Lengths, SplitReport
from raydr.data.leakage import find_leaks
from raydr.data.rows import fold
from raydr.data.tables import choose_queries, of_queries, pairs_of, passages_by_query, relevant
from raydr.evaluation.answer_match import AnswerMatcher, MatchRule, counts_for_answers

#: Sample of a split's queries, for token counts and answers in passages.
QUERY_SAMPLE = 2_000
_PURPOSE = "inspect"


def count_blank(column: pa.ChunkedArray) -> int:
    """Count the texts that are empty or white space."""
    return _count(pc.equal(pc.utf8_trim_whitespace(column), ""))


def count_leaks(data: Dataset, split: str, train_split: str) -> int:
    """Count a split's queries that are also in the training split, word for word or nearly.

    The training split itself is compared with all others.
    """
    others = [other for other in data.splits if (split == train_split) != (other == train_split)]
    texts = [text for other in others for text in data.queries(other)["text"].to_pylist()]
    return len(find_leaks(data.queries(split)["text"].to_pylist(), texts)) if split in data.splits and texts else 0


def count_duplicates(corpus: Corpus) -> int:
    """Count the passages with the content of an earlier passage."""
    return len(corpus) - len(np.unique(corpus.content_hashes(np.arange(len(corpus)))))


@dataclass
class SplitInspection:
    """Inspection of a split; texts are read only of passages that the split names.

    Args:
        queries, qrels, negatives: tables of the split.
        corpus: corpus of the passage ids.
        seed: seed of the sample.
    """

    queries: pa.Table
    qrels: pa.Table
    negatives: pa.Table
    corpus: Corpus
    seed: int

    @classmethod
    def of(cls, data: Dataset, corpus: Corpus, split: str, seed: int) -> SplitInspection:
        """Return the inspection of a split of a data set."""
        return cls(data.queries(split), data.judgments(split), data.negatives(split), corpus, seed)

    @cached_property
    def _positives(self) -> dict[str, list[str]]:
        return passages_by_query(relevant(self.qrels))

    @cached_property
    def _positive_pairs(self) -> list[tuple[str, str]]:
        return [(query_id, passage_id) for query_id, ids in self._positives.items() for passage_id in ids]

    def report(
        self,
        match: MatchRule,
        answer_prefixes: Sequence[str],
        sample: int = QUERY_SAMPLE,
        lengths: Callable[[list[str]], Lengths] | None = None,
    ) -> SplitReport:
        """Return the report on the split.

        Args:
            match: rule that compares answers with passages.
            answer_prefixes: prefixes of the ids of queries whose answers count; all queries if empty.
            sample: maximum of queries for token counts and answers in passages.
            lengths: function that measures the lengths of queries; None to skip it.

        Raises:
            DataError: an answer is not a valid regular expression.
        """
        query_ids = self.queries["query_id"].to_pylist()
        judged = self.qrels["passage_id"].to_pylist()
        missing = [judged[at] for at in np.flatnonzero(self.corpus.find(judged) < 0)]
        texts = Counter(map(fold, self.queries["text"].to_pylist()))
        owners = Counter(passage_id for _, passage_id in set(self._positive_pairs))
        sampled = of_queries(self.queries, sorted(choose_queries(query_ids, sample, self.seed, _PURPOSE)))
        return SplitReport(
            num_queries=len(query_ids),
            num_judgments=len(judged),
            num_positives=len(self._positive_pairs),
            num_queries_without_positive=sum(query_id not in self._positives for query_id in query_ids),
            most_positives=max((len(self._positives.get(query_id, ())) for query_id in query_ids), default=0),
            num_queries_with_repeated_text=sum(count for count in texts.values() if count > 1),
            num_empty_queries=count_blank(self.queries["text"]),
            num_judgments_of_missing_passages=len(missing),
            num_judgments_of_missing_queries=_count(
                pc.invert(pc.is_in(self.qrels["query_id"], self.queries["query_id"].combine_chunks()))
            ),
            missing_passages=list(dict.fromkeys(missing))[:5],
            num_queries_sharing_a_positive=len(
                {query_id for query_id, passage_id in self._positive_pairs if owners[passage_id] > 1}
            ),
            num_queries_with_unjudged_copies=self._count_queries_with_unjudged_copies(),
            num_negatives=len(self.negatives),
            num_queries_with_negatives=len(pc.unique(self.negatives["query_id"])),
            num_negatives_equal_to_a_positive=self._count_negatives_equal_to_a_positive(),
            noise=_count_kinds(self.qrels["noise"]) | _count_kinds(self.negatives["noise"]),
            answers=self._answers(match, answer_prefixes, sample),
            lengths=None if lengths is None else lengths(sampled["text"].to_pylist()),
        )

    def examples(self, split: str, num: int) -> list[Example]:
        """Return some queries with a positive and, if they have any, their first negative."""
        ids = [query_id for query_id in self.queries["query_id"].to_pylist() if query_id in self._positives]
        chosen = choose_queries(ids, num, self.seed, _PURPOSE)
        return [self._example(split, row) for row in of_queries(self.queries, sorted(chosen)).to_pylist()]

    def _example(self, split: str, query: dict[str, Any]) -> Example:
        query_id = query["query_id"]
        positive_id = self._positives[query_id][0]
        own = self.negatives.filter(pc.equal(self.negatives["query_id"], query_id)).sort_by("rank")
        negative_id = own["passage_id"][0].as_py() if len(own) else None
        positive, source = self._show(positive_id)
        return Example(
            split=split,
            query_id=query_id,
            query=query["text"],
            answers=query["answers"],
            positive_id=positive_id,
            positive=positive,
            source=source,
            negative_id=negative_id,
            negative=None if negative_id is None else self._show(negative_id)[0],
        )

    def _show(self, passage_id: str) -> tuple[str, str]:
        """Return title and text of a passage, and its place in the input."""
        row = int(self.corpus.find([passage_id])[0])
        if row < 0:
            return "(not in the corpus)", ""
        values = self.corpus.passages.row(row)
        place = f"{values['source']}:{values['line']}" if values["source"] else ""
        return f"{values['title']}\n{values['text']}".strip(), place

    def _count_negatives_equal_to_a_positive(self) -> int:
        positives = set(self._contents(self._positive_pairs))
        return sum(pair in positives for pair in self._contents(pairs_of(self.negatives)))

    def _count_queries_with_unjudged_copies(self) -> int:
        judged = Counter(self._contents(sorted(set(pairs_of(self.qrels)))))
        hashes, counts = np.unique(self.corpus.content_hashes(np.arange(len(self.corpus))), return_counts=True)
        positives = [pair for pair in self._contents(self._positive_pairs) if pair[1] >= 0]
        at = np.searchsorted(hashes, np.array([content for _, content in positives], dtype=np.uint64))
        copies = zip(positives, counts[at].tolist(), strict=True)
        return len({pair[0] for pair, count in copies if count > judged[pair]})

    def _contents(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
        """Return query ids with the hash of the passage's content, −1 where it is not in the corpus."""
        rows = self.corpus.find([passage_id for _, passage_id in pairs])
        hashes = self.corpus.content_hashes(np.maximum(rows, 0)).tolist()
        return [
            (query_id, content if row >= 0 else -1)
            for (query_id, _), row, content in zip(pairs, rows, hashes, strict=True)
        ]

    def _answers(self, match: MatchRule, prefixes: Sequence[str], sample: int) -> AnswerReport | None:
        answers = dict(zip(self.queries["query_id"].to_pylist(), self.queries["answers"].to_pylist(), strict=True))
        ids = [query_id for query_id in answers if counts_for_answers(query_id, answers[query_id], prefixes)]
        if not ids:
            return None
        chosen = choose_queries(ids, sample, self.seed, _PURPOSE)
        negatives = passages_by_query(of_queries(self.negatives, chosen))
        unanswered = bearing = 0
        for query_id in sorted(chosen):
            matcher = AnswerMatcher(query_id, answers[query_id], match)
            unanswered += not self._num_matching(matcher, self._positives.get(query_id, []))
            bearing += self._num_matching(matcher, negatives.get(query_id, []))
        return AnswerReport(
            match=match,
            num_queries=len(chosen),
            num_queries_without_answer_in_positives=unanswered,
            num_negatives=sum(map(len, negatives.values())),
            num_negatives_with_answer=bearing,
        )

    def _num_matching(self, matcher: AnswerMatcher, passage_ids: Sequence[str]) -> int:
        rows = self.corpus.find(passage_ids)
        return sum(matcher.matches(text) for text in self.corpus.texts(rows[rows >= 0]).texts)


def _count(mask: pa.ChunkedArray) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _count_kinds(noise: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted(Counter(noise.drop_null().to_pylist()).items()))
