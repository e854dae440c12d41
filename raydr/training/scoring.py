"""From a batch to the score matrix of the losses, and their values, some queries at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raydr.losses.base import TEACHER_SCORES, Candidates, Loss, LossOutput
from raydr.models.config import ModelConfig
from raydr.training.batches import ABSENT, Batch
from raydr.training.collectives import gather, gather_with_grad, rank
from raydr.training.signals import BatchSignal, Cells


@dataclass(frozen=True)
class Encodings:
    """The vectors of a batch by a model: of this rank's queries, and of the passages of all ranks.

    Args:
        query_QD: vectors of this rank's queries.
        passage_CD: vectors of the passages of all ranks, the same number per query, its positive first.
        config: config of the model, with the score function.
    """

    query_QD: Tensor
    passage_CD: Tensor
    config: ModelConfig

    @classmethod
    def gathered(cls, query_QD: Tensor, passage_PD: Tensor, config: ModelConfig) -> Encodings:
        """Return the encodings with the passages of all ranks; each rank calls this once per batch."""
        return cls(query_QD, gather_with_grad(passage_PD), config)

    def first(self, dim: int) -> Encodings:
        """Return the first dimensions of each vector, with length 1 if the similarity is cosine."""
        query, passage = self.query_QD[..., :dim], self.passage_CD[..., :dim]
        if self.config.similarity == "cosine":
            query, passage = nn.functional.normalize(query, dim=-1), nn.functional.normalize(passage, dim=-1)
        return replace(self, query_QD=query, passage_CD=passage)

    def scores_QC(self, rows: slice) -> Tensor:
        """Return scores of some of this rank's queries with the passages of all ranks, float32, unmasked."""
        # Autocast would round the products.
        with torch.autocast(self.query_QD.device.type, enabled=False):
            return self.config.logits_QP(self.query_QD[rows], self.passage_CD)


@dataclass(frozen=True)
class BatchView:
    """The encodings, masks and signals of a batch, which a loss reads.

    Args:
        student: encodings by the network in training.
        batch: this rank's share.
        hash_C: content hashes of the passages of all ranks.
        signals: gathered signals of the batch.
        in_batch_negatives: whether passages of other queries are negatives.
        teacher: encodings by the teacher, or None.
    """

    student: Encodings
    batch: Batch
    hash_C: Tensor
    signals: tuple[BatchSignal, ...]
    in_batch_negatives: bool = True
    teacher: Encodings | None = None

    @classmethod
    def gathered(
        cls, student: Encodings, batch: Batch, in_batch_negatives: bool = True, teacher: Encodings | None = None
    ) -> BatchView:
        """Return the view with the hashes and signals of all ranks; each rank calls this once per batch."""
        signals = tuple(signal.gathered() for signal in batch.signals)
        return cls(student, batch, gather(batch.passage_hash_P), signals, in_batch_negatives, teacher)

    def first(self, dim: int) -> BatchView:
        """Return the view with the first dimensions of all vectors, also the teacher's."""
        teacher = None if self.teacher is None else self.teacher.first(dim)
        return replace(self, student=self.student.first(dim), teacher=teacher)

    def candidates(self, rows: slice = slice(None)) -> Candidates:
        """Return the scores, masks and signals of this rank's queries with the passages of all ranks.

        Known positives, their copies, dropped passages and empty places are excluded for each query, whatever their
        rank and query.

        Args:
            rows: rows of the queries; all by default.
        """
        batch = self.batch
        scores_QC = self.student.scores_QC(rows)
        num_queries, num_places, device = len(batch.query_rows), len(batch.passage_hash_P), scores_QC.device
        group = num_places // num_queries
        first_Q = rank() * num_places + torch.arange(num_queries, device=device)[rows] * group
        own_QG = first_Q.unsqueeze(1) + torch.arange(group, device=device)
        # A matrix of column numbers would be the largest tensor in batches of tens of thousands.
        hard_QC = torch.zeros_like(scores_QC, dtype=torch.bool).scatter_(1, own_QG[:, 1:], True)
        excluded_QC = (self.hash_C == ABSENT).expand_as(hard_QC).clone()
        for forbidden_Q in batch.forbidden_QF[rows].unbind(dim=1):
            excluded_QC |= forbidden_Q.unsqueeze(1) == self.hash_C.unsqueeze(0)
        if not self.in_batch_negatives:
            excluded_QC |= ~hard_QC
        excluded_QC.scatter_(1, first_Q.unsqueeze(1), False)
        candidates = Candidates(scores_QC, first_Q, excluded_QC, hard_QC)
        if self.teacher is not None:
            with torch.no_grad():
                candidates = candidates.with_signals(**{TEACHER_SCORES: self.teacher.scores_QC(rows)})
        cells = Cells(rows, own_QG, self.hash_C)
        for signal in self.signals:
            candidates = signal.put(candidates, cells)
        return candidates


def loss_in_tiles(
    view: BatchView, loss: Loss, epoch: int, num_queries: int, tile: int | None, dims: Sequence[int] = ()
) -> LossOutput:
    """Compute the loss of the first queries of a batch.

    With ``dims`` it is ℓ(q) = Σ_d ℓ_d(q), where ℓ_d is the loss of the first d dimensions of all vectors.

    Source: Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022) eq. 1, with equal weights as in
    ``MatryoshkaLoss`` of sentence-transformers.

    The loss of a query depends on its own row of scores, so that tiles of rows can be computed one after another. The
    backward pass computes a tile's scores, masks and intermediate results again. A batch of Q queries and C passages
    needs memory for tile · C cells in place of Q · C, and this part of a step takes twice the time.

    Args:
        view: encoded batch.
        loss: loss to compute.
        epoch: number of epochs finished before this step.
        num_queries: number of queries without the fillers after them.
        tile: number of queries at a time; None computes all at once, and once.
        dims: numbers of dimensions; the whole vectors if empty.

    Returns:
        The loss of each query, and metrics as means over the queries.
    """

    def compute(rows: slice) -> LossOutput:
        if not dims:
            return loss.compute(view.candidates(rows), epoch)
        nested = [loss.compute(view.first(dim).candidates(rows), epoch) for dim in dims]
        per_query_Q = torch.stack([output.per_query_Q for output in nested]).sum(dim=0)
        means = {name: torch.stack([output.metrics[name] for output in nested]).mean() for name in nested[0].metrics}
        return LossOutput(per_query_Q, means)

    if tile is None or tile >= num_queries:
        return compute(slice(num_queries))
    ends = [(at, min(at + tile, num_queries)) for at in range(0, num_queries, tile)]
    outputs = [checkpoint(compute, slice(*end), use_reentrant=False, preserve_rng_state=False) for end in ends]
    shares = [(stop - start) / num_queries for start, stop in ends]
    metrics = {
        name: sum(share * output.metrics[name] for share, output in zip(shares, outputs, strict=True))
        for name in outputs[0].metrics
    }
    return LossOutput(torch.cat([output.per_query_Q for output in outputs]), metrics)
