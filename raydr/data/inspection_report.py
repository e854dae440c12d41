"""The report on a data set: counts, lengths in tokens, and findings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raydr.component import Config
from raydr.evaluation.answer_match import MatchRule

_PERCENTILES = (50, 90, 95, 99)


class Lengths(Config):
    """Lengths in tokens of a sample, special tokens and prefix included."""

    num_sampled: int
    mean: float
    percentiles: dict[str, int]
    """Length at each percentile, for example ``{"50": 93, ...}``."""

    longest: int
    max_length: int
    share_truncated: float
    """Share of texts above ``max_length``, which are cut."""


class CorpusReport(Config):
    """Report on the passages of a corpus."""

    num_passages: int
    num_duplicates: int
    """Passages with the title and text of an earlier passage, after folding case and white space."""

    num_empty_texts: int
    num_empty_titles: int
    lengths: Lengths


class AnswerReport(Config):
    """Answers in positives and negatives, over a sample of the queries with answers."""

    match: MatchRule
    num_queries: int
    num_queries_without_answer_in_positives: int
    """Queries without an answer in any positive."""

    num_negatives: int
    num_negatives_with_answer: int
    """Negatives with an answer: likely false negatives."""


class SplitReport(Config):
    """Report on the queries, judgments and negatives of a split."""

    num_queries: int
    num_judgments: int
    num_positives: int
    num_queries_without_positive: int
    most_positives: int
    num_queries_with_repeated_text: int
    """Queries with the text of another query of the split, after folding case and white space."""

    num_empty_queries: int
    num_judgments_of_missing_passages: int
    """Judgments of passages that are not in the corpus."""

    num_judgments_of_missing_queries: int
    """Judgments of queries that are not in the split."""

    missing_passages: list[str]
    num_queries_sharing_a_positive: int
    """Queries that have a positive passage in common with another query."""

    num_queries_with_unjudged_copies: int
    """Queries with a positive that has a copy in the corpus without a judgment."""

    num_negatives: int
    num_queries_with_negatives: int
    num_negatives_equal_to_a_positive: int
    """Negatives that are copies of a positive of their query, or the positive itself."""

    noise: dict[str, int]
    """Judgments and negatives with injected noise, by kind."""

    answers: AnswerReport | None
    lengths: Lengths | None
    """Lengths of the queries; None if not measured."""


class Example(Config):
    """Example of a query with the texts of a positive and a negative."""

    split: str
    query_id: str
    query: str
    answers: list[str] | None
    positive_id: str
    positive: str
    source: str
    """Provenance of the positive: file and line."""

    negative_id: str | None
    negative: str | None


class InspectionReport(Config):
    """Content of ``raydr inspect``."""

    corpus_fingerprint: str
    dataset_fingerprint: str
    corpus: CorpusReport
    splits: dict[str, SplitReport]
    num_leaked: int
    """Queries of the training split that are also in another split, word for word or nearly."""

    examples: list[Example]

    def findings(self) -> list[str]:
        """Return the findings, a sentence each, with a remedy."""
        findings = leak_findings(self.num_leaked, "the training split", "another split")
        if self.corpus.num_empty_texts:
            findings.append(f"{self.corpus.num_empty_texts:,} passages have an empty text: they can only be noise")
        if self.corpus.num_duplicates:
            share = self.corpus.num_duplicates / self.corpus.num_passages
            findings.append(
                f"{self.corpus.num_duplicates:,} passages ({share:.1%}) are copies of others: a copy of a positive is "
                "never used as its negative, but counts as a miss in recall"
            )
        findings += _truncation("passages", "passage", self.corpus.lengths)
        for split, report in self.splits.items():
            findings += split_findings(split, report)
        return findings


def leak_findings(num_leaked: int, of: str, also: str) -> list[str]:
    """Return the finding on queries in both training and evaluation, if there are any.

    Args:
        num_leaked: number of leaked queries.
        of: name of the split of these queries.
        also: name of the other split.
    """
    if not num_leaked:
        return []
    return [
        f"LEAKAGE: {num_leaked:,} queries of {of} are also queries of {also}, word for word or nearly: measures of "
        "held-out queries are too high. data.leaked_queries: leave_out leaves them out of the training split"
    ]


def split_findings(split: str, report: SplitReport) -> list[str]:
    """Return the findings of a split other than leaked queries, a sentence each."""
    missing = ", ".join(map(repr, report.missing_passages[:1]))
    counts = {
        f"judgments name passages that the corpus does not have, such as {missing}: prepare with the corpus that "
        "belongs to them": report.num_judgments_of_missing_passages,
        "judgments name queries that the split does not have": report.num_judgments_of_missing_queries,
        "queries have a copy of a positive without a judgment: a system that finds the copy scores a miss": (
            report.num_queries_with_unjudged_copies
        ),
        "queries have no positive: training leaves them out, and measures count 0": report.num_queries_without_positive,
        "queries are empty": report.num_empty_queries,
        "queries have the text of another query of the split": report.num_queries_with_repeated_text,
        "negatives are positives of their query or copies of these: training leaves them out": (
            report.num_negatives_equal_to_a_positive
        ),
    }
    findings = [f"{split}: {count:,} {what}" for what, count in counts.items() if count]
    if report.answers is not None and report.answers.num_negatives_with_answer:
        share = report.answers.num_negatives_with_answer / report.answers.num_negatives
        findings.append(
            f"{split}: {share:.1%} of the negatives contain an answer and may be false negatives: judge them"
        )
    if report.answers is not None and (unanswered := report.answers.num_queries_without_answer_in_positives):
        num_queries = report.answers.num_queries
        findings.append(f"{split}: {unanswered:,} of {num_queries:,} queries with answers have no answer in a positive")
    return findings + (_truncation(f"{split} queries", "query", report.lengths) if report.lengths else [])


def _truncation(what: str, side: str, lengths: Lengths) -> list[str]:
    if lengths.share_truncated < 0.01:
        return []
    return [
        f"{lengths.share_truncated:.1%} of the {what} are longer than model.{side}.max_length ({lengths.max_length}) "
        f"and are cut; 99 % would fit into {lengths.percentiles['99']} tokens"
    ]


def measure_lengths(lengths: NDArray[np.int64], max_length: int) -> Lengths:
    """Summarise token counts.

    >>> lengths = measure_lengths(np.array([3, 9, 30, 70]), max_length=32)
    >>> lengths.share_truncated, lengths.percentiles["50"]
    (0.25, 9)
    """
    # Without texts all figures are 0.
    known = lengths if len(lengths) else np.zeros(1, dtype=np.int64)
    levels = np.percentile(known, _PERCENTILES, method="inverted_cdf")
    return Lengths(
        num_sampled=len(lengths),
        mean=round(float(known.mean()), 2),
        percentiles={str(at): int(level) for at, level in zip(_PERCENTILES, levels, strict=True)},
        longest=int(known.max()),
        max_length=max_length,
        share_truncated=round(float((known > max_length).mean()), 6),
    )
