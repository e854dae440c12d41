"""Co-teaching: each network learns from what the other finds easy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from raydr.component import Config

if TYPE_CHECKING:
    from torch import Tensor


class KeepSchedule(Config):
    """Share of each batch that is trained on, by epoch.

    R(T) = 1 − min(T / T_k · ε, ε): everything at first, before the networks can tell noise, then less and less, until
    the share 1 − ε is left.

    Source: Han et al., Co-teaching (NeurIPS 2018).

    >>> [round(KeepSchedule(noise_rate=0.4, ramp_epochs=2).keep_share(epoch), 2) for epoch in range(4)]
    [1.0, 0.8, 0.6, 0.6]
    """

    noise_rate: float = Field(ge=0.0, lt=1.0)
    """ε, given or estimated by a detector."""

    ramp_epochs: int = Field(default=10, ge=1)
    """T_k."""

    def keep_share(self, epoch: int) -> float:
        """R(T) after T = ``epoch`` finished epochs."""
        return 1.0 - min(epoch / self.ramp_epochs, 1.0) * self.noise_rate


def select_small_loss(loss_Q: Tensor, keep_share: float) -> Tensor:
    """Indices of the share of the batch with the smallest loss under the *other* network, ascending.

    ⌊keep_share · Q⌋ of them, at least one; among equal losses the earlier query wins. ``loss_Q`` is the global batch's.

    Shapes: (Q,) → (num_kept,), int64.

    >>> import torch
    >>> select_small_loss(torch.tensor([3.0, 1.0, 2.0, 4.0]), keep_share=0.5).tolist()
    [1, 2]
    """
    # 1e-6: 0.6 · 5 is 2.999… in floating point, and 3 is meant.
    num_kept = max(math.floor(keep_share * len(loss_Q) + 1e-6), 1)
    kept = loss_Q.detach().argsort(stable=True)[:num_kept]
    return kept.sort().values
