"""Lists of passages that a cross-encoder is trained on: for each query a positive, then negatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.losses.base import Candidates
from raydr.models.training_config import CrossEncoderTraining
from raydr.seeding import query_rng
from raydr.training.batches import positive_row, random_rows


@dataclass(frozen=True)
class Lists:
    """Q queries with C passages each, of which the first is the positive.

    Args:
        query_rows: int64, shape (Q,), positions of the queries in the examples.
        passage_rows: int64, shape (Q, C), corpus rows.
        weights: float32, shape (Q, C), the weight that judges gave each; 1 for the positive and random passages.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    weights: NDArray[np.float32]

    def candidates(self, scores_QC: Tensor) -> Candidates:
        """Return the candidates that a loss sees, from the scores; a query's candidates are those of its list alone.

        Args:
            scores_QC: log-odds of relevance.
        """
        device = scores_QC.device
        is_hard_QC = torch.ones_like(scores_QC, dtype=torch.bool)
        is_hard_QC[:, 0] = False
        return Candidates(
            scores_QC=scores_QC,
            positive_Q=torch.zeros(len(self.query_rows), dtype=torch.int64, device=device),
            excluded_QC=torch.zeros_like(is_hard_QC),
            hard_QC=is_hard_QC,
            log_weight_QC=torch.from_numpy(np.log(self.weights)).to(device) if (self.weights != 1).any() else None,
        )


def draw_lists(
    examples: Examples,
    corpus: Corpus,
    query_rows: NDArray[np.int64],
    config: CrossEncoderTraining,
    seed: int,
    epoch: int,
) -> Lists:
    """Make lists of a positive, hard negatives drawn evenly from the candidates, and random passages.

    What is drawn for a query depends on (seed, epoch, query id) alone. Random passages fill a candidate list that is
    too short, none of them a known positive or dropped for the query.
    """
    width = config.passages_per_query
    rows = np.empty((len(query_rows), width), dtype=np.int64)
    weights = np.ones((len(query_rows), width), dtype=np.float32)
    for line, at in enumerate(query_rows.tolist()):
        rng = query_rng(seed, epoch, examples.query_ids[at], "classifier")
        places = np.zeros(0, dtype=np.int64)
        if config.num_hard_negatives:
            places = rng.permutation(len(examples.negatives[at]))[: config.num_hard_negatives]
        hard = np.asarray(examples.negatives[at])[places]
        filled = random_rows(examples, corpus, at, width - 1 - len(hard), rng)
        rows[line] = [positive_row(examples, at, epoch, seed, "drawn"), *hard.tolist(), *filled.tolist()]
        weights[line, 1 : 1 + len(hard)] = np.asarray(examples.weights[at])[places]
    return Lists(query_rows, rows, weights)
