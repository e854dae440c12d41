"""Co-teaching: each of two networks learns from the pairs of a batch with a small loss under the other network."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from raydr.errors import ConfigError
from raydr.training.batches import Batch
from raydr.training.checkpoint import Save
from raydr.training.collectives import gather, num_ranks, rank, without_sync
from raydr.training.dev import DevRetrieval
from raydr.training.learner import Learner
from raydr.training.metrics import Figures
from raydr.training.sections import CoTeachingConfig
from raydr.training.trainer import Trainer

#: Folder of the second network's state.
_PEER = "peer"
#: Names of shares of a batch: kept pairs, and noisy kept pairs.
_KEPT, _KEPT_NOISE = "kept", "kept_noise"


class CoTeachingTrainer(Trainer):
    """Trainer of two networks that choose each other's pairs; the network that is better on dev becomes ``model``.

    Source: Han et al., Co-teaching (NeurIPS 2018).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.config.coteaching is not None
        self.coteaching: CoTeachingConfig = self.config.coteaching
        self.peer = self.learner_of(copy.deepcopy(self.model))

    @property
    def chosen(self) -> Learner:
        return self.peer if self.progress.better_network else self.learner

    def resume(self, folder: Path) -> None:
        super().resume(folder)
        self.peer.load(folder / _PEER)

    def start_epoch(self) -> None:
        super().start_epoch()
        self.peer.model.train()

    def learn(self, batch: Batch, step: int, quiet: bool) -> tuple[Tensor, Figures]:
        both = self.learner, self.peer
        share_flagged = self.progress.detections[-1]["share_flagged"] if self.progress.detections else None
        keep_share = self.coteaching.keep_share(self.progress.epoch, share_flagged)
        with without_sync(self.learner.wrapped, quiet), without_sync(self.peer.wrapped, quiet):
            first, second = (self.forward(learner, batch, step, number) for number, learner in enumerate(both))
            losses, masks = exchange((first.per_query_Q, second.per_query_Q), keep_share)
            with self.clock.part("backward"):
                for learner, loss in zip(both, losses, strict=True):
                    learner.optimization.backward(loss / self.config.accumulation_steps)
        figures: Figures = {**first.metrics, "keep_share": torch.tensor(keep_share)}
        if self.batches.examples.is_noise.any():
            kept = masks[0].cpu().numpy()
            is_noise = self.batches.examples.is_noise[batch.query_rows[kept]]
            figures |= {_KEPT: torch.tensor(kept.mean()), _KEPT_NOISE: torch.tensor(is_noise.sum() / len(kept))}
        return losses[0], figures

    def clip(self) -> Tensor:
        norm, other = super().clip(), self.peer.optimization.clip()
        return torch.where(torch.isfinite(other), norm, other)

    def take_step(self) -> None:
        super().take_step()
        self.peer.step()

    def over_ranks(self, figures: dict[str, float]) -> dict[str, float]:
        """Return the means over the ranks, which are exact, since shares are shares of a whole batch."""
        means = super().over_ranks(figures)
        if _KEPT in means:
            kept, noise = means.pop(_KEPT), means.pop(_KEPT_NOISE)
            means["noise_among_kept"] = noise / kept if kept else 0.0
        return means

    def measure(self, dev: DevRetrieval) -> tuple[float, dict[str, float]]:
        values = [dev.measure(learner.model, self.dtype) for learner in (self.learner, self.peer)]
        self.progress = self.progress.changed(better_network=int(values[1] > values[0]))
        name = f"dev {self.config.dev.measure}"
        return max(values), {name: max(values), f"{name}, the other network": min(values)}

    def copy(self) -> Save:
        own, others = super().copy(), self.peer.copy()

        def save(folder: Path) -> None:
            own(folder)
            others(folder / _PEER)

        return save


def require_dropout(network: nn.Module) -> None:
    """Refuse a network without dropout: its two copies would stay equal.

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
            "train.coteaching: the checkpoint has no dropout, so its two copies would stay equal; set model.dropout"
        )


def exchange(per_query: tuple[Tensor, Tensor], keep_share: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Return each network's loss: the mean over the pairs of the global batch with a small loss under the other
    network.

    Passages of excluded pairs are still negatives.

    Source: Han et al., Co-teaching (NeurIPS 2018), algorithm 1.

    Args:
        per_query: loss of this rank's queries under the first and the second network, each (Q,).
        keep_share: R(T), the share of the global batch that each network learns from.

    Returns:
        The loss of each network, whose mean over the ranks is the mean over the chosen pairs. For each network, whether
        it learns from each of this rank's queries, bool (Q,).
    """
    masks = (_easiest(per_query[1], keep_share), _easiest(per_query[0], keep_share))
    losses = tuple(
        (loss_Q * mask_Q).sum() * num_ranks() / gather(mask_Q).sum()
        for loss_Q, mask_Q in zip(per_query, masks, strict=True)
    )
    return (losses[0], losses[1]), masks


def _easiest(loss_Q: Tensor, keep_share: float) -> Tensor:
    """Return whether each of this rank's queries is in the global batch's share with the smallest losses."""
    mine = loss_Q.detach()
    all_Q = gather(mine)
    chosen = torch.zeros(len(all_Q), dtype=torch.bool, device=mine.device)
    chosen[select_small_loss(all_Q, keep_share)] = True
    return chosen[rank() * len(mine) : (rank() + 1) * len(mine)]


def select_small_loss(loss_Q: Tensor, keep_share: float) -> Tensor:
    """Return the positions, ascending, of the share of queries with the smallest loss.

    These are ⌊keep_share · Q⌋ queries, and at least one; of equal losses the first comes first. ``loss_Q`` is the loss
    of the global batch under the *other* network.

    Shapes: (Q,) → (num_kept,), int64.

    >>> select_small_loss(torch.tensor([3.0, 1.0, 2.0, 4.0]), keep_share=0.5).tolist()
    [1, 2]
    """
    # 1e-6, since 0.6 · 5 is 2.999… in floating point.
    num_kept = max(math.floor(keep_share * len(loss_Q) + 1e-6), 1)
    kept = loss_Q.detach().argsort(stable=True)[:num_kept]
    return kept.sort().values
