"""Detectors by the share of mismatched pairs: what stands in the table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from experiments.detector_shares import DETECTORS, examined, table
from raydr.noise.margins import Margins

NUM, DRAWS = 1000, 4


def margins_with(share: float) -> Margins:
    """Margins of right pairs are far below those of random ones, of mismatched pairs like them."""
    rng = np.random.default_rng(0)
    wrong_N = np.arange(NUM) < share * NUM
    ids = pa.chunked_array([[f"{at}" for at in range(NUM)]])
    random_ND = rng.normal(4.0, 1.0, (NUM, DRAWS))
    margins_ND = rng.normal(np.where(wrong_N, 4.0, -6.0)[:, None], 1.0, (NUM, DRAWS))
    return Margins(ids, ids, pa.chunked_array([wrong_N]), np.arange(NUM) % 2, margins_ND, random_ND)


def test_every_detector_is_asked_for_every_share() -> None:
    findings = [finding for share in (0.0, 0.5) for finding in examined(share, 7, margins_with(share))]
    assert [(finding["share"], finding["detector"]) for finding in findings] == [
        (share, name) for share in (0.0, 0.5) for name in DETECTORS
    ]
    half = [finding for finding in findings if finding["share"]]
    for finding in half:
        assert min(finding["precision"], finding["recall"], finding["auroc"]) > 0.99
        assert finding["calibration_error"] < 0.01
        assert finding["num_pairs"] == NUM
    clean = [finding for finding in findings if not finding["share"]]
    assert all(finding["share_flagged"] < 0.01 and finding["precision"] is None for finding in clean)
    rows = table(findings).rows
    assert [row[:3] for row in rows] == [[share, name, "1"] for share in ("0%", "50%") for name in DETECTORS]
    assert rows[list(DETECTORS).index("anchored")][3] == "keeps all"
