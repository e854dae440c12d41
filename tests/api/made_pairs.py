"""Pairs of a query and a passage, a fifth of them mismatched."""

from __future__ import annotations

import random
from typing import Any

#: Settings under which a call takes seconds.
SMALL: dict[str, Any] = {
    "model": {"query": {"max_length": 16}, "passage": {"max_length": 16}},
    "train": {"dtype": "float32", "optimizer": {"learning_rate": 1e-3}, "dev": {"random_passages": 20}},
    "encode": {"dtype": "float32"},
    "cross_fit": {"num_epochs": 1, "num_draws": 2},
}
_WORDS = [
    "river",
    "city",
    "mountain",
    "ocean",
    "forest",
    "desert",
    "island",
    "valley",
    "bridge",
    "castle",
    "king",
    "queen",
]


def make_pairs(num_pairs: int = 60) -> list[tuple[str, str]]:
    """The passage of every fifth query is that of the fifth query after it."""
    drawn = random.Random(0)
    passages = [" ".join(drawn.choices(_WORDS, k=6)) + f" {at}" for at in range(num_pairs)]
    queries = [" ".join(passage.split()[:3]) + f" {at}" for at, passage in enumerate(passages)]
    return [
        (query, passages[(at + 5) % num_pairs] if at % 5 == 0 else passages[at]) for at, query in enumerate(queries)
    ]
