"""Candidate negatives from the model's own distribution over the whole corpus, as training goes on.

Zhang and Stratos (NAACL 2021) draw hard negatives anew in every epoch, after scoring the training queries against all
passages. Only the best of them are kept here: below, the model's distribution has next to nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from experiments.live_encoder import LiveEncoder
from raydr.data.corpus import Corpus
from raydr.data.examples import Examples, Ragged

#: Scores held at once.
_BLOCK_SCORES = 4_000_000


def redraw_candidates(encoder: LiveEncoder, examples: Examples, corpus: Corpus, depth: int) -> Examples:
    """The same examples with the ``depth`` best scored passages of the corpus as candidates, best first.

    What must not be a negative of a query is left out. Scores are logits: similarity times the model's scale.

    Args:
        encoder: the model as it is now.
        examples: queries and positives.
        corpus: all passages are scored.
        depth: candidates of each query.
    """
    passage_PD = torch.from_numpy(encoder.encode_corpus(corpus))
    query_QD = torch.from_numpy(encoder.encode("query", None, examples.texts))
    hashes_P = corpus.content_hashes(np.arange(len(corpus))).view(np.int64)
    rows, scores, positive_scores = [], [], np.empty(len(examples), dtype=np.float32)
    step = max(1, _BLOCK_SCORES // len(corpus))
    for start in range(0, len(examples), step):
        scores_BP = encoder.model.config.logits_QP(query_QD[start : start + step], passage_PD).numpy()
        for at, scores_P in enumerate(scores_BP, start=start):
            positive_scores[at] = scores_P[examples.positives[at]].max()
            allowed_P = ~np.isin(hashes_P, examples.forbidden[at])
            kept = np.flatnonzero(allowed_P)
            best = kept[np.argsort(-scores_P[kept], kind="stable")[:depth]]
            rows.append(best)
            scores.append(scores_P[best])
    offsets = np.concatenate([[0], np.cumsum([len(best) for best in rows])]).astype(np.int64)
    flat = np.concatenate(rows).astype(np.int64)
    return replace(
        examples,
        negatives=Ragged(flat, offsets),
        scores=Ragged(np.concatenate(scores).astype(np.float32), offsets),
        weights=Ragged(np.ones(len(flat), dtype=np.float32), offsets),
        positive_scores=positive_scores,
    )
