"""Searches that cannot be run are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.errors import ConfigError

pytestmark = pytest.mark.ray

SPACE = {"space": {"model.scale": {"uniform": [5, 50]}}}
POPULATION = {"search": {"algorithm": "random", "num_trials": 3}, "scheduler": {"name": "pbt"}}


@pytest.mark.parametrize(
    ("train", "more", "said"),
    [
        ({"num_workers": 4}, {}, r"a trial takes 4 CPU \(train.num_workers 4\), Ray has 2 CPU: 0 at a time fit"),
        ({}, POPULATION, r"3 are asked for, 2 fit\. Set search\.num_trials to 2"),
        ({"num_workers": 2}, POPULATION, r"takes trials of one process, train\.num_workers is 2"),
    ],
)
def test_trials_that_do_not_fit(ray_local, beir_folder, tiny_checkpoint, tmp_path, train, more, said):
    raw: dict[str, Any] = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train=train)
    with pytest.raises(ConfigError, match=said):
        raydr.tune(raydr.RunConfig.parse(raw), SPACE | more, name="mine")
    assert not (tmp_path / "work" / "corpus").exists()
