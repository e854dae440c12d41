"""Heads trained in each of the ways: what must be the same to the digit, and what may never be learnt from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.flags_by_heads import ARMS, Asked, Flagged, Frozen, Pace, Way, flag, train_way
from experiments.trained_heads import FrozenPairs
from raydr.config.run import RunConfig
from raydr.data.schema import to_table
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC
from raydr.training.config import TeacherConfig

NUM, NUM_ASKED = 400, 100
PACE = Pace(num_epochs=6, rate=1e-2, batch_size=32, seed=3)


@pytest.fixture
def frozen() -> Frozen:
    """Queries are their passages seen through a fixed change of signs, and noise; the last ones are asked."""
    rng = np.random.default_rng(0)
    passages = rng.normal(size=(NUM, 16))
    queries = passages * rng.choice([-1.0, 1.0, 1.0], 16) + 0.2 * rng.normal(size=(NUM, 16))
    unit = [(side / np.linalg.norm(side, axis=1, keepdims=True)).astype(np.float32) for side in (queries, passages)]
    ids = [f"p{at:03d}" for at in range(NUM)]
    places = {one: at for at, one in enumerate(ids)}
    rows = [{"query_id": f"q{at:03d}", "passage_id": one} for at, one in enumerate(ids[:-NUM_ASKED])]
    pairs = FrozenPairs(to_table("qrels", rows), places, places, unit[0][:-NUM_ASKED], unit[1], 20.0)
    asked = Asked(ids[-NUM_ASKED:], unit[0][-NUM_ASKED:], {one: {one: 1} for one in ids[-NUM_ASKED:]})
    return Frozen(pairs, ids, {"dev": asked, "test": asked})


@pytest.fixture
def config() -> RunConfig:
    return RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "x"}},
            "inject_noise": {"share": 0.5},
            "train": {"batch_size": 32},
            "cross_fit": {"num_epochs": 6, "num_random": 50, "num_draws": 2},
            "evaluate": {"measures": ["RR@10"]},
        }
    )


def mean(frozen: Frozen, flagged: Flagged, name: str, config: RunConfig) -> float:
    [values] = train_way(frozen, flagged, name, config, PACE).values["last"].values()
    return float(np.mean(list(values.values())))


def test_where_nothing_is_doubted_every_way_is_plain_nce(
    frozen: Frozen, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged = flag(frozen, config, 1)
    sure = replace(
        flagged,
        clean_N=np.ones_like(flagged.clean_N),
        posterior_N=np.ones_like(flagged.posterior_N),
        new_N=np.full_like(flagged.new_N, -1),
    )
    gate = Way(NPC(warmup_epochs=0, use_consistency=False), "flags")
    monkeypatch.setitem(ARMS, "gate-alone", gate)
    plain = train_way(frozen, sure, "nce", config, PACE)
    for name in ("gate-alone", "soft-alone", "drop", "relabel"):
        other = train_way(frozen, sure, name, config, PACE)
        assert (other.values, other.history) == (plain.values, plain.history), name


def test_what_is_dropped_or_relabelled_is_never_learnt(frozen: Frozen, config: RunConfig) -> None:
    flagged = flag(frozen, config, 1)
    wrong_N = flagged.wrong_N
    assert (~flagged.clean_N[wrong_N]).mean() > 0.6
    moved = flagged.new_N >= 0
    assert moved.any()
    assert not (moved & flagged.clean_N).any()
    assert (flagged.new_N[moved] == np.flatnonzero(moved)).mean() > 0.7
    # Other passages in the flagged pairs, or in those that are wrong, make no difference to those that leave them out.
    rng = np.random.default_rng(5)
    shuffled = replace(flagged, passage_N=np.where(flagged.clean_N, flagged.passage_N, rng.integers(NUM, size=300)))
    for name in ("drop", "relabel"):
        assert mean(frozen, shuffled, name, config) == mean(frozen, flagged, name, config)
    assert mean(frozen, shuffled, "nce", config) != mean(frozen, flagged, "nce", config)
    # The truth is known to no arm but one.
    blind = replace(flagged, wrong_N=~wrong_N)
    for name, way in ARMS.items():
        changed = mean(frozen, blind, name, config) != mean(frozen, flagged, name, config)
        assert changed == (way.pairs == "right"), name


def test_plain_nce_learns_the_noise_and_the_clean_half_is_better(frozen: Frozen, config: RunConfig) -> None:
    flagged = flag(frozen, config, 1)
    found = {name: mean(frozen, flagged, name, config) for name in ("nce", "drop", "clean")}
    assert found["nce"] < found["drop"]
    assert found["nce"] < found["clean"]
    assert isinstance(ARMS["nce"].loss, NCE)


def test_a_teacher_that_is_the_student_changes_nothing_and_one_that_stays_does(
    frozen: Frozen, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    flagged = flag(frozen, config, 1)
    monkeypatch.setitem(ARMS, "itself", Way(NPC(warmup_epochs=0), teacher=TeacherConfig(momentum=0.0)))
    plain = mean(frozen, flagged, "nce", config)
    assert mean(frozen, flagged, "itself", config) == pytest.approx(plain, abs=0.01)
    # What has learnt nothing yet holds back both what is right and what is wrong.
    assert abs(mean(frozen, flagged, "frozen-teacher", config) - plain) > 0.02
    found = {mean(frozen, flagged, name, config) for name in ("npc-at-once", "npc-every-2", "teacher-alone")}
    assert len(found) == 3
