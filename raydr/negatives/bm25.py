"""BM25: text to terms, terms to an index that is memory-mapped, queries to ranked passages.

The scores are those of Lucene's BM25. The index is bm25s' own (``bm25s.BM25.load`` opens it); document numbers are
row numbers of the corpus. It is searched by products of sparse matrices, which no process has to compile first.

Building needs about 30 bytes a token in the memory of one process, and a search one float32 a passage. So it serves
corpora of up to a few million passages. For the 21 million of Wikipedia, search with Lucene (Anserini, Pyserini) and
import its run with :func:`raydr.artefacts.run.import_trec_run`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import regex
from numpy.typing import NDArray

from raydr.data.opened import offsets_of
from raydr.errors import DataError
from raydr.negatives.config import BM25Config

if TYPE_CHECKING:
    from scipy import sparse

#: The files of a saved index.
INDEX_FILES = (
    "data.csc.index.npy",
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "params.index.json",
    "vocab.index.json",
)

#: Unlike those of ``re``, its words keep combining marks: Devanagari's vowels, Arabic's, accents written apart.
_WORD = regex.compile(r"\w+")
#: Scores that are held at once.
_MOST_SCORES = 20_000_000
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_A-Za-z0-9]+")


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as term numbers of a vocabulary of their own.

    Args:
        vocabulary: the terms, by number.
        tokens: int32, the term numbers of all texts one after the other.
        lengths: int32, the number of terms of each text.
    """

    vocabulary: list[str]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]


@dataclass(frozen=True)
class Hits:
    """Row numbers and scores of a query's passages, best first; passages with a score of 0 are left out."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


class Analyzer:
    """Text to terms: lower case, stop words out, stemmed.

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
        #: Most words come again and again; the stem of each is computed once. None: not a term.
        self._known: dict[str, str | None] = {}

    def terms(self, text: str) -> list[str]:
        terms = (self._term(word) for word in self._words(text))
        return [term for term in terms if term is not None]

    def tokenize(self, texts: Iterable[str]) -> TokenizedTexts:
        numbers: dict[str, int] = {}
        tokens: list[NDArray[np.int32]] = []
        for text in texts:
            terms = self.terms(text)
            tokens.append(np.array([numbers.setdefault(term, len(numbers)) for term in terms], dtype=np.int32))
        lengths = np.array([len(numbers_of_text) for numbers_of_text in tokens], dtype=np.int32)
        flat = np.concatenate(tokens) if tokens else np.empty(0, dtype=np.int32)
        return TokenizedTexts(list(numbers), flat, lengths)

    def _words(self, text: str) -> Iterable[str]:
        # An accent of its own and one that is part of its letter are the same word.
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
    """Import bm25s without JAX, which would otherwise take three quarters of a GPU's memory for the life of the
    process.
    """
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


def join_passage(title: str, text: str) -> str:
    """Return the text of a passage to index: its title, then its text."""
    return f"{title} {text}" if title else text


def build_index(parts: Iterable[TokenizedTexts], config: BM25Config, save_dir: str | Path) -> int:
    """Build an index over passages that come in parts, and save it.

    Args:
        parts: the passages in row order; each part is let go before the next is taken.
        config: the weights.
        save_dir: folder for the files in :data:`INDEX_FILES`; made if needed.

    Returns:
        The number of terms in the vocabulary.

    Raises:
        DataError: there is no passage, or none with a term.
    """
    numbers: dict[str, int] = {}
    passages: list[NDArray[np.int32]] = []
    for part in parts:
        mapping = np.array([numbers.setdefault(term, len(numbers)) for term in part.vocabulary], dtype=np.int32)
        tokens = mapping[part.tokens] if len(part.tokens) else part.tokens
        passages.extend(np.split(tokens, np.cumsum(part.lengths)[:-1]) if len(part.lengths) else [])
    if not numbers:
        raise DataError(
            f"BM25 found no term in {len(passages)} passages; expected at least one that is not a stop word. "
            "Look at the corpus with raydr inspect."
        )
    index = load_bm25s().BM25(k1=config.k1, b=config.b, method="lucene")
    index.scores = index.build_index_from_ids(
        unique_token_ids=list(range(len(numbers))), corpus_token_ids=passages, show_progress=False
    )
    index.vocab_dict = numbers
    index.save(save_dir, show_progress=False)
    return len(numbers)


class BM25Index:
    """A saved index, memory-mapped; ready for :meth:`search`.

    Args:
        paths: local paths of the :data:`INDEX_FILES`, by name.
        config: the settings that the index was built with; queries are cut into terms in the same way.
    """

    def __init__(self, paths: dict[str, str], config: BM25Config) -> None:
        from scipy import sparse

        params = json.loads(Path(paths["params.index.json"]).read_text(encoding="utf-8"))
        self.num_passages = int(params["num_docs"])
        self._vocabulary: dict[str, int] = json.loads(Path(paths["vocab.index.json"]).read_text(encoding="utf-8"))
        self._analyzer = Analyzer(config)
        columns = [
            np.load(paths[f"{name}.csc.index.npy"], mmap_mode="r", allow_pickle=False)
            for name in ("data", "indices", "indptr")
        ]
        #: What a term adds to the score of a passage that has it, shape (terms, passages).
        self._weights = sparse.csr_array(tuple(columns), shape=(len(self._vocabulary), self.num_passages))

    def search(self, queries: Sequence[str], top_k: int, among: NDArray[np.int64] | None = None) -> list[Hits]:
        """Return the best passages of each query, at most ``top_k``; none if the corpus has no term of the query.

        Of passages with equal scores those of lower row numbers come first. With ``among``, only these rows are found;
        how rare a term is still counts over all.
        """
        wanted = None
        if among is not None:
            wanted = np.zeros(self.num_passages, dtype=np.bool_)
            wanted[among] = True
        at_once = max(1, _MOST_SCORES // self.num_passages)
        hits: list[Hits] = []
        for start in range(0, len(queries), at_once):
            scores_QP = self._scores(queries[start : start + at_once])
            for begin, end in itertools.pairwise(scores_QP.indptr.tolist()):
                rows, scores = scores_QP.indices[begin:end].astype(np.int64), scores_QP.data[begin:end]
                if wanted is not None:
                    kept = wanted[rows]
                    rows, scores = rows[kept], scores[kept]
                hits.append(_best(rows, scores, top_k))
        return hits

    def _scores(self, queries: Sequence[str]) -> sparse.csr_array:
        """Score the passages that have a term of a query, shape (queries, passages)."""
        from scipy import sparse

        numbers = [self._numbers(query) for query in queries]
        terms = np.array(list(itertools.chain.from_iterable(numbers)), dtype=np.int32)
        shape = (len(queries), len(self._vocabulary))
        counts = np.ones(len(terms), dtype=np.float32), terms, offsets_of(map(len, numbers))
        return sparse.csr_array(counts, shape=shape) @ self._weights

    def _numbers(self, query: str) -> list[int]:
        numbers = (self._vocabulary.get(term) for term in self._analyzer.terms(query))
        return [number for number in numbers if number is not None]


def _best(rows: NDArray[np.int64], scores: NDArray[np.float32], top_k: int) -> Hits:
    """Return the ``top_k`` highest scores, of equal ones those of the lowest rows.

    >>> _best(np.array([7, 2, 5, 4]), np.array([1, 3, 1, 1], dtype=np.float32), 3).rows.tolist()
    [2, 4, 5]
    """
    if len(rows) > top_k:
        limit = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        # More than asked for where scores are equal; the order below decides.
        kept = scores >= limit
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:top_k]
    return Hits(rows[order], scores[order])
