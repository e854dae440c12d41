"""The main job says at once what it could not evaluate on, and which encoders would not fit."""

from __future__ import annotations

import pytest
from small_runs import small_run

import raydr
from raydr.errors import ConfigError


@pytest.mark.parametrize("noise", [None, {"kind": "mismatched", "share": 0.5}])
def test_a_missing_test_split_is_said_before_anything_is_trained(beir_folder, tiny_checkpoint, tmp_path, noise):
    data = {"reader": {"name": "beir", "path": str(beir_folder)}, "test_splits": ["held-out"]}
    config = raydr.RunConfig.parse(
        small_run(beir_folder, tiny_checkpoint, tmp_path / "work", inject_noise=noise, data=data)
    )
    for system in (None, ["trained"]):
        with pytest.raises(ConfigError, match=r"no split 'held-out'; it has dev, test, train"):
            raydr.evaluate(config, system)
        assert not list((tmp_path / "work" / "times").glob("train-*"))
    # Once the data set is there, a dry run sees it too.
    with pytest.raises(ConfigError, match=r"no split 'held-out'; it has dev, test, train"):
        raydr.evaluate(config, dry_run=True)


def test_encoders_that_do_not_fit_are_said_before_anything_is_made(beir_folder, tiny_checkpoint, tmp_path):
    encode = {"cpus_per_actor": 500.0}
    config = raydr.RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work", encode=encode))
    with pytest.raises(ConfigError, match="not enough for encode.min_actors 1 of 500 CPUs"):
        raydr.quickstart(config)
    assert not (tmp_path / "work" / "store").exists()


def test_without_test_splits_there_is_nothing_to_evaluate(beir_folder, tiny_checkpoint, tmp_path):
    data = {"reader": {"name": "beir", "path": str(beir_folder)}, "test_splits": []}
    config = raydr.RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work", data=data))
    for verb in (raydr.quickstart, raydr.evaluate, raydr.search):
        with pytest.raises(ConfigError, match=r"data\.test_splits is empty"):
            verb(config)
