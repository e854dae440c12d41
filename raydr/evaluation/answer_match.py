"""Answer-in-passage accuracy, the "top-k accuracy" of the DPR papers.

A passage is a hit if it contains one of the query's answers; accuracy@k is the share of queries with a hit
among the first k passages. This is not recall against judgments: an unjudged passage that contains the answer
counts, also if it contains it by chance.

The rule is DPR's ``has_answer``: with ``string`` the answer's tokens, lower-cased after Unicode NFD, must occur
consecutively among the passage's tokens; with ``regex`` the answer is a pattern searched in the passage's text. Titles
are ignored.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

import regex

from raydr.errors import DataError

MatchRule = Literal["string", "regex"]

#: DPR's SimpleTokenizer: runs of letters, digits and marks, or any other single visible character.
_TOKEN = regex.compile(
    r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", flags=regex.IGNORECASE + regex.UNICODE + regex.MULTILINE
)


def answer_label(cutoff: int) -> str:
    """Return the display name of the accuracy at a cut-off.

    >>> answer_label(20)
    'accuracy@20 (answer)'
    """
    return f"accuracy@{cutoff} (answer)"


def tokenize(text: str) -> list[str]:
    """Return NFD-normalised, lower-cased tokens.

    >>> tokenize("The U.S. in 1999")
    ['the', 'u', '.', 's', '.', 'in', '1999']
    """
    normal = unicodedata.normalize("NFD", text)
    return [match.group().lower() for match in _TOKEN.finditer(normal)]


class AnswerMatcher:
    """Test of passages for an answer of a query.

    Args:
        query_id: query id, for messages.
        answers: answer strings or patterns; an answer without any token never matches.
        rule: rule of comparison.

    Raises:
        DataError: an answer is not a valid regular expression; the message has the query's id.

    >>> AnswerMatcher("q1", ["New York"], "string").matches("In new york City.")
    True
    >>> AnswerMatcher("q1", [r"19\\d\\d"], "regex").matches("in 1987")
    True
    """

    def __init__(self, query_id: str, answers: Sequence[str], rule: MatchRule) -> None:
        self.rule = rule
        self._tokens: list[list[str]] = []
        self._patterns: list[regex.Pattern[str]] = []
        for answer in answers:
            if rule == "string":
                tokens = tokenize(answer)
                if tokens:
                    self._tokens.append(tokens)
            else:
                self._patterns.append(_compile(query_id, answer))

    def matches(self, text: str) -> bool:
        if self.rule == "string":
            tokens = tokenize(text)
            return any(_contains(tokens, answer) for answer in self._tokens)
        normal = unicodedata.normalize("NFD", text)
        return any(pattern.search(normal) is not None for pattern in self._patterns)

    def first_hit(self, texts: Sequence[str]) -> int | None:
        """Return the rank, from 1, of the first matching text; None without a match."""
        for rank, text in enumerate(texts, start=1):
            if self.matches(text):
                return rank
        return None


def accuracy_values(first_hit: int | None, cutoffs: Sequence[int]) -> dict[str, float]:
    """Compute the accuracy of a query at several cut-offs.

    >>> accuracy_values(3, [1, 5])
    {'accuracy@1 (answer)': 0.0, 'accuracy@5 (answer)': 1.0}
    """
    return {answer_label(cutoff): float(first_hit is not None and first_hit <= cutoff) for cutoff in cutoffs}


def counts_for_answers(query_id: str, answers: Sequence[str] | None, prefixes: Sequence[str]) -> bool:
    """Return whether a query has answers and its id starts with an allowed prefix (any if ``prefixes`` is empty).

    >>> counts_for_answers("nq7", ["Paris"], ["nq", "sq"]), counts_for_answers("boolq7", ["yes"], ["nq", "sq"])
    (True, False)
    """
    return bool(answers) and (not prefixes or query_id.startswith(tuple(prefixes)))


def _compile(query_id: str, pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(
            unicodedata.normalize("NFD", pattern), flags=regex.IGNORECASE + regex.UNICODE + regex.MULTILINE
        )
    except regex.error as error:
        raise DataError(
            f"query {query_id!r}: answer {pattern!r} is not a valid regular expression ({error}). "
            "Correct it, or set evaluate.answer_match: string if the answers are plain strings."
        ) from None


def _contains(tokens: list[str], answer: list[str]) -> bool:
    size, first = len(answer), answer[0]
    return any(
        token == first and tokens[at : at + size] == answer for at, token in enumerate(tokens[: len(tokens) - size + 1])
    )
