"""Synthetic passages and a nearly free encoder, so that a large corpus shows the cost of all other work.

A passage has a few synthetic words, most of them from its topic; a query is some words of a passage. The vector of a
text is the sum of random vectors of its words. Passages of a topic are therefore near each other, and a query is near
its passage: an index can cluster them, and a search can find them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raydr.models.tokens import Tokens

TOKENIZER = "benchmarks.scale_stub:load_tokenizer"
ENCODER = "benchmarks.scale_stub:StubEncoder"
DIM = 64
VOCABULARY = 20_000
NUM_TOPICS = 2_000
TOPIC_WORDS = 40
QUERY_WORDS = 5
#: Letters of a word, equal for all words so that texts are cut into words without a loop.
_LETTERS = 4
_PIECE = 50_000
#: Texts encoded at a time; bounds the memory of their word vectors.
_BATCH = 2_048


def write_sources(folder: Path, num_passages: int, num_queries: int, words: int) -> None:
    """Write the files of the reader ``msmarco`` for the split ``train``, atomically and with little memory."""
    if folder.exists():
        return
    made = folder.with_name(f"{folder.name}.made")
    shutil.rmtree(made, ignore_errors=True)
    _write_sources(made, num_passages, num_queries, words)
    made.rename(folder)


def _write_sources(folder: Path, num_passages: int, num_queries: int, words: int) -> None:
    folder.mkdir(parents=True)
    stride = num_passages // num_queries
    with (
        (folder / "collection.tsv").open("w") as passages,
        (folder / "queries.train.tsv").open("w") as queries,
        (folder / "qrels.train.tsv").open("w") as qrels,
    ):
        for start in range(0, num_passages, _PIECE):
            texts = make_texts(start, min(_PIECE, num_passages - start), words)
            passages.writelines(f"p{at}\t{text}\n" for at, text in enumerate(texts, start))
            for at in range(-start % stride, len(texts), stride):
                number = (start + at) // stride
                if number < num_queries:
                    queries.write(f"q{number}\t{' '.join(texts[at].split()[-QUERY_WORDS:])}\n")
                    qrels.write(f"q{number} 0 p{start + at} 1\n")


def make_texts(start: int, num: int, longest: int = 16) -> list[str]:
    """Return ``num`` passages of half of ``longest`` to ``longest`` words; the same for the same ``start``.

    >>> texts = make_texts(0, 2)
    >>> texts == make_texts(0, 2), {len(word) for word in texts[0].split()}
    (True, {4})
    """
    rng = np.random.default_rng([1, start])
    topics = np.random.default_rng(0).integers(VOCABULARY, size=(NUM_TOPICS, TOPIC_WORDS))
    own = topics[rng.integers(NUM_TOPICS, size=(num, 1)), rng.integers(TOPIC_WORDS, size=(num, longest))]
    words = np.where(rng.random((num, longest)) < 0.75, own, rng.integers(VOCABULARY, size=(num, longest)))
    text = _spell(words).tobytes().decode()
    width = longest * (_LETTERS + 1)
    ends = rng.integers(longest // 2, longest + 1, size=num) * (_LETTERS + 1) - 1
    return [text[at * width : at * width + end] for at, end in enumerate(ends.tolist())]


def _spell(words: NDArray[np.int64]) -> NDArray[np.uint8]:
    letters = np.full((*words.shape, _LETTERS + 1), ord(" "), dtype=np.uint8)
    left = words
    for at in range(_LETTERS):
        letters[..., at] = ord("a") + left % 26
        left = left // 26
    return letters


def write_vectors(folder: Path, num_passages: int) -> None:
    """Write vectors as another program would, ``vectors.npy`` and ``ids.txt``, in another order than the passages.

    The first component of a vector is the passage's :func:`mark_of`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    order = np.random.default_rng(3).permutation(num_passages)
    with (folder / "vectors.npy").open("wb") as vectors, (folder / "ids.txt").open("w") as ids:
        np.lib.format.write_array_header_1_0(
            vectors, {"shape": (num_passages, DIM), "fortran_order": False, "descr": "<f4"}
        )
        for start in range(0, num_passages, _PIECE):
            numbers = order[start : start + _PIECE]
            drawn = np.random.default_rng([4, start]).standard_normal((len(numbers), DIM), dtype=np.float32)
            drawn[:, 0] = mark_of(numbers)
            drawn.tofile(vectors)
            ids.writelines(f"p{number}\n" for number in numbers.tolist())


def mark_of(numbers: NDArray[np.int64]) -> NDArray[np.float16]:
    """Return a number for each passage that float16 represents exactly."""
    return (numbers % 2_039).astype(np.float16)


def load_tokenizer(model: str, side: str) -> StubTokenizer:
    return StubTokenizer()


class StubTokenizer:
    """A tokenizer with a token for each word: its number in the vocabulary."""

    def __call__(self, titles: list[str] | None, texts: list[str]) -> Tokens:
        """
        >>> tokens = StubTokenizer()(None, make_texts(0, 3))
        >>> tokens.lengths.tolist() == [len(text.split()) for text in make_texts(0, 3)]
        True
        """
        letters = np.frombuffer(f"{' '.join(texts)} ".encode(), dtype=np.uint8).reshape(-1, _LETTERS + 1)
        ids = (letters[:, :_LETTERS].astype(np.int32) - ord("a")) @ (26 ** np.arange(_LETTERS)).astype(np.int32)
        lengths = np.fromiter((len(text) + 1 for text in texts), dtype=np.int64, count=len(texts)) // (_LETTERS + 1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Tokens(ids.astype(np.int32), offsets, lengths.astype(np.int32))


class StubEncoder:
    """An encoder whose vector of a text is the normalised sum of its word vectors."""

    def __init__(
        self,
        model: str,
        side: str,
        dtype: str,
        device: str,
        token_budget: int,
        num_threads: int | None = None,
    ) -> None:
        self.dim = DIM
        self.words = np.random.default_rng(2).standard_normal((VOCABULARY, DIM), dtype=np.float32)

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        """Return the vectors, shape (N, :data:`DIM`)."""
        vectors = np.empty((tokens.num_rows, DIM), dtype=np.float16)
        for start in range(0, tokens.num_rows, _BATCH):
            offsets = tokens.offsets[start : start + _BATCH + 1]
            sums = np.add.reduceat(self.words[tokens.ids[offsets[0] : offsets[-1]]], offsets[:-1] - offsets[0], axis=0)
            vectors[start : start + _BATCH] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors
