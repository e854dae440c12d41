"""A loss, some queries at a time, so that the matrix of all scores is never held."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.checkpoint import checkpoint

from raydr.losses.base import Loss, LossOutput
from raydr.training.scoring import BatchView


def loss_in_tiles(
    view: BatchView, loss: Loss, epoch: int, num_queries: int, tile: int | None, dims: Sequence[int] = ()
) -> LossOutput:
    """Compute the loss of the first queries of a batch.

    With ``dims`` it is ℓ(q) = Σ_d ℓ_d(q), where ℓ_d is the loss of the first d dimensions of all vectors.

    Source: Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022) eq. 1, with equal weights, as
    ``MatryoshkaLoss`` of sentence-transformers has them.

    The loss of a query depends on its own row of scores, so that rows can be computed apart. The backward pass computes
    a tile's scores, masks and intermediate results again. A batch of Q queries and C passages needs memory for tile · C
    cells in place of Q · C, and this part of a step takes twice the time.

    Args:
        view: the batch as it was encoded.
        loss: what is computed.
        epoch: epochs finished before this step.
        num_queries: how many queries count; others behind them only fill the batch up.
        tile: queries at a time; all at once, and once, if None.
        dims: numbers of dimensions; all of them once if empty.

    Returns:
        The loss of each query, and its metrics as their mean over the queries.
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
