"""A dual encoder that is still in training, used the way a saved one is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.corpus import Corpus, Texts
from raydr.models.config import Side
from raydr.models.dual_encoder import DualEncoder
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import encode_tokens
from raydr.models.pair_scoring import FloatArray, IntArray, pair_similarities
from raydr.models.precision import evaluating
from raydr.models.tokens import TextTokenizer


@dataclass(frozen=True)
class LiveEncoder:
    """Vectors and similarities by a model in memory; it is left in the mode, training or not, that it was in."""

    model: DualEncoder
    tokenizers: dict[Side, TextTokenizer]
    dtype: torch.dtype

    def encode(self, side: Side, titles: list[str] | None, texts: list[str]) -> NDArray[np.float32]:
        """Vectors of texts, shape (N, D)."""
        tokenizer = self.tokenizers[side]
        tokens = tokenizer(titles, texts)
        with evaluating(self.model, self.dtype) as device:
            return encode_tokens(self.model.tower(side), tokens, TOKEN_BUDGET[device.type], tokenizer.pad_id, side)

    def encode_rows(self, corpus: Corpus, rows: IntArray) -> NDArray[np.float32]:
        """Vectors of some passages, in their order: (P, D), or (P, M, D) padded with zeros."""
        texts = corpus.texts(rows)
        return self.encode("passage", texts.titles, texts.texts)

    def score(self, queries: list[str], passages: Texts, query_P: IntArray, passage_P: IntArray) -> FloatArray:
        """As :meth:`raydr.models.pair_scoring.PairScorer.score`; similarities without the scale."""
        query_QD = self.encode("query", None, queries)
        passage_ND = self.encode("passage", passages.titles, passages.texts)
        return pair_similarities(self.model.config.score, query_QD, passage_ND, query_P, passage_P)
