"""What an epoch draws depends on (seed, epoch, query)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raydr.data.examples import Ragged
from raydr.training.batches import BatchMaker, epoch_order, positive_row
from training.harness import make_trainer, model_config

TRAIN: dict[str, Any] = {"batch_size": 8, "num_hard_negatives": 2, "sampler": "uniform"}


@pytest.fixture
def batches(tiny_data: tuple[str, str], tiny_checkpoint: str) -> BatchMaker:
    return make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN).batches


@pytest.mark.invariant
def test_an_epoch_has_an_order_of_its_own() -> None:
    orders = [epoch_order(40, seed, epoch).tolist() for seed in range(2) for epoch in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert epoch_order(40, 1, 2).tolist() == orders[-1]


@pytest.mark.invariant
def test_an_epoch_draws_negatives_of_its_own(batches: BatchMaker) -> None:
    rows = np.arange(len(batches.examples))
    drawn = [batches.make(rows, epoch).passage_hash_P for epoch in (0, 1, 2, 0)]
    assert torch.equal(drawn[0], drawn[3])
    positives, negatives = zip(*((rows.view(-1, 3)[:, 0], rows.view(-1, 3)[:, 1:]) for rows in drawn), strict=True)
    assert all(torch.equal(rows, positives[0]) for rows in positives)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        # Of about five candidates second: a query may draw the same ones now and then.
        same_Q = (negatives[first].sort(dim=1).values == negatives[second].sort(dim=1).values).all(dim=1)
        assert same_Q.float().mean() < 0.5


@pytest.mark.invariant
def test_each_of_several_positives_has_its_epochs(batches: BatchMaker) -> None:
    examples = batches.examples
    rows = np.stack([examples.positives.values, (examples.positives.values + 60) % 120], axis=1)
    several = replace(examples, positives=Ragged(rows.ravel(), 2 * examples.positives.offsets))
    drawn = np.array([[positive_row(several, at, epoch, 0, "drawn") for epoch in range(20)] for at in range(40)])
    assert [set(line) for line in drawn.tolist()] == [set(line) for line in rows.tolist()]
    # Not all queries change at the same time.
    assert len({tuple(line) for line in (drawn == rows[:, :1]).tolist()}) > 30
    assert {positive_row(several, 3, epoch, 0, "first") for epoch in range(20)} == {int(rows[3, 0])}
