"""From a batch to the score matrix that the losses work on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from raydr.losses.base import Candidates
from raydr.models.config import ModelConfig
from raydr.training.batches import ABSENT, Batch, GuideView
from raydr.training.collectives import gather, gather_with_grad, rank


@dataclass(frozen=True)
class Encodings:
    """A batch as one model has encoded it: this rank's queries, and the passages of all ranks.

    Args:
        query_QD: vectors of this rank's queries.
        passage_CD: vectors of the passages of all ranks, as many for each query, positives first.
        config: the model's, with the score function.
    """

    query_QD: Tensor
    passage_CD: Tensor
    config: ModelConfig

    @classmethod
    def gathered(cls, query_QD: Tensor, passage_PD: Tensor, config: ModelConfig) -> Encodings:
        """Return the encodings with the passages of all ranks; each rank calls this once for a batch."""
        return cls(query_QD, gather_with_grad(passage_PD), config)

    def first(self, dim: int) -> Encodings:
        """Keep the first dimensions of each vector, at length 1 again where the similarity is cosine."""
        query, passage = self.query_QD[..., :dim], self.passage_CD[..., :dim]
        if self.config.similarity == "cosine":
            query, passage = nn.functional.normalize(query, dim=-1), nn.functional.normalize(passage, dim=-1)
        return replace(self, query_QD=query, passage_CD=passage)

    def scores_QC(self, rows: slice) -> Tensor:
        """Return scores of some of this rank's queries against the passages of all ranks, float32, unmasked."""
        # Float32 whatever encoded the texts: autocast, where it is on, would round them off.
        with torch.autocast(self.query_QD.device.type, enabled=False):
            return self.config.logits_QP(self.query_QD[rows], self.passage_CD)


@dataclass(frozen=True)
class BatchView:
    """All that a loss sees of a batch: encodings, and what is known about its texts and pairs.

    Args:
        student: by the network that learns.
        batch: this rank's share.
        hash_C: content hashes of the passages of all ranks.
        guide_CD: the guide's vectors of them, or None.
        in_batch_negatives: if False, only a query's own hard negatives count.
        teacher: by the teacher, or None.
        clean_Q: float32, what the noise detector found about each pair, or None.
    """

    student: Encodings
    batch: Batch
    hash_C: Tensor
    guide_CD: Tensor | None
    in_batch_negatives: bool = True
    teacher: Encodings | None = None
    clean_Q: Tensor | None = None

    @classmethod
    def gathered(
        cls, student: Encodings, batch: Batch, in_batch_negatives: bool = True, teacher: Encodings | None = None
    ) -> BatchView:
        """Return the view with what is known of the passages of all ranks; each rank calls this once for a batch."""
        guide_CD = None if batch.guide is None else gather(batch.guide.passage_PD)
        return cls(student, batch, gather(batch.passage_hash_P), guide_CD, in_batch_negatives, teacher)

    def first(self, dim: int) -> BatchView:
        """Return the view of the vectors' first dimensions, the teacher's too."""
        teacher = None if self.teacher is None else self.teacher.first(dim)
        return replace(self, student=self.student.first(dim), teacher=teacher)

    def candidates(self, rows: slice = slice(None)) -> Candidates:
        """Return this rank's queries against the passages of all ranks: scores and masks.

        Args:
            rows: the queries, all by default.

        Returns:
            The candidates with known positives, passages identical to one, dropped passages and empty places
            excluded for each query, in-batch and cross-rank ones included.
        """
        batch = self.batch
        scores_QC = self.student.scores_QC(rows)
        num_queries, num_places, device = len(batch.query_rows), len(batch.passage_hash_P), scores_QC.device
        group = num_places // num_queries
        first_Q = rank() * num_places + torch.arange(num_queries, device=device)[rows] * group
        own_QG = first_Q.unsqueeze(1) + torch.arange(group, device=device)
        # No matrix of columns: in batches of ten thousands it would be the largest of all.
        hard_QC = torch.zeros_like(scores_QC, dtype=torch.bool).scatter_(1, own_QG[:, batch.num_positives :], True)
        further_QC = None
        if batch.num_positives > 1:
            further_QG = own_QG[:, 1 : batch.num_positives]
            further_QC = torch.zeros_like(hard_QC).scatter_(1, further_QG, self.hash_C[further_QG] != ABSENT)
        excluded_QC = (self.hash_C == ABSENT).expand_as(hard_QC).clone()
        for forbidden_Q in batch.forbidden_QF[rows].unbind(dim=1):
            excluded_QC |= forbidden_Q.unsqueeze(1) == self.hash_C.unsqueeze(0)
        if not self.in_batch_negatives:
            excluded_QC |= ~hard_QC
        if batch.guide is not None and self.guide_CD is not None:
            excluded_QC |= _like_positives(batch.guide, rows, self.guide_CD, first_Q)
        excluded_QC.scatter_(1, first_Q.unsqueeze(1), False)

        log_draw_prob_QC = None
        if batch.log_draw_prob_P is not None:
            drawn_QG = batch.log_draw_prob_P.view(num_queries, group)[rows, batch.num_positives :]
            log_draw_prob_QC = torch.full_like(scores_QC, math.nan)
            log_draw_prob_QC[hard_QC] = drawn_QG.reshape(-1)
        teacher_scores_QC = None
        if self.teacher is not None:
            with torch.no_grad():
                teacher_scores_QC = self.teacher.scores_QC(rows)
        ranker_scores_QC = None
        if batch.ranker_score_P is not None:
            known_QG = batch.ranker_score_P.view(num_queries, group)[rows]
            ranker_scores_QC = torch.full_like(scores_QC, math.nan).scatter(1, own_QG, known_QG)
        return Candidates(
            scores_QC=scores_QC,
            positive_Q=first_Q,
            excluded_QC=excluded_QC,
            hard_QC=hard_QC,
            further_QC=further_QC,
            log_weight_QC=_log_weights(batch, rows, self.hash_C, scores_QC),
            log_draw_prob_QC=log_draw_prob_QC,
            teacher_scores_QC=teacher_scores_QC,
            ranker_scores_QC=ranker_scores_QC,
            clean_Q=None if self.clean_Q is None else self.clean_Q[rows],
        )


def _like_positives(guide: GuideView, rows: slice, passage_CD: Tensor, first_Q: Tensor) -> Tensor:
    """Return which candidates the guide scores higher than a query's positive less the margin."""
    guide_QC = guide.query_QD[rows] @ passage_CD.T
    return guide_QC > guide.rule.limits(guide_QC.gather(1, first_Q.unsqueeze(1)))


def _log_weights(batch: Batch, rows: slice, hash_C: Tensor, scores_QC: Tensor) -> Tensor | None:
    """Return the log weights of passages that a judge has down-weighted for a query; 0 for others."""
    if batch.weighted_hash_QW is None or batch.weighted_log_QW is None:
        return None
    log_weight_QC = torch.zeros_like(scores_QC)
    weighted_hash_QW, weighted_log_QW = batch.weighted_hash_QW[rows], batch.weighted_log_QW[rows]
    columns = zip(weighted_hash_QW.unbind(dim=1), weighted_log_QW.unbind(dim=1), strict=True)
    for hash_Q, log_Q in columns:
        same_QC = hash_Q.unsqueeze(1) == hash_C.unsqueeze(0)
        log_weight_QC = torch.where(same_QC, log_Q.unsqueeze(1), log_weight_QC)
    return log_weight_QC
