"""A single vector of the query against several vectors of the passage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raydr.models.scores.attended import Attended
from raydr.models.scores.base import Vectors


class Multi(Attended):
    """max_j x·y_j over the m' vectors of a passage; x is the pooled vector of the query.

    Source: Luan et al. (TACL 2021), in the form of Zhang and Stratos (NAACL 2021).

    >>> import torch
    >>> passage = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    >>> float(Multi().pairs(torch.tensor([-1.0, -2.0]), passage))  # the third is padding
    -1.0
    """

    name: Literal["multi"] = "multi"
    num_vectors: int = Field(default=8, ge=1)
    """m', the number of a passage's vectors."""

    vectors: Literal["first", "codes"] = "first"
    """The states of the first m' tokens, or m' learnt codes that attend over all tokens."""

    attention: Literal["soft", "hard"] = "hard"
    keys: Literal["passage"] = "passage"

    @property
    def passage_vectors(self) -> Vectors:
        return Vectors(self.vectors, self.num_vectors)
