"""How the encodings of a query and of a passage become one number.

Training, dev retrieval, detection, judging and exact search ask the same function, so that a pair has the same score in
all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from raydr.component import Component

# Configs name score functions, and reading a config must not take the seconds that importing PyTorch does.
if TYPE_CHECKING:
    from torch import Tensor

#: Numbers of the queries' encodings beside a block of the passages' that :meth:`ScoreFunction.all_pairs` holds: 64 MiB.
_BLOCK_FLOATS = 1 << 24


class ScoreFunction(Component):
    """Base of the score functions; subclasses implement :meth:`pairs`.

    A text's encoding has as many dimensions as the function reads: one, D, is a single vector. Scores here are
    similarities; losses and detectors see them times the scale τ, see :meth:`raydr.models.config.ModelConfig.logits`.
    """

    package: ClassVar[str] = "raydr.models.scores"
    kind: ClassVar[str] = "score function"
    is_inner_product: ClassVar[bool] = False
    """Whether it is the inner product of two vectors, of which FAISS finds the largest."""

    @abstractmethod
    def pairs(self, query: Tensor, passage: Tensor) -> Tensor:
        """Similarities of queries with passages, whose leading dimensions are broadcast against each other.

        So N queries with a passage each are (N, D) and (N, D), and with M candidates each (N, 1, D) and (N, M, D).

        Args:
            query: float32, (..., D).
            passage: float32, (..., D).

        Returns:
            float32, the leading dimensions.
        """

    def all_pairs(self, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        """Similarities (Q, P) in float32 of every query with every passage, both in any arithmetic."""
        import torch

        query_QD, passage_PD = query_QD.float(), passage_PD.float()
        blocks = torch.split(passage_PD, max(1, _BLOCK_FLOATS // max(1, query_QD.numel())))
        return torch.cat([self.pairs(query_QD.unsqueeze(1), block.unsqueeze(0)) for block in blocks], dim=1)
