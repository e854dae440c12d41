"""Readings of labelled pairs: what they are of texts that agree, and that a pair's company changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.untrained_readers import COSINE, LATE, LONG, WORDS, readings, token_states

PAIRS = [("red river", "red river"), ("red river", "def red_river(x): blue stone"), ("blue stone", "x = 1 + 2")]


def test_a_code_that_is_its_query_is_read_as_right(tiny_checkpoint: str) -> None:
    found = readings(*zip(*PAIRS, strict=True), token_states(tiny_checkpoint, 16, 16))
    assert found[COSINE][0] == pytest.approx(1, abs=1e-6)
    assert found[LATE][0] == pytest.approx(1, abs=1e-6)
    assert found[COSINE].argmax() == found[LATE].argmax() == found[f"{COSINE} + {LATE}"].argmax() == 0
    # Words are found in identifiers.
    np.testing.assert_allclose(found[WORDS], [1, 1, 0])
    assert found[LONG].argmin() == 0


def test_a_pair_is_read_alike_in_any_company(tiny_checkpoint: str) -> None:
    encoder = token_states(tiny_checkpoint, 16, 16)
    together = readings(*zip(*PAIRS, strict=True), encoder)
    for at, (query, code) in enumerate(PAIRS):
        alone = readings([query], [code], encoder)
        for name in (COSINE, LATE):
            assert alone[name][0] == pytest.approx(together[name][at], abs=1e-5)
