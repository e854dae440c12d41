"""Detectors by the share of mismatched pairs: how pairs are thinned out, and what stands in the table."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.arm_training import DETECTORS
from experiments.arms import States
from experiments.detector_shares import table, thin_out, thinned_by_share

SHARES = [0.0, 0.2, 0.5, 0.8, 1.0]


@pytest.mark.parametrize("share", SHARES)
def test_as_many_pairs_as_there_are_for_a_share(share: float) -> None:
    wrong_N = np.arange(300) % 3 == 0
    rows = thin_out(wrong_N, share, np.random.default_rng(0))
    assert len(set(rows.tolist())) == len(rows)
    assert wrong_N[rows].mean() == pytest.approx(share, abs=0.01)
    kinds = [(wrong_N[rows] == wrong).sum() for wrong in (False, True)]
    # One kind is used up, within rounding.
    assert kinds[0] >= 199 or kinds[1] >= 99


def test_every_detector_is_asked_for_the_last_state_at_every_share() -> None:
    rng = np.random.default_rng(0)
    wrong_N = np.arange(1000) % 2 == 0
    margins_N = rng.normal(np.where(wrong_N, 4.0, -6.0), 1.0)
    last = np.logaddexp(0.0, margins_N)
    states = States(
        np.stack([rng.permutation(last), last]), np.logaddexp(0.0, rng.normal(4.0, 1.0, (2, 1000))), wrong_N
    )
    found = list(thinned_by_share(states, [0.0, 0.5]))
    assert [(one["share"], one["detector"]) for one in found] == [(at, name) for at in (0.0, 0.5) for name in DETECTORS]
    half = {one["detector"]: one for one in found if one["share"]}
    for name in ("calibrated", "anchored"):
        assert min(half[name]["precision"], half[name]["recall"]) > 0.99
        assert half[name]["calibration_error"] < 0.01
    clean = {one["detector"]: one for one in found if not one["share"]}
    assert clean["anchored"]["share_flagged"] == 0.0
    assert clean["anchored"]["recall"] is None
    rows = table(found).rows
    assert [row[:3] for row in rows] == [[share, name, "1"] for share in ("0%", "50%") for name in DETECTORS]
    assert [one["num_pairs"] for one in found] == [500] * len(DETECTORS) + [1000] * len(DETECTORS)
    assert rows[list(DETECTORS).index("anchored")][3] == "keeps all"
