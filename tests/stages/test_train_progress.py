"""Who watches a training."""

import pytest
import ray

from raydr.errors import ClusterError
from raydr.runtime import cluster
from raydr.stages.train_progress import training_on_ray


def test_a_board_is_on_the_ray_of_the_session_and_starts_none_of_rays_own_making(monkeypatch):
    """Ray starts one with its defaults, on all CPUs, for whoever asks it something first."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray started one by itself"))
    monkeypatch.setattr(cluster._Session, "config", None)
    with pytest.raises(ClusterError, match="outside of a session"), training_on_ray(num_epochs=1):
        pass
