"""Synthetic pairs, half of them mismatched on purpose: ``python examples/made_pairs.py pairs.csv`` writes them."""

from __future__ import annotations

import csv
import itertools
import random
import sys

COLOURS = {"red": "crimson", "blue": "navy", "green": "emerald", "white": "ivory", "black": "ebony", "yellow": "golden"}
THINGS = {"sofa": "couch", "bicycle": "bike", "lamp": "light", "carpet": "rug", "coat": "jacket", "cup": "mug"}
MATERIALS = ["oak", "steel", "cotton", "crystal", "marble"]
USERS = {"children": "kids", "travellers": "tourists", "gardeners": "farmers", "clerks": "office workers"}


def make_pairs() -> list[tuple[str, str]]:
    """Return queries with passages that say the same in other words."""
    combinations = list(itertools.product(COLOURS, THINGS, MATERIALS, USERS))
    random.Random(0).shuffle(combinations)
    return [
        (
            f"{COLOURS[colour]} {THINGS[thing]} of {material} for {USERS[user]}",
            f"{colour.capitalize()} {thing}, built from {material}. Liked by {user}.",
        )
        for colour, thing, material, user in combinations[:400]
    ]


def mismatch_half(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Exchange the passages of every second query."""
    wrong = [passage for _, passage in pairs[::2]]
    shifted = iter(wrong[1:] + wrong[:1])
    return [(query, next(shifted) if at % 2 == 0 else passage) for at, (query, passage) in enumerate(pairs)]


def main(path: str) -> None:
    """Write the pairs to a file with the columns ``query`` and ``positive``."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("query", "positive"), *mismatch_half(make_pairs())])


if __name__ == "__main__":
    main(sys.argv[1])
