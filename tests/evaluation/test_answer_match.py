"""DPR's answer rule against a transcription of its ``has_answer``."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from raydr.errors import DataError
from raydr.evaluation.answer_match import AnswerMatcher, accuracy_values, counts_for_answers, tokenize


def reference_has_answer(answers: list[str], text: str) -> bool:
    """facebookresearch/DPR, ``dpr/data/qa_validation.py``, string matching."""
    pattern = regex.compile(
        r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])",
        flags=regex.IGNORECASE + regex.UNICODE + regex.MULTILINE,
    )

    def words(value: str) -> list[str]:
        return [match.group().lower() for match in pattern.finditer(unicodedata.normalize("NFD", value))]

    tokens = words(text)
    for answer in answers:
        answer_tokens = words(answer)
        for i in range(len(tokens) - len(answer_tokens) + 1):
            if answer_tokens == tokens[i : i + len(answer_tokens)]:
                return True
    return False


WORDS = [
    "New",
    "new",
    "York",
    "café",
    "cafe\u0301",
    "U.S.",
    "3.5",
    "it's",
    "İ",
    "１２",
    "-",
    "a",
    "b",
    "日本",
    "ß",
    "SS",
]


@pytest.mark.invariant
@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    answers=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), max_size=3),
)
def test_equal_to_dpr(text: str, answers: list[str]) -> None:
    assert AnswerMatcher("q", answers, "string").matches(text) == reference_has_answer(answers, text)


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("York", "Yorkshire pudding", False),
        ("new york", "In NEW\nYork, 1999", True),
        ("café", "the cafe\u0301 is open", True),
        ("café", "the cafe is open", False),
        ("U.S", "the u . s army", True),
        ("", "anything", False),
        ("one two", "two one", False),
    ],
)
def test_string_rule(answer: str, text: str, expected: bool) -> None:
    assert AnswerMatcher("q", [answer], "string").matches(text) is expected


def test_regex_rule_searches_the_text_without_case() -> None:
    matcher = AnswerMatcher("q", [r"\bfoo\d+", r"^end$"], "regex")
    assert matcher.matches("a FOO12")
    assert matcher.matches("one line\nEND\nanother")
    assert not matcher.matches("afoo12")


def test_invalid_regex_names_the_query() -> None:
    with pytest.raises(DataError, match=r"query 'nq7'.*'\(x'"):
        AnswerMatcher("nq7", ["(x"], "regex")


def test_accuracy_is_one_from_the_first_hit_on() -> None:
    matcher = AnswerMatcher("q", ["Paris"], "string")
    first_hit = matcher.first_hit(["London", "Rome", "paris!", "Paris"])
    assert first_hit == 3
    assert list(accuracy_values(first_hit, [1, 2, 3, 20]).values()) == [0.0, 0.0, 1.0, 1.0]
    assert list(accuracy_values(matcher.first_hit(["London"]), [20]).values()) == [0.0]


def test_which_queries_count() -> None:
    assert counts_for_answers("q", ["x"], [])
    assert not counts_for_answers("q", None, [])
    assert not counts_for_answers("q", [], [])
    assert not counts_for_answers("boolq1", ["yes"], ["nq", "sq"])


def test_tokens_are_decomposed_and_lower_case() -> None:
    assert tokenize("É, B-2") == ["e\u0301", ",", "b", "-", "2"]
