"""Who watches a training."""

import pytest
import ray

from raydr.artefacts.train_progress import BoardWatcher, ConsoleWatcher, _Board, training_on_ray
from raydr.distributed import cluster
from raydr.errors import ClusterError
from raydr.training.checkpoint import Progress


def test_a_board_is_on_the_ray_of_the_session_and_starts_none_of_rays_own_making(monkeypatch):
    """Ray starts one with its defaults, on all CPUs, for whoever asks it something first."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray started one by itself"))
    monkeypatch.setattr(cluster._Session, "config", None)
    with pytest.raises(ClusterError, match="outside of a session"), training_on_ray(num_epochs=1):
        pass


class _Bar:
    """Keeps what it is told."""

    def __init__(self):
        self.updates = []

    def set(self, completed, total):
        self.updates.append((completed, total))


class _Remote:
    """An actor's methods, called here."""

    def __init__(self, actor):
        self.step = self
        self.remote = actor.step


def test_no_bar_is_full_while_dev_is_measured_so_that_the_time_left_is_not_zero():
    bar, board, steps = _Bar(), _Board(), [Progress(epoch=epoch, step=step) for epoch in (0, 1) for step in (1, 2, 3)]
    here, on_ray = ConsoleWatcher(bar, num_epochs=2), BoardWatcher(_Remote(board))
    for progress in steps:
        here.step(progress, num_steps=3)
        on_ray.step(progress, num_steps=3)
        assert (board.done[0], 2 * board.done[1]) == bar.updates[-1]
    # The measuring that follows an epoch's last step counts as one more.
    assert bar.updates == [(1, 8), (2, 8), (3, 8), (5, 8), (6, 8), (7, 8)]
