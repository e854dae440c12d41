"""Queries that are trained on and evaluated with."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import WORDS

from raydr.data.leakage import find_leaks

LONG = (
    "which of the old castles on the mountain of the north was the first one that a king of the south has built there"
)


@pytest.mark.parametrize(
    ("training", "held_out", "is_leak"),
    [
        ("What is RCL?", "what is  rcl", True),
        ("who built the bridge", "the bridge: who built it", False),
        (LONG, LONG.replace("built", "made"), False),
        (f"{LONG} in the east or west", f"{LONG} in the east or west?!", True),
        ("how many people live in Paris", "how many people live in Rome", False),
        ("caf\u00e9 noir", "cafe\u0301 noir", True),
        # The vowels of Devanagari are marks, which re does not count as parts of a word.
        ("मेरा घर की चाबी", "मेरी घर का चोबे", False),
        ("", "", False),
        ("?", "?", False),
    ],
)
def test_copies_and_near_copies_are_leaks(training: str, held_out: str, is_leak: bool) -> None:
    assert find_leaks([training], [held_out]) == ({0: 0} if is_leak else {})


@pytest.mark.invariant
def test_all_pairs_are_found_that_comparing_each_with_each_finds() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS[:24], size=rng.integers(1, 30))) for _ in range(300)]
    training, held_out = texts[:200], [*texts[200:], *(f"{text} extra" for text in texts[:50])]

    def alike(text: str, other: str) -> bool:
        w, v = set(text.split()), set(other.split())
        return len(w & v) >= 0.9 * len(w | v) - 1e-12

    expected = {
        at: next(number for number, other in enumerate(held_out) if alike(text, other))
        for at, text in enumerate(training)
        if any(alike(text, other) for other in held_out)
    }
    assert find_leaks(training, held_out) == expected
    assert 20 < len(expected) < 200
