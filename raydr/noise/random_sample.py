"""Scores of annotated pairs, and of their queries with a common random sample of passages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.parts import offsets_of
from raydr.data.tables import relevant
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.judges.base import BoolArray, IntArray, SampleJudge, ScoredCandidates
from raydr.seeding import stable_hash64

#: Maximum of scores in memory at once.
_BLOCK_SCORES = 4_000_000


def draw_sample(data: Dataset, corpus: Corpus, split: str, judge: SampleJudge, seed: int) -> IntArray:
    """Draw the corpus rows of the sample from the seed, the judge and the data; equal on all workers."""
    rng = np.random.default_rng(stable_hash64("judge sample", judge.name, seed))
    pool = np.arange(len(corpus))
    if judge.sample == "positives":
        judged = relevant(data.qrels(split))
        pool = np.sort(corpus.rows_of(sorted(set(judged["passage_id"].to_pylist()))))
    return np.sort(rng.choice(pool, size=min(judge.num_random, len(pool)), replace=False))


class SampleScorer:
    """Scorer of a split's pairs, and of their queries with the sample.

    Args:
        scorer: scorer of the model.
        corpus: corpus of the passages.
        rows: corpus rows of the sample.
    """

    def __init__(self, scorer: DualEncoderScorer, corpus: Corpus, rows: IntArray) -> None:
        self.scorer = scorer
        self.corpus = corpus
        self.content_hashes_S = corpus.content_hashes(rows)
        self.vectors_SD = self._encode(rows)

    def score(
        self,
        query_ids: list[str],
        passage_ids: list[str],
        texts: Mapping[str, str],
        positives: Mapping[str, list[str]],
    ) -> Iterator[ScoredCandidates]:
        """Score N pairs in blocks of bounded memory; scores include the model's scale.

        Args:
            query_ids, passage_ids: ids of each pair.
            texts: texts of the queries, by id.
            positives: ids of each query's known positives; copies of them in the sample do not count.
        """
        if not query_ids:
            return
        position = {query_id: at for at, query_id in enumerate(dict.fromkeys(query_ids))}
        query_N = np.array([position[query_id] for query_id in query_ids])
        query_QD = torch.from_numpy(self.scorer.encode("query", None, [texts[query] for query in position]))
        positive_ND = self._encode(self.corpus.rows_of(passage_ids))
        config = self.scorer.config
        step = max(1, _BLOCK_SCORES // len(self.vectors_SD))
        for start in range(0, len(query_ids), step):
            pairs = slice(start, start + step)
            query_BD = query_QD[query_N[pairs]]
            allowed_BS = np.stack([self._allowed(positives[query_id]) for query_id in query_ids[pairs]])
            random_BS = config.logits_QP(query_BD, self.vectors_SD).double().numpy()
            positive_B = config.logits(query_BD, positive_ND[pairs]).double().numpy()
            yield ScoredCandidates(random_BS[allowed_BS], offsets_of(allowed_BS.sum(axis=1)), positive_B)

    def _encode(self, rows: IntArray) -> torch.Tensor:
        texts = self.corpus.texts(rows)
        return torch.from_numpy(self.scorer.encode("passage", texts.titles, texts.texts))

    def _allowed(self, positives: list[str]) -> BoolArray:
        """Return whether each passage of the sample is neither a known positive of the query nor a copy, (S,)."""
        hashes = self.corpus.content_hashes(self.corpus.rows_of(positives))
        return ~np.isin(self.content_hashes_S, hashes)
