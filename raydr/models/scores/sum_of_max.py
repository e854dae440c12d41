"""Late interaction: the best match in the passage for each token of the query, summed."""

from __future__ import annotations

from typing import Literal

from raydr.models.scores.attended import Attended, Keys
from raydr.models.scores.base import Vectors


class SumOfMax(Attended):
    """Σ_i max_j x_i·y_j over all tokens i of the query and j of the passage, as in ColBERT.

    With cosines its absolute value is at most the number of the query's tokens, so that ``model.scale`` should be near
    1.

    Source: Khattab and Zaharia (SIGIR 2020), in the form of Zhang and Stratos (NAACL 2021).

    >>> import torch
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])  # the third is padding
    >>> float(SumOfMax().pairs(query, torch.tensor([[3.0, -1.0], [2.0, -4.0]])))
    2.0
    """

    name: Literal["sum_of_max"] = "sum_of_max"
    attention: Literal["soft", "hard"] = "hard"
    keys: Keys = "passage"

    @property
    def query_vectors(self) -> Vectors:
        return Vectors("tokens")

    @property
    def passage_vectors(self) -> Vectors:
        return Vectors("tokens")
