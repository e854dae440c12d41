"""Heads trained with filtered negatives on made vectors: who knows the truth, and what false negatives cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.filters_by_heads import ARMS, Mined, Way, mine, train_way
from experiments.flags_by_heads import Asked, Frozen, Pace
from experiments.trained_heads import FrozenPairs
from raydr.config.run import RunConfig
from raydr.data.schema import to_table

NUM, NUM_ASKED, DIM = 300, 100, 16
PACE = Pace(num_epochs=8, rate=1e-2, batch_size=32, seed=3)


@pytest.fixture
def frozen() -> Frozen:
    """Each query has two passages near each other, seen through a fixed change of signs; the last queries are asked."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0, 1.0, 1.0], DIM)
    meanings = rng.normal(size=(NUM, DIM))
    passages = np.concatenate([meanings * signs + 0.2 * rng.normal(size=(NUM, DIM)) for _ in range(2)])
    queries = meanings + 0.2 * rng.normal(size=(NUM, DIM))
    queries, passages = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, passages))
    ids = [f"p{at:03d}" for at in range(2 * NUM)]
    places = {one: at for at, one in enumerate(ids)}
    num_train = NUM - NUM_ASKED
    rows = [
        {"query_id": f"q{at:03d}", "passage_id": ids[at + which * NUM]} for at in range(num_train) for which in (0, 1)
    ]
    query_ND = np.repeat(queries[:num_train], 2, axis=0).astype(np.float32)
    pairs = FrozenPairs(to_table("qrels", rows), places, places, query_ND, passages.astype(np.float32), 20.0)
    asked_ids = [f"q{at:03d}" for at in range(num_train, NUM)]
    qrels = {one: {ids[num_train + at]: 1, ids[NUM + num_train + at]: 1} for at, one in enumerate(asked_ids)}
    asked = Asked(asked_ids, queries[num_train:].astype(np.float32), qrels)
    return Frozen(pairs, ids, {"dev": asked, "test": asked})


@pytest.fixture
def config() -> RunConfig:
    raw = {
        "workdir": "unused",
        "data": {"reader": {"name": "beir", "path": "unused"}},
        "train": {"batch_size": 32},
        "evaluate": {"measures": ["RR@10"]},
    }
    return RunConfig.parse(raw)


@pytest.fixture
def mined(frozen: Frozen, config: RunConfig) -> Mined:
    return mine(frozen, config, depth=4, num_hard=2, seed=1)


def mean(frozen: Frozen, mined: Mined, name: str, config: RunConfig) -> float:
    [values] = train_way(frozen, mined, name, config, PACE).values["last"].values()
    return float(np.mean(list(values.values())))


def test_what_is_mined_holds_false_negatives_and_never_the_positive(mined: Mined) -> None:
    false_QK = mined.false_QK
    assert (false_QK == (np.abs(mined.mined_QK - mined.positive_Q[:, None]) == NUM)).all()
    assert false_QK.any(axis=1).mean() > 0.3
    assert not (mined.mined_QK == mined.positive_Q[:, None]).any()
    num_Q = mined.kept["sieve"].sum(axis=1).tolist()
    for name in ("random", "lower"):
        assert mined.kept[name].sum(axis=1).tolist() == num_Q
    # Lemma 1 of the sieve: the nearest candidates are left out.
    assert mined.kept["sieve"][false_QK].mean() < mined.kept["sieve"][~false_QK].mean()


def test_where_all_is_kept_every_filter_is_none_at_all(frozen: Frozen, config: RunConfig, mined: Mined) -> None:
    everything = replace(mined, kept=dict.fromkeys(mined.kept, mined.kept["all"]))
    plain = train_way(frozen, mined, "all", config, PACE)
    for name in ("sieve", "margin", "lower half", "random half", "clean"):
        other = train_way(frozen, everything, name, config, PACE)
        assert (other.values, other.history) == (plain.values, plain.history), name


def test_false_negatives_cost_and_leaving_them_out_pays(frozen: Frozen, config: RunConfig, mined: Mined) -> None:
    found = {name: mean(frozen, mined, name, config) for name in ("all", "clean")}
    assert found["all"] < found["clean"]


def test_rcl_is_nce_until_its_last_eighth(
    frozen: Frozen, config: RunConfig, mined: Mined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARMS, "strong", Way(beta=0.5))
    # Of two epochs the last one.
    pace = replace(PACE, num_epochs=2)
    plain, strong = (train_way(frozen, mined, name, config, pace).history for name in ("all", "strong"))
    assert strong[0] == plain[0]
    assert strong[1] != plain[1]
