"""Passage sieve, which keeps hard negatives of which the model is confident."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raydr.losses.rcl import RCL
from raydr.negatives.samplers.top import Top
from raydr.noise.judges.asked import Asked, AskedModels, Copy
from raydr.noise.judges.base import FloatArray, IntArray, ScoredCandidates, SuspicionJudge, Verdicts


class Sieve(SuspicionJudge):
    """Keeps a negative iff its ℓ_NCE is at least the query's threshold.

    ℓ_j = −log( exp(s_j) / Σ_{c ∈ C_q} exp(s_c) ) with C_q the query's own negatives and its positive; a negative is
    kept iff ℓ_j ≥ th_q. th_q is the mean of ℓ over C_q (the paper), the mean + k·standard deviation, or a quantile.
    Lemma 1: with the mean and ``keep_minimum`` 0 every negative with softmax probability above 1 / |C_q| is dropped.
    Verdicts do not depend on the scale: ℓ_j ≥ mean ℓ ⇔ s_j ≤ mean s, and k·std and quantiles scale too.

    Source: Wang et al. (AAAI 2024), algorithm 1, step 3. The scores are those of the temporary model trained with RCL,
    of all candidates of a query.

    >>> Sieve().judge(ScoredCandidates.of_query([3.0, 1.0, 0.0], positive_score=4.0)).action.tolist()  # mean score 2
    ['drop', 'keep', 'keep']
    """

    flags: ClassVar[str] = "candidates above a threshold among the query's own, about half by construction"
    score_name: ClassVar[str] = "score above the query's threshold"

    name: Literal["sieve"] = "sieve"
    rule: Literal["mean", "mean_std", "quantile"] = "mean"
    """Rule of th_q."""

    num_std: float = 0.0
    """k of ``mean_std``; positive values drop more."""

    quantile: float = Field(default=0.5, ge=0.0, le=1.0)
    """Quantile of ℓ over C_q, for ``quantile``; lower values are dropped."""

    keep_minimum: int = Field(default=0, ge=0)
    """Number of a query's least suspicious negatives that are always kept."""

    def asks(self, models: AskedModels) -> Asked:
        """Return a copy of the retriever that is trained to separate the candidates: algorithm 1, steps 1 and 2.

        The similarity is always cosine, the candidates of a query are its own negatives only, and the last epoch
        becomes the model.
        """
        settings = models.sieve
        return Copy(
            self.name,
            settings.num_candidates,
            {"similarity": "cosine"} | ({"scale": settings.scale} if settings.scale is not None else {}),
            {
                "loss": RCL(beta=settings.beta),
                "pair_detection": None,
                "coteaching": None,
                "guide": None,
                "num_epochs": settings.num_epochs,
                "batch_size": settings.batch_size,
                "accumulation_steps": 1,
                "sampler": Top(fill=False),
                "in_batch_negatives": False,
                "optimizer": settings.optimizer.model_dump(),
                "share_warmup": None,
                "keep": "last",
            },
        )

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        positive_Q = candidates.positives(self.name)
        query_M = candidates.query_M()
        # ℓ, −s and the threshold differ by the same constant of the query, so that s⁺ − s can replace ℓ.
        losses_M = positive_Q[query_M] - candidates.scores_M
        suspicion_M = self._thresholds(candidates, losses_M)[query_M] - losses_M
        suspicious_M = (suspicion_M > 0.0) & (_ranks(losses_M, query_M) >= self.keep_minimum)
        return self.verdicts(suspicion_M, suspicious_M)

    def _thresholds(self, candidates: ScoredCandidates, losses_M: FloatArray) -> FloatArray:
        """Return th_q over each query's candidates and its positive, whose shifted loss is 0, shape (Q,)."""
        num_candidates_Q = np.diff(candidates.offsets) + 1
        if self.rule == "quantile":
            return self._quantiles(candidates, losses_M)
        mean_Q: FloatArray = candidates.sum_Q(losses_M) / num_candidates_Q
        if self.rule == "mean":
            return mean_Q
        squares_M = (losses_M - mean_Q[candidates.query_M()]) ** 2
        variance_Q = (candidates.sum_Q(squares_M) + mean_Q**2) / num_candidates_Q
        return np.asarray(mean_Q + self.num_std * np.sqrt(variance_Q))

    def _quantiles(self, candidates: ScoredCandidates, losses_M: FloatArray) -> FloatArray:
        """Return the quantile of each query, like numpy's with linear interpolation."""
        import pandas as pd

        losses = np.concatenate([losses_M, np.zeros(candidates.num_queries)])
        query = np.concatenate([candidates.query_M(), np.arange(candidates.num_queries)])
        return np.asarray(pd.Series(losses).groupby(query).quantile(self.quantile))


def _ranks(losses_M: FloatArray, query_M: IntArray) -> IntArray:
    """Return the rank of each negative within its query, 0 for the largest loss; ties in list order."""
    import pandas as pd

    ranks_M = pd.Series(losses_M).groupby(query_M).rank(method="first", ascending=False)
    return ranks_M.to_numpy().astype(np.int64) - 1
