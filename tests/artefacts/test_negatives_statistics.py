"""What candidate negatives look like: counts against loops over the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_stage import make

from artefacts.judge_inputs import DEPTH, NUM_QUERIES, make_inputs
from raydr.artefacts.negatives import KIND, count_negatives
from raydr.data.dataset import read_split
from raydr.distributed.pool import Pool
from raydr.evaluation.config import EvaluateConfig


def test_planted_candidates_are_counted_whoever_has_found_them(
    tmp_path: Path, tiny_checkpoint: str, pool: Pool
) -> None:
    inputs = make_inputs(tmp_path, tiny_checkpoint)
    mined = read_split(inputs.negatives, "negatives", "train")
    # The candidates themselves do not say so, as those that a dense run has found.
    assert mined["noise"].null_count == len(mined)
    statistics = make(
        tmp_path / "statistics",
        KIND,
        count_negatives,
        inputs.dataset,
        inputs.corpus,
        inputs.negatives,
        pool=pool,
        split="train",
        settings=EvaluateConfig(),
    ).info
    # The second positive of each query, and for q10 the one that it lost to a mismatched passage.
    planted = NUM_QUERIES + 1
    counts = {name: statistics[name] for name in ("queries", "candidates", "used", "planted", "planted_used")}
    assert counts == {
        "queries": NUM_QUERIES,
        "candidates": NUM_QUERIES * DEPTH,
        "used": NUM_QUERIES * DEPTH,
        "planted": planted,
        "planted_used": planted,
    }
    assert statistics["planted_share"] == pytest.approx(planted / (NUM_QUERIES * DEPTH))
    assert statistics["queries_without_negatives"] == 0
