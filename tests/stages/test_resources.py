"""How much there is to be had, as stages, steps and searches over settings see it."""

from __future__ import annotations

import pytest

from raydr.runtime.cluster import RayConfig, ray_session
from raydr.stages.resources import cluster_capacity


def test_a_cluster_has_what_is_stated_and_a_machine_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection: it would tell the head alone, which has no CPUs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("raydr.stages.resources.is_connected", lambda: False)
    monkeypatch.setattr("raydr.runtime.cluster.is_connected", lambda: False)
    stated = {"capacity": {"CPU": 64, "GPU": 12}, "num_cpus": 3, "num_gpus": 0}
    with ray_session(RayConfig.model_validate(stated)):
        assert cluster_capacity() == {"CPU": 3.0, "GPU": 0.0}
    with ray_session(RayConfig.model_validate({**stated, "address": "10.0.0.5:6379"})):
        assert cluster_capacity() == {"CPU": 64.0, "GPU": 12.0}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    with ray_session(RayConfig.model_validate({"capacity": {"CPU": 8}})):
        assert cluster_capacity() == {"CPU": 8.0, "GPU": 0.0}
