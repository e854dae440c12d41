"""Co-teaching: of each batch, a network learns from the pairs that the other one finds easy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raydr.errors import ConfigError
from raydr.noise.coteaching import select_small_loss
from raydr.training.collectives import gather, num_ranks, rank


def require_dropout(network: nn.Module) -> None:
    """Refuse networks that start alike and would stay so: only dropout tells two copies of a checkpoint apart.

    Raises:
        ConfigError: the network has no dropout.
    """
    rates = [
        rate
        for module in network.modules()
        for rate in (module.p if isinstance(module, nn.Dropout) else None, getattr(module, "attention_dropout", None))
        if isinstance(rate, float)
    ]
    if not any(rates):
        raise ConfigError(
            "train.coteaching: the checkpoint has no dropout, so its two copies would stay alike; set model.dropout"
        )


def exchange(per_query: tuple[Tensor, Tensor], keep_share: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """The losses that two networks learn from: mean over the pairs of the global batch that are easy for the other.

    Pairs that are left out still lend their passages as negatives.

    Source: Han et al., Co-teaching (NeurIPS 2018), algorithm 1.

    Args:
        per_query: loss of this rank's queries under the first and the second network, each (Q,).
        keep_share: R(T), the share of the global batch that is learnt from.

    Returns:
        The loss of each network, whose mean over the ranks is the mean over the chosen pairs; and for each network
        which of this rank's queries it learns from, bool (Q,).
    """
    masks = (_easiest(per_query[1], keep_share), _easiest(per_query[0], keep_share))
    losses = tuple(
        (loss_Q * mask_Q).sum() * num_ranks() / gather(mask_Q).sum()
        for loss_Q, mask_Q in zip(per_query, masks, strict=True)
    )
    return (losses[0], losses[1]), masks


def _easiest(loss_Q: Tensor, keep_share: float) -> Tensor:
    """Which of this rank's queries are among the global batch's share of smallest losses."""
    mine = loss_Q.detach()
    all_Q = gather(mine)
    chosen = torch.zeros(len(all_Q), dtype=torch.bool, device=mine.device)
    chosen[select_small_loss(all_Q, keep_share)] = True
    return chosen[rank() * len(mine) : (rank() + 1) * len(mine)]
