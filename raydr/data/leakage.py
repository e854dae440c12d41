"""Texts in both training and evaluation: copies, and texts of nearly the same words.

Two texts are nearly equal if their sets of words, w and v, without case and punctuation, have |w ∩ v| ≥ 0.9 · |w ∪ v|.
Prefix filtering avoids comparing all pairs: with the rarest words first, two such texts share one of the first
|w| − ⌈0.9 · |w|⌉ + 1 words.

Source: Chaudhuri, Ganti and Kaushik, "A Primitive Operator for Similarity Joins in Data Cleaning", ICDE 2006.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

import regex

from raydr.data.rows import fold

#: Least share of common words, of all words of both texts.
SIMILARITY = Fraction(9, 10)
#: Unlike those of ``re``, its words include combining marks, for example the vowels of Devanagari.
_WORD = regex.compile(r"\w+")


def find_leaks(training: Sequence[str], held_out: Sequence[str]) -> dict[int, int]:
    """Return the training texts that equal or nearly equal a held-out text.

    Args:
        training: texts for training.
        held_out: texts for evaluation.

    Returns:
        Place of a training text → place of the first held-out text that equals or nearly equals it.

    >>> find_leaks(["How to sort a list?", "how to sort a dict"], ["Sort a list, how to", "why"])
    {0: 0}
    """
    matches = _matches(_word_sets(training), _word_sets(held_out))
    return {at: first for at, places in enumerate(matches) if (first := next(places, None)) is not None}


def find_copies(texts: Sequence[str], others: Sequence[str]) -> list[list[int]]:
    """Return for each text the places of equal or nearly equal texts among the others, which may include the text.

    >>> find_copies(["How to sort a list?", "why"], ["Sort a list, how to", "a list: how to sort", "when"])
    [[0, 1], []]
    """
    return [list(places) for places in _matches(_word_sets(texts), _word_sets(others))]


def _word_sets(texts: Sequence[str]) -> list[frozenset[str]]:
    return [frozenset(_WORD.findall(fold(text))) for text in texts]


def _matches(sets: Sequence[frozenset[str]], others: Sequence[frozenset[str]]) -> Iterator[Iterator[int]]:
    """Yield for each set of words the ascending places of nearly equal sets, compared on demand."""
    counts = Counter(word for words in (*sets, *others) for word in words)
    places_with: defaultdict[str, list[int]] = defaultdict(list)
    for at, words in enumerate(others):
        for word in _rarest(words, counts):
            places_with[word].append(at)
    for words in sets:
        candidates = sorted({place for word in _rarest(words, counts) for place in places_with.get(word, ())})
        yield filter(partial(_is_alike, words, others), candidates)


def _rarest(words: frozenset[str], counts: Counter[str]) -> list[str]:
    ordered = sorted(words, key=lambda word: (counts[word], word))
    needed = -(-SIMILARITY.numerator * len(words) // SIMILARITY.denominator)
    return ordered[: len(words) - needed + 1]


def _is_alike(words: frozenset[str], others: Sequence[frozenset[str]], place: int) -> bool:
    other_words = others[place]
    common = len(words & other_words)
    return common * SIMILARITY.denominator >= SIMILARITY.numerator * (len(words) + len(other_words) - common)
