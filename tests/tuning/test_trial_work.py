"""Work outside a trial's process: what a lost node breaks off is begun again, and what went wrong is not."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import NodeDiedError, RayActorError

from raydr.errors import DataError, NodeLostError, RaydrError
from raydr.stages.failures import worker_errors
from raydr.stages.worker_group import lost_a_worker
from raydr.store.folder import Folder
from raydr.tuning import training, trial_work
from raydr.tuning.search import TRIAL_SHELL
from raydr.tuning.trial_work import ANOTHER_NODE, News, in_spite_of_lost_nodes
from raydr.tuning.trials import Row
from tuning.made_space import make_config


def test_a_lost_node_is_no_failure_however_often() -> None:
    """Ray Tune would have counted each: with one further try the second lost spot machine ended a trial."""
    tries = []

    def work() -> Generator[News, None, str]:
        tries.append(1)
        yield News([Row(epoch=1, score=0.5, metrics={})])
        if len(tries) < 6:
            with worker_errors():
                raise NodeDiedError("the node is dead")
        return "made"

    news = in_spite_of_lost_nodes(work)
    told = []
    with pytest.raises(StopIteration) as over:
        while True:
            told.append(next(news))
    assert over.value.value == "made"
    assert len(tries) == 6
    assert [one.waits_for for one in told if one.waits_for] == [ANOTHER_NODE] * 5


@pytest.mark.parametrize("error", [DataError("a bad row"), RaydrError("a worker was lost (out of memory)")])
def test_other_errors_end_it(error: RaydrError) -> None:
    def work() -> Generator[News, None, None]:
        yield News([])
        raise error

    with pytest.raises(type(error), match=str(error)[:9]):
        list(in_spite_of_lost_nodes(work))


def test_a_dead_worker_is_told_from_one_that_raised() -> None:
    class GroupError(Exception):
        def __init__(self, *failures: Exception) -> None:
            self.worker_failures = dict(enumerate(failures))

    dead = SimpleNamespace(health_check_failure=RayActorError())
    assert lost_a_worker(GroupError(RuntimeError("connection closed by peer"), RayActorError()))
    assert lost_a_worker(GroupError(dead))  # type: ignore[arg-type]
    assert not lost_a_worker(GroupError(RuntimeError("CUDA out of memory")))
    assert not lost_a_worker(RuntimeError("of the controller"))
    assert issubclass(NodeLostError, RaydrError)


class Asked(Exception):
    """Ray was asked for a place."""


@pytest.mark.parametrize(
    ("train", "labels"),
    [
        ({"node_labels": {"market": "on-demand"}}, {"market": "on-demand"}),
        ({}, {}),
        # Its group asks for the labels itself (tests/stages/test_worker_group.py); what begins the group runs anywhere.
        ({"node_labels": {"market": "on-demand"}, "num_workers": 2}, {}),
    ],
)
def test_a_trials_training_is_placed_by_the_labels_of_nodes(
    train: dict[str, Any], labels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remote(**options: Any) -> None:
        raise Asked(options["label_selector"])

    context = SimpleNamespace(gcs_address="")
    monkeypatch.setattr(trial_work, "ray", SimpleNamespace(remote=remote, get_runtime_context=lambda: context))
    monkeypatch.setattr(training, "missing", lambda config, nodes: [])
    monkeypatch.setattr(training, "trained", lambda config: SimpleNamespace(inputs={}))
    with pytest.raises(Asked) as asked:
        next(training.follow_training(make_config(train=train), Folder(str(tmp_path)), None))
    assert asked.value.args == (labels,)


@pytest.mark.usefixtures("ray_local")
def test_a_trials_own_process_has_its_place_on_the_head() -> None:
    [head] = [node for node in ray.nodes() if node["Alive"]]
    assert all(head["Resources"][name] >= amount for name, amount in TRIAL_SHELL.items())
