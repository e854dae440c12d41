"""Detection of mismatched training pairs with the cross-encoder that is being trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer, log_odds
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.precision import evaluating
from raydr.noise.perplexity import Perplexities, perplexities, random_pair_perplexities
from raydr.seeding import query_rng
from raydr.training.batches import positive_row
from raydr.training.collectives import broadcast_object, num_ranks, rank
from raydr.training.detection import PairFlags, gathered
from raydr.training.ranker_config import RankerDetectionConfig

#: Queries whose pairs are read at once.
_QUERIES = 64


@dataclass
class RankerPairDetector:
    """Measures the perplexity of all training pairs by reading them, and flags the mismatched ones.

    PPL(q, p⁺) = −log( e^{s⁺} / (e^{s⁺} + Σ_{j=1..M} e^{s_j}) ) with s the cross-encoder's log-odds and M random
    passages, which are positives of other pairs. They depend on (seed, epoch, query id): the flags do not depend on the
    number of workers.
    Source: Zhang et al. (EMNLP Findings 2023), with a cross-encoder in the retriever's place.

    Args:
        examples: queries with positives.
        corpus: the passages.
        tokenizer: of the model.
        config: how.
        seed: the run's.
    """

    examples: Examples
    corpus: Corpus
    tokenizer: PairTokenizer
    config: RankerDetectionConfig
    seed: int

    def detect(self, model: CrossEncoder, epoch: int, dtype: torch.dtype) -> PairFlags:
        """Flags for the coming epoch; the same on every rank."""
        measured = self._measure(model, epoch, dtype)
        detection = self.config.detector.detect(measured.pairs_N, measured.random_N) if rank() == 0 else None
        return PairFlags(measured, broadcast_object(detection))

    def _measure(self, model: CrossEncoder, epoch: int, dtype: torch.dtype) -> Perplexities:
        positives = np.array([positive_row(self.examples, at, epoch, self.seed, "drawn") for at in range(len(self))])
        mine = np.arange(rank(), len(self), num_ranks())
        values_N2 = np.empty((len(mine), 2), dtype=np.float64)
        with evaluating(model, dtype) as device:
            for start in range(0, len(mine), _QUERIES):
                share = mine[start : start + _QUERIES]
                scores_NC, counts_NC = self._read(model, share, positives, epoch)
                random_NM = np.where(counts_NC[:, 1:], scores_NC[:, 1:], -np.inf)
                first_N = np.zeros(len(share), dtype=np.int64)
                values_N2[start : start + len(share)] = np.stack(
                    [perplexities(scores_NC[:, 0], random_NM), random_pair_perplexities(random_NM, first_N)], axis=1
                )
        return gathered(values_N2, device)

    def __len__(self) -> int:
        return len(self.examples)

    def _read(
        self, model: CrossEncoder, share: NDArray[np.int64], positives: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Scores of some queries' pairs and of their random passages, (N, 1 + M), and which of them count."""
        examples, num = self.examples, self.config.num_random
        rows, counts = np.empty((len(share), 1 + num), dtype=np.int64), np.ones((len(share), 1 + num), dtype=np.bool_)
        for line, at in enumerate(share.tolist()):
            rng = query_rng(self.seed, epoch, examples.query_ids[at], "perplexity")
            drawn = positives[rng.integers(len(positives), size=num)]
            rows[line] = [positives[at], *drawn]
            hashes = self.corpus.content_hashes(drawn).view(np.int64)
            counts[line, 1:] = ~np.isin(hashes, examples.forbidden[at])
        texts = self.corpus.texts(rows.ravel())
        queries = [examples.texts[at] for at in np.repeat(share, 1 + num)]
        tokens = self.tokenizer(queries, texts.titles, texts.texts)
        budget = TOKEN_BUDGET[next(model.parameters()).device.type]
        scores_P = log_odds(model, tokens, budget, self.tokenizer.pad_id)
        return scores_P.reshape(rows.shape), counts
