from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.pruned_pairs import PartsOfPairs


def parts(rule: str, num_pairs: int = 101, batch_size: int = 5) -> PartsOfPairs:
    config = SimpleNamespace(batch_size=batch_size)
    whole = SimpleNamespace(examples=range(num_pairs), corpus=None, tokenizers={}, config=config, seed=3, num_steps=20)
    return PartsOfPairs(cast(Any, whole), 2, rule)


def test_the_first_pass_sees_each_pair_once_whatever_the_rule() -> None:
    hard, easy = (np.concatenate([parts(rule).rows(0), parts(rule).rows(1)]) for rule in ("hard", "easy"))
    assert np.array_equal(hard, easy)
    assert len(np.unique(hard)) == len(hard) == 100


def test_a_rule_prefers_what_it_says_and_leaves_the_others_a_chance() -> None:
    drawn = {}
    for rule in ("random", "hard", "easy"):
        made = parts(rule)
        # The higher the row, the easier the pair; the last one was in no batch.
        made.seen_N[:100] = np.arange(100) - 100.0
        drawn[rule] = made.rows(2)
        assert len(np.unique(drawn[rule])) == 50
    assert drawn["hard"].mean() < drawn["random"].mean() - 10
    assert drawn["easy"].mean() > drawn["random"].mean() + 10
    assert drawn["hard"].max() > 60
    assert drawn["easy"].min() < 40
