"""Terms of texts and their counts, for BM25."""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pyarrow as pa
import regex
from numpy.typing import NDArray

from raydr.negatives.config import BM25Config

#: Schema of the number of passages with each term.
FREQUENCIES = pa.schema([("term", pa.string()), ("frequency", pa.int64())])

#: Unlike those of ``re``, its words include combining marks: vowels of Devanagari and Arabic, and separate accents.
_WORD = regex.compile(r"\w+")
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_A-Za-z0-9]+")


@dataclass(frozen=True)
class TermCounts:
    """Term counts of texts, with the vocabulary of these texts.

    Args:
        vocabulary: terms as strings, by number.
        terms: int32, numbers of the distinct terms of each text, concatenated over texts.
        counts: int32, occurrences of each of these terms in its text.
        sizes: int32, number of distinct terms of each text.
    """

    vocabulary: pa.Array
    terms: NDArray[np.int32]
    counts: NDArray[np.int32]
    sizes: NDArray[np.int32]

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of the terms and counts of all texts."""
        return self.terms.nbytes + self.counts.nbytes

    def frequencies(self) -> pa.Table:
        """Return the number of texts with each term: term, frequency."""
        frequency = np.bincount(self.terms, minlength=len(self.vocabulary))
        return pa.table([self.vocabulary, frequency], schema=FREQUENCIES)


def add_up(frequencies: Sequence[pa.Table]) -> pa.Table:
    """Add up the frequencies of each term; terms are ordered by first appearance."""
    joined = pa.concat_tables([FREQUENCIES.empty_table(), *frequencies])
    summed = joined.group_by("term", use_threads=False).aggregate([("frequency", "sum")])
    return pa.table([summed["term"], summed["frequency_sum"]], schema=FREQUENCIES)


class Analyzer:
    """Analyzer of text into terms: lower case, without stop words, stemmed.

    >>> Analyzer(BM25Config()).terms("The cats were running in 1999")
    ['cat', 'were', 'run', '1999']
    >>> Analyzer(BM25Config(stemmer="none")).terms("हिन्दी cafe\u0301")
    ['हिन्दी', 'café']
    >>> Analyzer(BM25Config(stemmer="none", split_identifiers=True)).terms("getUserName(user_id)")
    ['getusername', 'get', 'user', 'name', 'user_id', 'user', 'id']
    """

    def __init__(self, config: BM25Config) -> None:
        import Stemmer

        self.config = config
        english = load_bm25s().stopwords.STOPWORDS_EN
        self._stopwords = frozenset(english if config.stopwords == "english" else ())
        self._stem: Callable[[str], str] = Stemmer.Stemmer("english").stemWord if config.stemmer == "english" else str
        #: Terms by word, so that the stem of a frequent word is computed once; None for stop words.
        self._known: dict[str, str | None] = {}

    def terms(self, text: str) -> list[str]:
        terms = (self._term(word) for word in self._words(text))
        return [term for term in terms if term is not None]

    def count(self, texts: Iterable[str]) -> TermCounts:
        numbers: dict[str, int] = {}
        terms, counts, sizes = array("i"), array("i"), array("i")
        for text in texts:
            counted = Counter([numbers.setdefault(term, len(numbers)) for term in self.terms(text)])
            terms.extend(counted.keys())
            counts.extend(counted.values())
            sizes.append(len(counted))
        as_numpy = (np.array(values, dtype=np.int32) for values in (terms, counts, sizes))
        return TermCounts(pa.array(list(numbers), pa.string()), *as_numpy)

    def _words(self, text: str) -> Iterable[str]:
        # NFC, so that separate and composed accents make the same word.
        for word in _WORD.findall(text if text.isascii() else unicodedata.normalize("NFC", text)):
            yield word.lower()
            if self.config.split_identifiers:
                parts = _IDENTIFIER_PART.findall(word)
                if len(parts) > 1:
                    yield from (part.lower() for part in parts)

    def _term(self, word: str) -> str | None:
        if word not in self._known:
            self._known[word] = None if word in self._stopwords else self._stem(word)
        return self._known[word]


def load_bm25s() -> ModuleType:
    """Import bm25s without JAX, which would take three quarters of a GPU's memory until the process ends."""
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("bm25s")
    finally:
        del sys.modules["jax"]
        if jax is not None:
            sys.modules["jax"] = jax
