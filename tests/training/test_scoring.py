"""Which candidates count for which query, seen from the second of two workers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from raydr.losses.base import Candidates
from raydr.models.config import ModelConfig
from raydr.training.batches import ABSENT, Batch
from raydr.training.scoring import BatchView, Encodings
from raydr.training.sections import GuideConfig
from raydr.training.signals import BatchGuide, BatchPassageWeights

pytestmark = pytest.mark.invariant

#: Contents of the passages that the first worker brings; here are two queries with a positive and a negative each.
FIRST, SECOND = [1, 2, 3, 4], [5, 6, 7, 8]


@pytest.fixture(autouse=True)
def _second_of_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(mine: Tensor) -> Tensor:
        first = torch.zeros_like(mine) if mine.is_floating_point() else torch.tensor(FIRST)
        return torch.cat([first, mine])

    monkeypatch.setattr("raydr.training.scoring.rank", lambda: 1)
    monkeypatch.setattr("raydr.training.scoring.gather", gathered)
    monkeypatch.setattr("raydr.training.scoring.gather_with_grad", gathered)
    monkeypatch.setattr("raydr.training.signals.gather", gathered)


def scored(forbidden: list[list[int]], hashes: list[int] = SECOND, in_batch: bool = True, **further: Any) -> Candidates:
    batch = Batch(
        query_rows=np.arange(2),
        queries=cast(Any, None),
        passages=cast(Any, None),
        passage_hash_P=torch.tensor(hashes),
        forbidden_QF=torch.tensor(forbidden),
        num_filled=0,
        **further,
    )
    encoded = Encodings.gathered(torch.ones(2, 3), torch.ones(4, 3), ModelConfig())
    return BatchView.gathered(encoded, batch, in_batch).candidates()


def places(cells_QC: Tensor) -> list[list[int]]:
    return [torch.nonzero(row).flatten().tolist() for row in cells_QC]


def test_own_passages_come_after_those_of_the_first_worker() -> None:
    candidates = scored([[5], [7]])
    assert candidates.positive_Q.tolist() == [4, 6]
    assert candidates.hard_QC is not None
    assert places(candidates.hard_QC) == [[5], [7]]


def test_a_forbidden_content_is_masked_whoever_brings_it_and_for_its_query_alone() -> None:
    """Of the other worker, of the other query here, and of the query itself; but never at its own positive."""
    candidates = scored([[5, 2, 7, 6], [7, 7, 7, 7]])
    assert places(candidates.excluded_QC) == [[1, 5, 6], []]


def test_an_empty_place_is_nobodys_candidate() -> None:
    assert places(scored([[5], [7]], [5, 6, 7, ABSENT]).excluded_QC) == [[7], [7]]


def test_only_own_negatives_count_where_the_others_are_left_out() -> None:
    assert places(~scored([[5], [7]], in_batch=False).excluded_QC) == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, [[5], []]),
        # The second query's limit stays above the 0 of what the first worker brings; nothing above its own is there.
        ({"mode": "relative", "margin": 0.3}, [[5, 6], []]),
        ({"margin": 0.4}, [[5, 6], [0, 1, 2, 3, 4, 5, 7]]),
    ],
)
def test_what_a_guide_takes_for_a_positive_is_left_out_whoever_brings_it(rule: dict[str, Any], expected: Any) -> None:
    """It finds the passages here 0.5, 0.6, 0.4 and 0 near to the first query, 0, 0, 0.3 and 0.2 to the second."""
    passage_PD = torch.tensor([[0.5, 0.0], [0.6, 0.0], [0.4, 0.3], [0.0, 0.2]])
    guide = BatchGuide(torch.eye(2), passage_PD, GuideConfig.model_validate(rule))
    assert places(scored([[5], [7]], signals=(guide,)).excluded_QC) == expected


def test_every_passage_that_weighs_less_does_so_for_its_query_whoever_brings_it() -> None:
    weights = torch.tensor([[0.5, 0.25], [0.125, 1.0]])
    signal = BatchPassageWeights(torch.tensor([[2, 6], [3, 0]]), weights.log())
    candidates = scored([[5], [7]], signals=(signal,))
    assert candidates.log_weight_QC is not None
    assert candidates.log_weight_QC.exp().tolist() == [[1, 0.5, 1, 1, 1, 0.25, 1, 1], [1, 1, 0.125, 1, 1, 1, 1, 1]]
