"""A ranker that is asked while a retriever learns from it, about what each step has drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.models.pair_scoring import PairScorer


@dataclass(frozen=True)
class LiveRanker:
    """A loaded ranker with the texts that it is asked about. Its weights stay as they are.

    The thread that makes batches asks it, a step ahead of the one that learns.

    Args:
        scorer: of pairs, loaded by this worker.
        scale: what its scores are multiplied by: a retriever's τ; 1 for a cross-encoder's log-odds.
        examples: have the queries.
        corpus: has the passages.
    """

    scorer: PairScorer
    scale: float
    examples: Examples
    corpus: Corpus

    def of(self, query_P: NDArray[np.int64], passage_P: NDArray[np.int64]) -> NDArray[np.float32]:
        pairs_U2, back_P = np.unique(np.stack([query_P, passage_P], axis=1), axis=0, return_inverse=True)
        queries, query_U = np.unique(pairs_U2[:, 0], return_inverse=True)
        passages, passage_U = np.unique(pairs_U2[:, 1], return_inverse=True)
        asked = [self.examples.texts[at] for at in queries]
        scores_U = self.scorer.score(asked, self.corpus.texts(passages), query_U, passage_U)
        return (self.scale * scores_U).astype(np.float32)[back_P.reshape(-1)]
