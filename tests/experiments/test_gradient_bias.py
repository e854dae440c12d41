"""The gradient-bias experiment: what is known of its quantities without running it at full size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.gradient_bias import (
    FULL,
    KINDS,
    NEGLIGIBLE,
    Network,
    Settings,
    draw_negatives,
    expected_loss,
    gradient,
    picture,
    population,
    run,
    table,
)
from raydr.seeding import query_rng

SMALL = Settings(steps=2, negatives=4, draws=3, seeds=(1,))


def test_the_population_is_peaky_and_known() -> None:
    probs = population(7)
    assert probs.sum() == pytest.approx(1.0)
    assert 5 < (probs > NEGLIGIBLE).sum() < 50
    assert (probs == population(7)).all()
    assert probs[probs <= NEGLIGIBLE].sum() < 1e-7


@pytest.mark.parametrize("name", KINDS)
def test_negatives_are_never_the_label(name: str) -> None:
    scores = np.linspace(0.0, 5.0, 30)
    sampler = KINDS[name][0]
    for columns, log_probs in draw_negatives(scores, 29, sampler, SMALL, query_rng(0, 0, "q", "test")):
        assert columns[0] == 29
        assert 29 not in columns[1:]
        assert len(columns) == len(log_probs) == 5
        if name != "hard, corrected":
            assert len(set(columns.tolist())) == 5
            assert not log_probs.any()
        else:
            assert (log_probs[1:] < 0).all()


def test_the_corrected_loss_is_the_full_one_and_its_gradient_is_unbiased() -> None:
    torch.manual_seed(0)
    network = Network()
    probs = population(3)
    labels = np.flatnonzero(probs > 0.05)
    weights = torch.tensor(probs[labels], dtype=torch.float32)
    full = -(weights * torch.log_softmax(network(), dim=0)[torch.from_numpy(labels)]).sum()
    exact = gradient(network, full)
    sampler, loss = KINDS["hard, corrected"]
    errors = []
    for draws in (2, 200):
        settings = Settings(draws=draws)
        value = expected_loss(network(), labels, weights, sampler, loss, settings, (0, 0, "test"))
        assert value.item() == pytest.approx(full.item(), rel=1e-4)
        errors.append(float((gradient(network, value) - exact).norm()))
    # What is left is the noise of the draws: a hundred times as many make it a tenth.
    assert errors[1] < 0.2 * errors[0]


def test_a_run_is_reproducible_and_drawn() -> None:
    curves = run(1, SMALL)
    assert curves == run(1, SMALL)
    assert set(curves) == {FULL, *KINDS}
    assert curves["random"]["loss"][0] < curves[FULL]["loss"][0]
    assert len(table([curves], [1, 2]).rows) == len(curves)
    assert picture([curves], SMALL).startswith(b"\x89PNG")
