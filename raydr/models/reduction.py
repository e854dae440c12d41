"""From the hidden states of a text's tokens to the vectors that the score function reads."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from raydr.models.config import Pooling
from raydr.models.scores.base import Vectors


class Reduction(nn.Module):
    """The mean of all states, the first or the last (``pooled``), the first m', m' learnt codes that attend over all,
    or all.

    Code c of the states h_1..h_L is Σ_t softmax_t(c·h_t) h_t (Humeau et al., ICLR 2020). Padding is never attended to;
    where texts have fewer vectors than the longest, the places that are left are zeros.
    """

    def __init__(self, vectors: Vectors, pooling: Pooling, hidden: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.pooling = pooling
        self.codes: nn.Parameter | None = None
        if vectors.kind == "codes":
            self.codes = nn.Parameter(torch.randn(vectors.num, hidden) / math.sqrt(hidden))

    def forward(self, hidden_NLD: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """States (N, D) or (N, M, D) in float32, and which of the latter are there, (N, M); None if all are."""
        if self.codes is not None:
            logits_NML = torch.einsum("md,nld->nml", self.codes.float(), hidden_NLD.float())
            lowest = torch.finfo(logits_NML.dtype).min
            weights_NML = logits_NML.masked_fill(attention_mask.unsqueeze(1) == 0, lowest).softmax(-1)
            return weights_NML @ hidden_NLD.float(), None
        if self.vectors.several:
            most = self.vectors.most(hidden_NLD.shape[1])
            return hidden_NLD[:, :most].float(), attention_mask[:, :most] != 0
        if self.pooling == "cls":
            return hidden_NLD[:, 0].float(), None
        if self.pooling == "last":
            # Padding is at the end.
            last_N = attention_mask.sum(1).clamp(min=1) - 1
            return hidden_NLD[torch.arange(len(last_N), device=last_N.device), last_N].float(), None
        mask_NL1 = attention_mask.unsqueeze(-1).to(torch.float32)
        return (hidden_NLD.float() * mask_NL1).sum(1) / mask_NL1.sum(1).clamp(min=1), None
