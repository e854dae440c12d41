"""Looking at a data set: counting, and measuring lengths in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.inspection_report import AnswerReport, Example, SplitReport, measure_lengths
from raydr.data.subset import choose_queries
from raydr.evaluation.answer_match import AnswerMatcher, MatchRule

#: Titles (None for queries) and texts to numbers of tokens, special ones and prefix included, before truncation.
TokenCounter = Callable[[list[str] | None, list[str]], NDArray[np.int64]]

_PURPOSE = "inspect"


def count_blank(column: pa.ChunkedArray) -> int:
    """Texts of nothing but white space."""
    return int(pc.sum(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0)).as_py() or 0)


def count_duplicates(hashes: NDArray[np.uint64]) -> int:
    """How many passages have the content of an earlier one.

    >>> count_duplicates(np.array([5, 6, 5, 5], dtype=np.uint64))
    2
    """
    return len(hashes) - len(np.unique(hashes))


class SplitInspection:
    """Looks at one split; the corpus is only touched where the split names it.

    Args:
        queries, qrels, negatives: tables of the split.
        corpus: the corpus that the ids refer to.
        seed: decides with the query id which queries are sampled.
    """

    def __init__(self, queries: pa.Table, qrels: pa.Table, negatives: pa.Table, corpus: Corpus, seed: int) -> None:
        self.queries = queries
        self.qrels = qrels
        self.negatives = negatives
        self.corpus = corpus
        self.seed = seed
        self._positives: dict[str, list[str]] = {}
        for query_id, passage_id, relevance in zip(
            *(qrels[name].to_pylist() for name in ("query_id", "passage_id", "relevance")), strict=True
        ):
            if relevance > 0:
                self._positives.setdefault(query_id, []).append(passage_id)

    def report(
        self,
        count_tokens: TokenCounter,
        max_length: int,
        match: MatchRule,
        answer_prefixes: Sequence[str],
        sample: int,
    ) -> SplitReport:
        """Count and measure.

        Args:
            count_tokens: gives the tokens of queries.
            max_length: the configured length of queries.
            match: how answers are compared with passages.
            answer_prefixes: answers count for queries whose id starts with one of these; for all if empty.
            sample: queries whose tokens are counted, and whose passages are searched for answers, at most.

        Raises:
            DataError: an answer is not a valid regular expression.
        """
        query_ids = self.queries["query_id"].to_pylist()
        known = set(query_ids)
        judged = self.qrels["passage_id"].to_pylist()
        missing = [judged[at] for at in np.flatnonzero(self.corpus.find(judged) < 0)]
        texts = Counter(" ".join(text.lower().split()) for text in self.queries["text"].to_pylist())
        owners = Counter(one for query_id in self._positives for one in set(self._positives[query_id]))
        per_query = [len(self._positives.get(query_id, [])) for query_id in query_ids]
        sampled = choose_queries(query_ids, sample, self.seed, _PURPOSE)
        chosen = self.queries.filter(pc.is_in(self.queries["query_id"], pa.array(sorted(sampled), pa.string())))
        return SplitReport(
            num_queries=len(query_ids),
            num_judgments=len(judged),
            num_positives=sum(map(len, self._positives.values())),
            num_queries_without_positive=per_query.count(0),
            most_positives=max(per_query, default=0),
            num_queries_with_repeated_text=sum(count for count in texts.values() if count > 1),
            num_empty_queries=count_blank(self.queries["text"]),
            num_judgments_of_missing_passages=len(missing),
            num_judgments_of_missing_queries=sum(one not in known for one in self.qrels["query_id"].to_pylist()),
            missing_passages=list(dict.fromkeys(missing))[:5],
            num_queries_sharing_a_positive=sum(
                any(owners[one] > 1 for one in passage_ids) for passage_ids in self._positives.values()
            ),
            num_negatives=len(self.negatives),
            num_queries_with_negatives=len(pc.unique(self.negatives["query_id"])),
            num_negatives_equal_to_a_positive=self._count_negatives_equal_to_a_positive(),
            noise=_count_kinds(self.qrels["noise"]) | _count_kinds(self.negatives["noise"]),
            answers=self._answers(match, answer_prefixes, sample),
            lengths=measure_lengths(count_tokens(None, chosen["text"].to_pylist()), max_length),
        )

    def examples(self, split: str, num: int) -> list[Example]:
        """Some queries with a positive and, if they have any, their first negative."""
        ids = [query_id for query_id in self.queries["query_id"].to_pylist() if query_id in self._positives]
        chosen = choose_queries(ids, num, self.seed, _PURPOSE)
        rows = self.queries.filter(pc.is_in(self.queries["query_id"], pa.array(sorted(chosen), pa.string())))
        return [self._example(split, row) for row in rows.to_pylist()]

    def _example(self, split: str, query: dict[str, object]) -> Example:
        query_id = str(query["query_id"])
        positive_id = self._positives[query_id][0]
        positive, source = self._show(positive_id)
        mine = self.negatives.filter(pc.equal(self.negatives["query_id"], query_id)).sort_by("rank")
        negative_id = mine["passage_id"][0].as_py() if len(mine) else None
        return Example(
            split=split,
            query_id=query_id,
            query=query["text"],
            answers=query["answers"],
            positive_id=positive_id,
            positive=positive,
            source=source,
            negative_id=negative_id,
            negative=self._show(negative_id)[0] if negative_id is not None else None,
        )

    def _show(self, passage_id: str) -> tuple[str, str]:
        """Title and text of a passage, and where it was read."""
        row = int(self.corpus.find([passage_id])[0])
        if row < 0:
            return "(not in the corpus)", ""
        part = int(np.searchsorted(self.corpus.starts, row, side="right")) - 1
        values = self.corpus.part(part).slice(row - int(self.corpus.starts[part]), 1).to_pylist()[0]
        place = f"{values['source']}:{values['line']}" if values["source"] else ""
        return f"{values['title']}\n{values['text']}".strip(), place

    def _count_negatives_equal_to_a_positive(self) -> int:
        owners = self.negatives["query_id"].to_pylist()
        hashes = self._content(self.negatives["passage_id"].to_pylist())
        wanted = set(owners)
        positives = [(one, at) for one in self._positives if one in wanted for at in self._positives[one]]
        pairs = {
            (owner, content)
            for (owner, _), content in zip(positives, self._content([at for _, at in positives]), strict=True)
        }
        return sum(pair in pairs for pair in zip(owners, hashes, strict=True))

    def _content(self, passage_ids: list[str]) -> list[int]:
        """Content hashes; −1 for passages that are not in the corpus."""
        rows = self.corpus.find(passage_ids)
        hashes: list[int] = self.corpus.content_hashes(np.maximum(rows, 0)).tolist()
        return [content if row >= 0 else -1 for row, content in zip(rows, hashes, strict=True)]

    def _answers(self, match: MatchRule, prefixes: Sequence[str], sample: int) -> AnswerReport | None:
        with_answers = self.queries.filter(
            pc.greater(pc.fill_null(pc.list_value_length(self.queries["answers"]), 0), 0)
        )
        ids = [one for one in with_answers["query_id"].to_pylist() if not prefixes or one.startswith(tuple(prefixes))]
        if not ids:
            return None
        chosen = choose_queries(ids, sample, self.seed, _PURPOSE)
        negatives: dict[str, list[str]] = {query_id: [] for query_id in chosen}
        for query_id, passage_id in zip(
            self.negatives["query_id"].to_pylist(), self.negatives["passage_id"].to_pylist(), strict=True
        ):
            if query_id in negatives:
                negatives[query_id].append(passage_id)
        unanswered = num_negatives = bearing = 0
        for row in with_answers.to_pylist():
            if row["query_id"] in chosen:
                matcher = AnswerMatcher(row["query_id"], row["answers"], match)
                unanswered += not self._num_matching(matcher, self._positives.get(row["query_id"], []))
                num_negatives += len(negatives[row["query_id"]])
                bearing += self._num_matching(matcher, negatives[row["query_id"]])
        return AnswerReport(
            match=match,
            num_queries=len(chosen),
            num_queries_without_answer_in_positives=unanswered,
            num_negatives=num_negatives,
            num_negatives_with_answer=bearing,
        )

    def _num_matching(self, matcher: AnswerMatcher, passage_ids: Sequence[str]) -> int:
        rows = self.corpus.find(passage_ids)
        return sum(matcher.matches(text) for text in self.corpus.texts(rows[rows >= 0]).texts)


def _count_kinds(noise: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted(Counter(noise.drop_null().to_pylist()).items()))
