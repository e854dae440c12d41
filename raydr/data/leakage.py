"""Queries that are trained on and evaluated with: copies, and texts of nearly the same words.

Two queries are taken for the same if the sets of their words, w and v, without case and punctuation, have
|w ∩ v| ≥ 0.9 · |w ∪ v|. All such pairs are found without comparing each with each: with words in the order of how rare
they are, two such texts share one of the first |w| − ⌈0.9 · |w|⌉ + 1 (prefix filtering; Chaudhuri, Ganti and Kaushik,
"A Primitive Operator for Similarity Joins in Data Cleaning", ICDE 2006).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

#: Share of words in common, of all words of both.
SIMILARITY = Fraction(9, 10)
_WORD = re.compile(r"\w+")


def find_leaks(training: Sequence[str], held_out: Sequence[str]) -> dict[int, int]:
    """Training texts that a held-out text says too.

    Args:
        training: texts that are trained on.
        held_out: texts that are evaluated with.

    Returns:
        Place of a training text → place of the first held-out text that is the same or nearly.

    >>> find_leaks(["How to sort a list?", "how to sort a dict"], ["Sort a list, how to", "why"])
    {0: 0}
    """
    sets = [[frozenset(_WORD.findall(text.lower())) for text in texts] for texts in (training, held_out)]
    counts = Counter(word for texts in sets for words in texts for word in words)
    held_out_with: defaultdict[str, list[int]] = defaultdict(list)
    for at, words in enumerate(sets[1]):
        for word in _rarest(words, counts):
            held_out_with[word].append(at)
    found = {}
    for at, words in enumerate(sets[0]):
        candidates = sorted({other for word in _rarest(words, counts) for other in held_out_with.get(word, ())})
        first = next((other for other in candidates if _are_alike(words, sets[1][other])), None)
        if first is not None:
            found[at] = first
    return found


def _rarest(words: frozenset[str], counts: Counter[str]) -> list[str]:
    ordered = sorted(words, key=lambda word: (counts[word], word))
    needed = -(-SIMILARITY.numerator * len(words) // SIMILARITY.denominator)
    return ordered[: len(words) - needed + 1]


def _are_alike(one: frozenset[str], other: frozenset[str]) -> bool:
    common = len(one & other)
    return common * SIMILARITY.denominator >= SIMILARITY.numerator * (len(one) + len(other) - common)
