"""The poly-encoder: the query's vectors, weighted by their inner products with the passage's vector."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raydr.models.scores.attended import Attended
from raydr.models.scores.base import Vectors


class Poly(Attended):
    """y · Σ_i softmax_i(x_i·y) x_i over the m' vectors of a query; y is the pooled vector of the passage.

    Source: Humeau et al. (ICLR 2020), in the form of Zhang and Stratos (NAACL 2021).

    >>> import torch
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> Poly(num_vectors=2).pairs(query, torch.tensor([2.0, 2.0])), Poly(num_vectors=2, attention="hard").pairs(
    ...     query, torch.tensor([1.0, 3.0])
    ... )
    (tensor(2.), tensor(3.))
    """

    name: Literal["poly"] = "poly"
    num_vectors: int = Field(default=16, ge=1)
    """m', the number of a query's vectors."""

    vectors: Literal["first", "codes"] = "codes"
    """m' learnt codes that attend over all tokens, or the states of the first m' tokens."""

    attention: Literal["soft", "hard"] = "soft"
    keys: Literal["query"] = "query"

    @property
    def query_vectors(self) -> Vectors:
        return Vectors(self.vectors, self.num_vectors)
