"""The poly-encoder with several vectors of the passage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raydr.models.scores.attended import Attended, Keys
from raydr.models.scores.base import Vectors


class GenPoly(Attended):
    """Σ_j y_j · Σ_i softmax_i(x_i·y_j) x_i: the score of ``poly``, summed over several vectors of the passage.

    Source: Zhang and Stratos (NAACL 2021), appendix B.

    >>> import torch
    >>> texts = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    >>> float(GenPoly(num_vectors=2, num_passage_vectors=2, attention="hard").pairs(texts, texts))
    13.0
    """

    name: Literal["genpoly"] = "genpoly"
    num_vectors: int = Field(default=16, ge=1)
    """m', the number of a query's vectors."""

    vectors: Literal["first", "codes"] = "codes"
    """The vectors of a query: m' learnt codes that attend over all tokens, or the states of the first m' tokens."""

    num_passage_vectors: int = Field(default=16, ge=1)
    """The number of a passage's vectors, which are the states of its first tokens."""

    attention: Literal["soft", "hard"] = "soft"
    keys: Keys = "query"

    @property
    def query_vectors(self) -> Vectors:
        return Vectors(self.vectors, self.num_vectors)

    @property
    def passage_vectors(self) -> Vectors:
        return Vectors("first", self.num_passage_vectors)
