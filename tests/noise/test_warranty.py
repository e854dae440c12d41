"""What decisions warrant: the bound holds however people decide, and says what more decisions buy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from raydr.errors import ConfigError
from raydr.noise.evidence import evidence
from raydr.noise.judges.base import BoolArray, FloatArray
from raydr.noise.judges.calibrated import Calibrated
from raydr.noise.warranty import SuspectSets, Warranty, log_evidence, lots_of

BOUND, CONFIDENCE = 0.05, 0.95
NEEDED = np.log(1 / (1 - CONFIDENCE))


def sets_of(evidence_N: FloatArray, seed: int = 0, bound: float = BOUND) -> SuspectSets:
    return SuspectSets(evidence_N, np.random.default_rng([seed, 1]).permutation(len(evidence_N)), bound, CONFIDENCE)


def judged(seed: int, num: int, distance: float = 2.3) -> tuple[FloatArray, BoolArray]:
    """A judge's evidence, and which labels are wrong; 2.3 is an AUROC of .95."""
    rng = np.random.default_rng([seed, 0])
    wrong_N = rng.random(num) < 0.4
    return rng.normal(0.0, 1.0, num) + distance * wrong_N, wrong_N


def reviewed(sets: SuspectSets, wrong_N: BoolArray, num_decisions: int, at_once: int = 5) -> Warranty:
    """The warranty after people have followed the order of the review, which moves with what is warranted."""
    decided: list[int] = []
    warranty = sets.warrant([], [])
    while len(decided) < min(num_decisions, len(wrong_N)):
        order = sets.in_turn(warranty.stage)
        decided += order[~np.isin(order, decided)][:at_once].tolist()
        warranty = sets.warrant(decided, ~wrong_N[decided])
    return warranty


@pytest.mark.invariant
@pytest.mark.parametrize("num_labels", [100, 1000])
def test_a_bound_that_is_just_broken_is_hardly_ever_warranted_even_by_who_stops_when_it_is(num_labels: int) -> None:
    rng, limit = np.random.default_rng(0), num_labels // 20 + 1
    right_N = np.arange(num_labels) < limit
    lied = [(log_evidence(rng.permutation(right_N)[:400], num_labels, limit) >= NEEDED).any() for _ in range(1000)]
    # Of 1,000 draws at .05 a share above .07 comes in one of 400 repetitions. The test is not needlessly weak either.
    assert 0.01 < np.mean(lied) < 0.07


@pytest.mark.invariant
def test_the_chosen_set_keeps_its_promise() -> None:
    """Of judges that are hardly any good, where a set's share of right labels is near the bound."""
    broken, drops = 0, 0
    for seed in range(120):
        evidence_N, wrong_N = judged(seed, 600, 1.5)
        sets = sets_of(evidence_N, seed, 0.1)
        warranty = reviewed(sets, wrong_N, 200, 10)
        dropped_N = evidence_N > warranty.threshold
        assert dropped_N.sum() == warranty.num_drops
        broken += bool(dropped_N.any() and (~wrong_N)[dropped_N].mean() > 0.1)
        drops += warranty.num_drops
    assert broken <= 11
    assert drops > 120 * 50


def test_a_good_judge_is_trusted_after_some_decisions_and_further_ones_allow_more() -> None:
    evidence_N, wrong_N = judged(0, 4000)
    sets = sets_of(evidence_N)
    drops = [reviewed(sets, wrong_N, num).num_drops for num in (0, 60, 150, 400)]
    assert drops == sorted(drops)
    assert drops[:2] == [0, 100]
    assert drops[-1] > 600


def test_what_people_choose_to_look_at_does_not_count_before_its_turn() -> None:
    """They have decided on the wrong labels alone."""
    evidence_N, wrong_N = judged(1, 500, 0.5)
    chosen = np.flatnonzero(wrong_N)[:150]
    sets = sets_of(evidence_N)
    assert sets.warrant(chosen, np.zeros(150, np.bool_)).num_drops == 0
    # The order of decisions does not matter.
    turn = sets.in_turn(0)[:120]
    both = [sets.warrant(rows, ~wrong_N[rows]) for rows in (turn, turn[::-1])]
    assert both[0] == both[1]


def test_where_everything_is_decided_nothing_is_estimated() -> None:
    evidence_N, wrong_N = judged(2, 300, 3.0)
    sets = sets_of(evidence_N)
    warranty = sets.warrant(np.arange(300), ~wrong_N)
    share_S = np.array([(~wrong_N)[np.argsort(-evidence_N)[:size]].mean() for size in sets.sizes_S])
    assert warranty.stage == np.argmax(share_S > BOUND) > 0
    assert warranty.next_decisions is None
    assert warranty.next_right == pytest.approx(share_S[warranty.stage])
    all_wrong = sets.warrant(np.arange(300), np.zeros(300, np.bool_))
    assert (all_wrong.num_drops, all_wrong.next_drops) == (300, 300)
    assert (evidence_N > all_wrong.threshold).all()
    assert all_wrong.sentence("pairs").endswith("by 300 decisions")


def test_labels_of_equal_suspicion_are_dropped_together() -> None:
    evidence_N = np.repeat([3.0, 1.0, 2.0], [130, 20, 50])
    sets = sets_of(evidence_N)
    assert sets.sizes_S.tolist() == [130, 180, 200]
    warranty = reviewed(sets, evidence_N > 1.5, 150)
    assert warranty.num_drops in (130, 180)
    assert (evidence_N > warranty.threshold).sum() == warranty.num_drops
    assert sets.in_turn(2)[:60].tolist() != sets.in_turn(0)[:60].tolist()
    assert sets_of(np.zeros(0)).warrant([], []).num_drops == 0
    assert sets_of(np.zeros(3)).warrant([0], [True]).num_drops == 0


def test_the_number_of_decisions_that_are_still_needed_is_right_where_the_next_are_as_the_last() -> None:
    sets = sets_of(np.arange(2000.0))
    wrong_N = np.ones(2000, np.bool_)
    few = reviewed(sets, wrong_N, 10)
    assert few.sentence("pairs") == (
        "no drop of pairs is warranted yet by 10 decisions (at most 5 % right, with 95 % confidence); 100 drops after "
        f"about {few.next_decisions} more decisions"
    )
    assert few.next_decisions is not None
    needed = 10 + few.next_decisions
    assert reviewed(sets, wrong_N, needed - 1, 1).num_drops == 0
    assert reviewed(sets, wrong_N, needed, 1).num_drops == 100
    none = sets.warrant([], []).sentence("pairs")
    assert none.endswith(f"yet (at most 5 % right, with 95 % confidence); 100 drops after about {needed} decisions")
    hopeless = reviewed(sets, ~wrong_N, 40)
    assert "more decisions hardly help: about 100 % of the 100 most suspicious are right" in hopeless.sentence("pairs")


def test_the_random_order_rests_on_ids_alone() -> None:
    ids = [(f"q{at}", f"p{at % 7}") for at in range(50)]
    table = pa.table(dict(zip(("query_id", "passage_id"), map(list, zip(*ids, strict=True)), strict=True)))
    lots_N = lots_of("pairs", table)
    assert len(set(lots_N.tolist())) == 50
    assert lots_of("pairs", table.take([3, 1])).tolist() == lots_N[[3, 1]].tolist()
    assert lots_of("negatives", table).tolist() != lots_N.tolist()


@pytest.mark.parametrize("setting", ["confidence", "max_right_dropped"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 95.0])
def test_shares_outside_0_and_1_are_refused(setting: str, value: float) -> None:
    with pytest.raises((ConfigError, ValueError), match=f"{setting}\n"):
        Calibrated.model_validate({"name": "calibrated", setting: value})


def test_a_judge_that_flags_nothing_has_evidence_all_the_same() -> None:
    scores_N, none_N = np.array([3.0, 1.0, 2.0]), np.zeros(3, np.bool_)
    assert evidence(scores_N, none_N).max() == 0.0
    assert evidence(np.ones(3), none_N).tolist() == [0.0] * 3


def test_a_set_with_too_many_decided_right_labels_loses_its_warranty() -> None:
    sets = sets_of(np.arange(100.0))
    [drawn] = [sets.drawn(size) for size in sets.sizes_S[:1].tolist()]
    right_N = np.zeros(100, np.bool_)
    assert sets.warrant(drawn[:60], right_N[drawn[:60]]).num_drops == 100
    right_N[drawn[60:66]] = True
    # They are decided last, whether in their turn or not.
    for decided in (drawn[:66], np.concatenate([drawn[:59], drawn[60:66]])):
        warranty = sets.warrant(decided, right_N[decided])
        assert (warranty.num_drops, warranty.next_drops, warranty.next_decisions) == (0, 100, None)
