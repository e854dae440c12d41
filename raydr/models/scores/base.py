"""Score functions, from the encodings of a query and of a passage to a number.

Training, dev retrieval, detection, judging and exact search use the same function, so that a pair has the same score in
all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raydr.component import Component

# Configs name score functions, and importing PyTorch would delay the reading of a config by seconds.
if TYPE_CHECKING:
    from torch import Tensor

#: Numbers that :meth:`ScoreFunction.all_pairs` holds for a block of passages: 64 MiB.
BLOCK_FLOATS = 1 << 24


@dataclass(frozen=True)
class Vectors:
    """The vectors of a text that a score function reads.

    ``pooled`` is a single vector. The other kinds are several vectors: of the ``first`` tokens, of learnt ``codes``
    that attend over all tokens, or of all ``tokens``.
    """

    kind: Literal["pooled", "first", "codes", "tokens"] = "pooled"
    num: int = 1

    @property
    def several(self) -> bool:
        """Whether a text has several vectors, so that an encoding has a further dimension."""
        return self.kind != "pooled"

    @property
    def varies(self) -> bool:
        """Whether texts have different numbers of vectors, so that a batch has padding."""
        return self.kind in ("first", "tokens")

    def most(self, longest: int) -> int:
        """Return the number of vectors of a text of ``longest`` tokens.

        >>> Vectors("first", 8).most(5), Vectors("first", 8).most(50), Vectors("codes", 8).most(5)
        (5, 8, 8)
        """
        if self.kind == "tokens":
            return longest
        return min(self.num, longest) if self.kind == "first" else self.num


class ScoreFunction(Component):
    """Base of the score functions; subclasses implement :meth:`pairs`.

    The encoding of a text is a vector, (D,), or several vectors, (M, D), by :attr:`query_vectors` and
    :attr:`passage_vectors`. Rows of zeros among several vectors are padding. Scores here are similarities; losses and
    detectors read scale · similarity, see :meth:`raydr.models.config.ModelConfig.logits`.
    """

    package: ClassVar[str] = "raydr.models.scores"
    kind: ClassVar[str] = "score function"
    is_inner_product: ClassVar[bool] = False
    """Whether the score is the inner product of two vectors, so that FAISS can search with it."""

    @property
    def query_vectors(self) -> Vectors:
        """The vectors of a query."""
        return Vectors()

    @property
    def passage_vectors(self) -> Vectors:
        """The vectors of a passage."""
        return Vectors()

    @property
    def is_largest_of_tokens(self) -> bool:
        """Whether passages with high scores have vectors with high inner products with the query's.

        An index of all passages' vectors can then propose the passages to score.
        """
        return False

    @abstractmethod
    def pairs(self, query: Tensor, passage: Tensor) -> Tensor:
        """Compute similarities of queries and passages, whose leading dimensions are broadcast against each other.

        N queries with a passage each are (N, D) and (N, D); with K candidates each, (N, 1, D) and (N, K, D). With
        several vectors per text they are (N, M, D) and (N, P, D), or (N, 1, M, D) and (N, K, P, D).

        Args:
            query: vectors of queries, float32, (..., D) or (..., M, D).
            passage: vectors of passages, float32, (..., D) or (..., P, D).

        Returns:
            Similarities, float32, in the shape of the leading dimensions.
        """

    def all_pairs(self, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        """Compute similarities (Q, P) in float32 of every query with every passage, both in any dtype."""
        import torch

        query_QD, passage_PD = query_QD.float(), passage_PD.float()
        blocks = torch.split(passage_PD, max(1, BLOCK_FLOATS // max(1, query_QD.numel())))
        return torch.cat([self.pairs(query_QD.unsqueeze(1), block.unsqueeze(0)) for block in blocks], dim=1)


def inner_products(query_QD: Tensor, passage_PD: Tensor) -> Tensor:
    """Compute inner products (Q, P) in float32 of vectors in any dtype."""
    import torch

    if query_QD.is_cuda and query_QD.dtype == passage_PD.dtype == torch.float16:
        # The tensor cores sum in float32.
        return torch.mm(query_QD, passage_PD.T, out_dtype=torch.float32)
    return query_QD.float() @ passage_PD.float().T
