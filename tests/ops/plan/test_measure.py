"""What is tried of a run's model, and what is carried over from another device's figures."""

from __future__ import annotations

from typing import Any

import pytest

from ops.plan.made_rates import ENCODING, RATES, READING
from raydr.config.run import RunConfig
from raydr.ops.plan.measure import try_model
from raydr.ops.plan.probe import probe_encoding, probe_ranker, probe_search
from raydr.ops.plan.rates import TrainingRates


def test_by_another_devices_figures_a_step_of_the_ranker_is_three_passes_over_its_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {probe_encoding: ENCODING, probe_search: RATES.search, probe_ranker: READING}
    monkeypatch.setattr("raydr.ops.plan.measure.start_ray", lambda: None)
    monkeypatch.setattr("raydr.ops.plan.measure._run", lambda probe, *given: (found[probe], 7.0))
    config = RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "plan": {"device": {"name": "an H100", "flops": 4e14}},
            "ranker": {"batch_size": 32, "num_hard_negatives": 3, "num_random_negatives": 1},
            "train": {"num_workers": 2},
        }
    )
    nothing: Any = None
    assert try_model(config, nothing, nothing, ranker=False).ranker is None
    rates = try_model(config, nothing, nothing, ranker=True).ranker
    assert rates is not None
    assert rates.reading == READING
    # 16 of 32 lists of five, each padded to 150 tokens; nobody has seen its memory.
    assert rates.training == TrainingRates(3 * 16 * 5 * 150 / 15_000, None)
