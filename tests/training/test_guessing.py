"""A cross-encoder that has not learnt is told of in words."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.training.guessing import not_learnt


def epochs(*rows: tuple[float, float, float]) -> list[dict[str, Any]]:
    """Loss, guessing's loss and dev measure of each epoch."""
    return [
        {"epoch": at, "metrics": {"loss": loss, "guessing": guessing, "dev RR@10": dev}}
        for at, (loss, guessing, dev) in enumerate(rows)
    ]


def test_a_loss_near_guessing_is_said_to_be_one() -> None:
    for loss, guessing in ((2.06, 2.197), (1.776, 1.792), (0.6, 0.562), (-0.31, -0.3)):
        [remark] = not_learnt("ranker", epochs((loss, guessing, 0.5)), None, {})
        assert f"next to nothing: in epoch 1 its mean loss is {loss:.4f}, guessing has {guessing:.4f}" in remark
        assert "ranker.optimizer.learning_rate" in remark
    for loss, guessing in ((1.2, 2.197), (-0.5, -0.3)):
        assert not not_learnt("ranker", epochs((loss, guessing, 0.5)), None, {})


@pytest.mark.parametrize(("best", "found"), [(None, 0), (1, 0), (0, 1)])
def test_it_is_the_chosen_epoch_that_counts(best: int | None, found: int) -> None:
    history = epochs((2.1, 2.197, 0.6), (1.0, 2.197, 0.5))
    assert len(not_learnt("ranker", history, best, {"dev RR@10": 0.5})) == found


def test_an_order_that_is_worse_than_the_runs_is_said_to_be_worse() -> None:
    [remark] = not_learnt("ranker", epochs((1.0, 2.197, 0.5)), 0, {"dev RR@10": 0.6})
    assert "worse than the run that it is given: dev RR@10 0.5000, the run 0.6000" in remark
