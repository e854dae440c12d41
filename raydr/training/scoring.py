"""From a batch to the score matrix that the losses work on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raydr.losses.base import Candidates
from raydr.models.config import ModelConfig
from raydr.training.batches import ABSENT, Batch, GuideView
from raydr.training.collectives import gather, gather_with_grad, rank


def score_candidates(
    query_QD: Tensor, passage_PD: Tensor, batch: Batch, config: ModelConfig, in_batch_negatives: bool = True
) -> Candidates:
    """Scores of this rank's queries against the passages of all ranks.

    Args:
        query_QD: this rank's query vectors.
        passage_PD: this rank's passage vectors, as many for each query, positives first.
        batch: where they came from.
        config: the model's, which says what the score of two vectors is.
        in_batch_negatives: if False, only a query's own hard negatives count.

    Returns:
        The candidates with known positives, passages identical to one, dropped passages and empty places
        excluded for each query, in-batch and cross-rank ones included.
    """
    num_queries = query_QD.shape[0]
    group = passage_PD.shape[0] // num_queries
    all_passages_CD = gather_with_grad(passage_PD)
    all_hashes_C = gather(batch.passage_hash_P)
    # Scores are float32 whatever encoded the texts: autocast, where it is on, would round them off.
    with torch.autocast(query_QD.device.type, enabled=False):
        scores_QC = config.logits_QP(query_QD, all_passages_CD)

    first_Q = rank() * passage_PD.shape[0] + torch.arange(num_queries, device=query_QD.device) * group
    own_QG = first_Q.unsqueeze(1) + torch.arange(group, device=query_QD.device)
    # No matrix of columns: in batches of ten thousands it would be the largest of all.
    hard_QC = torch.zeros_like(scores_QC, dtype=torch.bool).scatter_(1, own_QG[:, batch.num_positives :], True)
    further_QC = None
    if batch.num_positives > 1:
        further_QG = own_QG[:, 1 : batch.num_positives]
        further_QC = torch.zeros_like(hard_QC).scatter_(1, further_QG, all_hashes_C[further_QG] != ABSENT)
    excluded_QC = (all_hashes_C == ABSENT).expand_as(hard_QC).clone()
    for forbidden_Q in batch.forbidden_QF.unbind(dim=1):
        excluded_QC |= forbidden_Q.unsqueeze(1) == all_hashes_C.unsqueeze(0)
    if not in_batch_negatives:
        excluded_QC |= ~hard_QC
    if batch.guide is not None:
        excluded_QC |= _like_positives(batch.guide, first_Q)
    excluded_QC.scatter_(1, first_Q.unsqueeze(1), False)

    log_draw_prob_QC = None
    if batch.log_draw_prob_P is not None:
        log_draw_prob_QC = torch.full_like(scores_QC, math.nan)
        log_draw_prob_QC[hard_QC] = batch.log_draw_prob_P.view(num_queries, group)[:, batch.num_positives :].reshape(-1)
    ranker_scores_QC = None
    if batch.ranker_score_P is not None:
        known_QG = batch.ranker_score_P.view(num_queries, group)
        ranker_scores_QC = torch.full_like(scores_QC, math.nan).scatter(1, own_QG, known_QG)
    return Candidates(
        scores_QC=scores_QC,
        positive_Q=first_Q,
        excluded_QC=excluded_QC,
        hard_QC=hard_QC,
        further_QC=further_QC,
        log_weight_QC=_log_weights(batch, all_hashes_C, scores_QC),
        log_draw_prob_QC=log_draw_prob_QC,
        ranker_scores_QC=ranker_scores_QC,
    )


def _like_positives(guide: GuideView, first_Q: Tensor) -> Tensor:
    """Which candidates the guide finds nearer to a query than its positive less the margin."""
    guide_QC = guide.query_QD @ gather(guide.passage_PD).T
    return guide_QC > guide.rule.limits(guide_QC.gather(1, first_Q.unsqueeze(1)))


def _log_weights(batch: Batch, all_hashes_C: Tensor, scores_QC: Tensor) -> Tensor | None:
    """Log weights of the passages that a judge has down-weighted for a query, whoever brought them; 0 for others."""
    if batch.weighted_hash_QW is None or batch.weighted_log_QW is None:
        return None
    log_weight_QC = torch.zeros_like(scores_QC)
    columns = zip(batch.weighted_hash_QW.unbind(dim=1), batch.weighted_log_QW.unbind(dim=1), strict=True)
    for hash_Q, log_Q in columns:
        same_QC = hash_Q.unsqueeze(1) == all_hashes_C.unsqueeze(0)
        log_weight_QC = torch.where(same_QC, log_Q.unsqueeze(1), log_weight_QC)
    return log_weight_QC
