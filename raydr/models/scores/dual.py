"""The inner product of a single vector per text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from raydr.models.scores.base import ScoreFunction, inner_products

if TYPE_CHECKING:
    from torch import Tensor


class Dual(ScoreFunction):
    """The inner product x·y of the two texts' vectors, which is their cosine if the model scales vectors to length 1.

    >>> import torch
    >>> queries, passages = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    >>> Dual().all_pairs(queries, passages).tolist(), Dual().pairs(queries, passages).tolist()
    ([[3.0, 5.0], [8.0, 12.0]], [3.0, 12.0])
    """

    name: Literal["dual"] = "dual"
    is_inner_product: ClassVar[bool] = True

    def pairs(self, query: Tensor, passage: Tensor) -> Tensor:
        import torch

        return torch.einsum("...d,...d->...", query, passage)

    def all_pairs(self, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        return inner_products(query_QD, passage_PD)
