"""The main job says at once what it could not evaluate on."""

from __future__ import annotations

import pytest
from small_runs import small_run

import raydr
from raydr.errors import ConfigError


@pytest.mark.parametrize("noise", [None, {"kind": "mismatched", "share": 0.5}])
def test_a_missing_test_split_is_said_before_anything_is_trained(
    ray_local, beir_folder, tiny_checkpoint, tmp_path, noise
):
    config = raydr.RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work", inject_noise=noise))
    config = config.model_copy(update={"data": config.data.model_copy(update={"test_splits": ["held-out"]})})
    with pytest.raises(ConfigError, match="has no split 'held-out' to evaluate on"):
        raydr.quickstart(config)
    assert not (tmp_path / "work" / "models").exists()


def test_encoders_that_do_not_fit_are_said_before_anything_is_done(ray_local, beir_folder, tiny_checkpoint, tmp_path):
    config = raydr.RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work"))
    encode = config.encode.model_copy(update={"cpus_per_actor": 500.0})
    with pytest.raises(ConfigError, match="not enough for encode.min_actors 1 of 500 CPUs"):
        raydr.quickstart(config.model_copy(update={"encode": encode}))
    assert not (tmp_path / "work" / "corpus").exists()
