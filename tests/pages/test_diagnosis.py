"""What is said of a diagnosis in one sentence."""

from __future__ import annotations

import re

import numpy as np
import pytest

from raydr.artefacts.diagnosis import diagnosis_page, outcome
from raydr.diagnosis.diagnosis import diagnose
from raydr.diagnosis.evidence import Evidence, FloatArray

HALF = np.asarray(np.arange(200) % 2, dtype=np.float64)


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_where_nothing_is_wrong_a_start_far_below_bm25_is_said(share: float) -> None:
    systems: dict[str, FloatArray] = {"bm25": HALF, "untrained": HALF * share, "trained": HALF * share + 0.1}
    conclusion = outcome(diagnose(Evidence(held_out=systems)))
    assert conclusion.startswith("no fault found")
    assert ("model.checkpoint" in conclusion) == (share < 0.5)


def test_a_fault_is_named() -> None:
    assert outcome(diagnose(Evidence(leaked={"test": np.ones(50, bool)}))) == "likeliest cause: leakage"


def test_a_check_that_passed_has_no_empty_remedy() -> None:
    systems: dict[str, FloatArray] = {"bm25": HALF, "untrained": HALF * 0.9, "trained": HALF * 0.9 + 0.1}
    page = diagnosis_page(diagnose(Evidence(held_out=systems)))
    assert "checks that passed" in page
    assert ">remedy<" not in page
    faulty = diagnosis_page(diagnose(Evidence(leaked={"test": np.ones(50, bool)})))
    assert re.findall('headline">([^:]+):', faulty) == ["Likeliest cause", "How sure", "What may help"]
    assert ">remedy<" in faulty
    assert "Not checked" in faulty
