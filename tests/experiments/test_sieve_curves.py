"""The comparison of filters, on made scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.candidate_scores import ScoredSplit
from experiments.sieve_curves import SieveOut, make_filters, report
from raydr.config.run import RunConfig
from raydr.noise.judges.base import ScoredCandidates

QUERIES, DEPTH = 60, 20


def made(seed: int, apart: float) -> ScoredSplit:
    """Two planted passages a query, by so much more similar than the others."""
    rng = np.random.default_rng(seed)
    false_M = np.tile(np.arange(DEPTH) < 2, QUERIES)
    scores_M = np.clip(rng.normal(0.3 + apart * false_M, 0.1), 0.01, 0.99)
    offsets = np.arange(0, QUERIES * DEPTH + 1, DEPTH)
    ids = [f"q{at:02d}" for at in range(QUERIES)]
    return ScoredSplit(ScoredCandidates(scores_M, offsets, np.full(QUERIES, 0.7)), false_M, ids)


def test_filters_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "x"}}, "model": {"scale": 20}})
    retriever, classifier = made(1, 0.2), made(2, 0.65)
    # The guide knows the planted ones by the positive, and of the others a tenth.
    like_M = retriever.false_M | (np.arange(QUERIES * DEPTH) % 10 == 5)
    guide = made(5, 0.6)
    guide = replace(guide, candidates=replace(guide.candidates, likeness_M=like_M.astype(np.float64)))
    filters = make_filters(config, retriever, {0.0: made(3, 0.1), 0.5: made(4, 0.4)}, classifier, guide)
    assert list(filters) == [
        "sieve's rule, untrained",
        "sieve, β 0",
        "sieve, β 0.5",
        "classifier",
        "margin, absolute",
        "margin, relative",
        "near duplicate",
        "SimANS, b 0",
        "SimANS, b 1",
    ]
    areas = {name: one.curve.area for name, one in filters.items()}
    assert areas["sieve, β 0"] < areas["sieve's rule, untrained"] < areas["sieve, β 0.5"]
    # All positives score alike: both margins order the candidates as their scores do.
    assert areas["margin, absolute"] == pytest.approx(areas["margin, relative"])
    # SimANS prefers what scores near the positive: it removes the other candidates first.
    assert areas["SimANS, b 0"] < 0.4
    point = filters["margin, absolute"].point
    assert point is not None
    above_M = retriever.candidates.scores_M > 0.7
    assert point.removed == pytest.approx(above_M[retriever.false_M].mean())
    # One in ten is as like the positive, and scores far below it.
    nearly = filters["near duplicate"].point
    assert nearly is not None
    assert (nearly.removed > 0.9, nearly.lost, nearly.precision) == (True, 0.0, 1.0)
    # The sieve's default drops about half of the other candidates.
    sieved = filters["sieve's rule, untrained"].point
    assert sieved is not None
    assert 0.3 < sieved.lost < 0.6

    report(config, retriever, filters, [SieveOut(0, 0.5, 0.6), SieveOut(1, 0.45, 0.9)], tmp_path)
    written = (tmp_path / "results.md").read_text()
    assert "1,200 candidates of 60 queries, 120 planted false negatives in 60 queries" in written
    # 15 of 20 are drawn: a quarter of all candidates is removed.
    row = next(line for line in written.splitlines() if line.startswith("| SimANS, b 0"))
    removed, lost = (float(cell) for cell in row.split("|")[-4:-2])
    assert 0.1 * removed + 0.9 * lost == pytest.approx(0.25, abs=1e-3)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "results:" in capsys.readouterr().err
