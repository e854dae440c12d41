"""The experiment follows the review, and its rival knows the truth where everything is decided."""

from __future__ import annotations

import numpy as np

from experiments.review_warranty import STEPS, review_once, sets_at_random, sets_in_turn, simulated
from raydr.noise.warranty import SuspectSets


def test_labels_are_decided_as_the_review_shows_them() -> None:
    rng = np.random.default_rng(0)
    suspicion_N, wrong_N = (part[:1500] for part in simulated(0.95, rng))
    sets = SuspectSets(suspicion_N, rng.permutation(1500), 0.2, 0.95)
    num_sets = dict(zip(STEPS, sets_in_turn(sets, wrong_N).tolist(), strict=True))
    decided: list[int] = []
    stage = 0
    for step in range(1, 201):
        order = sets.in_turn(stage)
        decided.append(int(order[~np.isin(order, decided)][0]))
        stage = sets.warrant(decided, ~wrong_N[decided]).stage
        if step in num_sets:
            assert stage == num_sets[step]
    assert num_sets[200] > num_sets[50] > 0


def test_who_has_decided_everything_finds_what_can_be_found() -> None:
    rng = np.random.default_rng(1)
    suspicion_N, wrong_N = (part[:2000] for part in simulated(0.95, rng))
    done = review_once(lambda _: (suspicion_N, wrong_N), 0.2, rng)
    assert done.random.recall_B[-1] == done.most_recall
    assert done.random.held_B[-1]
    assert done.review.recall_B[2] > done.random.recall_B[2]
    sets = SuspectSets(suspicion_N, rng.permutation(2000), 0.2, 0.95)
    assert sets_at_random(sets, suspicion_N, ~wrong_N, rng)[-1] == 0
