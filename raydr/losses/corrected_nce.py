"""NCE with the logits of hard negatives corrected by their draw probabilities."""

from __future__ import annotations

from typing import Literal

from raydr.errors import ConfigError
from raydr.losses.base import LOG_DRAW_PROB, Candidates, Loss, LossOutput, gather_positive, log_softmax_QC


class CorrectedNCE(Loss):
    """Bias-corrected contrastive loss over negatives drawn i.i.d. from a known distribution.

    ℓ(q) = −log( exp(s⁺) / (exp(s⁺) + Σ_{c ≠ p⁺} exp(s_c − log(m·q(c)))) ). m is the number of hard negatives drawn for
    the query, q(c) the probability of drawing c. The expectation of the sum over hard negatives is the sum over the
    whole support of q. Only hard negatives are corrected; the positive and in-batch passages keep their logits.
    Excluded hard negatives count in m (they were drawn) and add nothing to the sum.

    Over a mined list, the support of q and the estimated sum are those of the list, not of the corpus. Draws must be
    with replacement: sampler ``softmax`` with ``with_replacement: true``. In a ``mixed`` sampler with m_h draws from
    the list and m_r from the whole corpus, the estimate is (m_h/m)·Σ_list + (m_r/m)·Σ_corpus.

    Shapes: scores (Q, C), draw log-probabilities (Q, C), read at hard cells only → loss (Q,).
    Source: Zhang and Stratos (NAACL 2021) eq. 10; it did not improve recall there.

    >>> import torch
    >>> hard_QC = torch.tensor([[False, True, True]])
    >>> candidates = Candidates(scores_QC=torch.tensor([[1.0, 0.5, 0.0]]), positive_Q=torch.tensor([0]),
    ...                         excluded_QC=torch.zeros(1, 3, dtype=torch.bool), hard_QC=hard_QC,
    ...                         signals={"log_draw_prob_QC": torch.full((1, 3), 0.5).log()})  # m·q = 1
    >>> round(CorrectedNCE().compute(candidates, epoch=0).per_query_Q.item(), 4)
    0.6803
    """

    name: Literal["corrected_nce"] = "corrected_nce"

    reads_draw_probabilities = True

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        hard_QC, log_draw_prob_QC = candidates.hard_QC, candidates.signal(LOG_DRAW_PROB)
        if hard_QC is None or log_draw_prob_QC is None:
            raise ConfigError(
                "loss corrected_nce needs hard negatives with known draw probabilities; "
                "use sampler {name: softmax, with_replacement: true}, or loss nce"
            )
        # Without clamp, log(0) of a query without hard negatives would reach the gradient.
        log_num_drawn_Q = hard_QC.sum(dim=1).clamp(min=1).float().log()
        correction_QC = (log_num_drawn_Q.unsqueeze(1) + log_draw_prob_QC.float()).where(hard_QC, 0.0)
        log_probs_QC = log_softmax_QC(candidates.logits_QC() - correction_QC)
        return LossOutput(-gather_positive(log_probs_QC, candidates.positive_Q))
