"""Heads on frozen vectors: what they learn tells pairs apart, and no pair is measured by heads that have learnt it."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.trained_heads import FrozenPairs, measure_by_heads
from raydr.config.run import RunConfig
from raydr.data.schema import to_table
from raydr.noise.detectors.local_fdr import LocalFdrDetector

NUM = 300


@pytest.fixture
def frozen() -> FrozenPairs:
    """Queries are their passages seen through a fixed change of signs, and noise: heads can learn the signs."""
    rng = np.random.default_rng(0)
    passages = rng.normal(size=(NUM, 16)).astype(np.float32)
    queries = passages * rng.choice([-1.0, 1.0, 1.0], 16) + 0.2 * rng.normal(size=(NUM, 16))
    ids = [f"p{at:03d}" for at in range(NUM)]
    rows = [{"query_id": f"q{at:03d}", "passage_id": one} for at, one in enumerate(ids)]
    places = {one: at for at, one in enumerate(ids)}
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, passages)]
    return FrozenPairs(to_table("qrels", rows), places, places, *(one.astype(np.float32) for one in unit), 20.0)


@pytest.fixture
def config() -> RunConfig:
    return RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "x"}},
            "train": {"batch_size": 32, "num_epochs": 4},
            "cross_fit": {"num_epochs": 4, "num_random": 50, "num_draws": 2},
        }
    )


def test_mismatched_pairs_stand_out_to_heads_that_have_not_seen_them(frozen: FrozenPairs, config: RunConfig) -> None:
    measured = measure_by_heads(frozen, config, 0.3, 1)
    assert measured.wrong_N.sum() == 90
    margins = measured.cross_fitted
    assert margins.perplexities_ND.shape == margins.random_ND.shape == (NUM, 2)
    assert sorted(np.bincount(margins.fold_N).tolist()) == pytest.approx([150, 150], abs=5)
    wrong_N = measured.wrong_N
    assert np.median(margins.perplexity_N[wrong_N]) > 2 * np.median(margins.perplexity_N[~wrong_N])
    # Mismatched pairs are measured as random ones are.
    assert np.median(margins.perplexity_N[wrong_N]) == pytest.approx(np.median(margins.random_ND), rel=0.2)
    found = margins.detect(LocalFdrDetector())
    assert (~found.clean[wrong_N]).mean() > 0.6
    assert (~found.clean[~wrong_N]).mean() < 0.2
    again = measure_by_heads(frozen, config, 0.3, 1)
    assert np.array_equal(again.cross_fitted.perplexities_ND, margins.perplexities_ND)


def test_nothing_is_mismatched_at_share_zero(frozen: FrozenPairs, config: RunConfig) -> None:
    measured = measure_by_heads(frozen, config, 0.0, 1)
    assert not measured.wrong_N.any()
    assert measured.in_sample.pairs_N.shape == (NUM,)
