"""Scores of (query, passage) pairs by a saved model, which encodes each text once."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.corpus import Texts
from raydr.models.config import Side, read_config
from raydr.models.dual_encoder import load_tokenizer, load_tower
from raydr.models.inference import encode_tokens
from raydr.models.precision import torch_dtype, torch_threads
from raydr.models.scores.base import ScoreFunction

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Maximum of pairs that are multiplied at once, and of the numbers in one side's vectors; this limits copies.
_CHUNK = 8192
_CHUNK_FLOATS = 1 << 24


class PairScorer(Protocol):
    """Scorer of P pairs of Q queries and N passages."""

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        """Return scores, shape (P,), of the pairs (query_P[i], passage_P[i]), which are positions in the lists."""


def pair_similarities(
    score: ScoreFunction,
    query_QD: NDArray[np.float32],
    passage_ND: NDArray[np.float32],
    query_P: IntArray,
    passage_P: IntArray,
) -> FloatArray:
    """Compute similarities of P pairs of rows, shape (P,)."""
    queries, passages = torch.from_numpy(query_QD), torch.from_numpy(passage_ND)
    scores_P = np.empty(len(query_P), dtype=np.float64)
    largest = max((tensors[0].numel() for tensors in (queries, passages) if len(tensors)), default=1)
    step = min(_CHUNK, max(1, _CHUNK_FLOATS // max(1, largest)))
    for start in range(0, len(query_P), step):
        chunk = slice(start, start + step)
        scores_P[chunk] = score.pairs(queries[query_P[chunk]], passages[passage_P[chunk]]).numpy()
    return scores_P


class DualEncoderScorer:
    """Scorer by the similarity (without the scale) of a saved dual encoder, in float32.

    Args:
        model: folder of the model.
        dtype: dtype of the encoder.
        device: ``cpu`` or ``cuda``.
        token_budget: maximum of tokens of a batch, padding included.
        num_threads: threads of PyTorch; unchanged if None.
    """

    def __init__(
        self, model: str | Path, dtype: str, device: str, token_budget: int, num_threads: int | None = None
    ) -> None:
        self.num_threads = num_threads
        self.token_budget = token_budget
        #: Config of the model, with its score function.
        self.config = read_config(model)
        query = load_tower(model, "query").ready(device, torch_dtype(dtype))
        self.towers = {"query": query, "passage": query}
        if self.config.towers == "two":
            self.towers["passage"] = load_tower(model, "passage").ready(device, torch_dtype(dtype))
        self.tokenizers = {side: load_tokenizer(model, side) for side in ("query", "passage")}

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        none = np.zeros(0, dtype=np.int64)
        return self.score_and_compare(queries, passages, query_P, passage_P, none, none)[0]

    def score_and_compare(
        self,
        queries: list[str],
        passages: Texts,
        query_P: IntArray,
        passage_P: IntArray,
        first_L: IntArray,
        second_L: IntArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Score pairs, and compare passages with passages; each text is encoded once.

        Args:
            queries, passages: texts.
            query_P, passage_P: positions of the pairs in them.
            first_L, second_L: positions of the compared passages. The score function reads the first as a query, so
                queries and passages must have the same kind of vectors.

        Returns:
            s(q, p), shape (P,), and s(p₁, p₂) / s(p₁, p₁), shape (L,): 1 for a copy, 0 if s(p₁, p₁) ≤ 0.
        """
        query_QD = self.encode("query", None, queries)
        passage_ND = self.encode("passage", passages.titles, passages.texts)
        scores_P = pair_similarities(self.config.score, query_QD, passage_ND, query_P, passage_P)
        itself_L, other_L = (
            pair_similarities(self.config.score, passage_ND, passage_ND, first_L, rows_L)
            for rows_L in (first_L, second_L)
        )
        return scores_P, np.divide(other_L, itself_L, out=np.zeros_like(other_L), where=itself_L > 0.0)

    def encode(self, side: Side, titles: list[str] | None, texts: list[str]) -> NDArray[np.float32]:
        """Encode texts: (N, D), or with several vectors per text (N, M, D), padded with zeros."""
        tokenizer = self.tokenizers[side]
        with torch_threads(self.num_threads):
            tokens = tokenizer(titles, texts)
            return encode_tokens(self.towers[side], tokens, self.token_budget, tokenizer.pad_id, side)
