"""Searches that cannot be run are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.errors import ConfigError

SPACE = {"space": {"model.scale": {"uniform": [5, 50]}}}


def test_trials_that_do_not_fit(beir_folder, tiny_checkpoint, tmp_path):
    raw: dict[str, Any] = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_workers": 4})
    with pytest.raises(ConfigError, match=r"a trial takes 4 CPU \(section train\), Ray has 2 CPU: 0 at a time fit"):
        raydr.tune(raydr.RunConfig.parse(raw), SPACE, name="mine")
    assert not (tmp_path / "work" / "corpus").exists()
