"""A trial's process: what works for it ends with it and gives its CPUs back, and who waits for them says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, tune

from raydr.store.folder import Folder
from raydr.tuning import refresh, training, trial_work
from raydr.tuning.resources import describe_booked
from raydr.tuning.trial import REASON, TrialProcess
from raydr.tuning.trial_work import INPUTS, RESOURCES, News, outside
from raydr.tuning.trials import WAITED, Row
from tuning.free_cpus import free_cpus, wait_for_cpus
from tuning.made_space import make_config

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train_for_ever(begun: str, store: str) -> None:
    """A group of Ray Train on both CPUs."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        import threading

        Path(config["begun"]).touch()
        threading.Event().wait()

    TorchTrainer(
        loop,
        train_loop_config={"begun": begun},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="for-ever", storage_path=store),
    ).fit()


class Endless:
    """An objective whose training never ends.

    Args:
        begun: a file that is there when the group works; None: nobody waits for it.
        store: of Ray Train.
    """

    def __init__(self, begun: str, store: str, waits: bool) -> None:
        self.begun, self.store, self.waits = begun, store, waits

    def run(self, values: dict[str, Any], place: Folder) -> Generator[News, None, None]:
        import ray

        with outside(train_for_ever, self.begun, self.store) as work:
            while self.waits and not Path(self.begun).exists():
                assert not ray.wait([work], timeout=0.1)[0]
            while not self.waits and free_cpus():
                assert not ray.wait([work], timeout=0.1)[0]
            yield News([], waits_for=RESOURCES, waited_s=1.0)
            raise AssertionError("a trial that was stopped goes on")


@pytest.mark.parametrize("waits", [True, False], ids=["working", "starting"])
def test_the_group_of_a_stopped_trial_gives_its_cpus_back(ray_local, tmp_path, waits):
    """Ray Train's own cleaner asks the dashboard, which this Ray has not: it would never give them back."""
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wait_for_cpus(2)
    objective = Endless(str(tmp_path / "begun"), str(tmp_path / "store"), waits)
    process = tune.with_parameters(TrialProcess, objective=objective, search=Folder(str(tmp_path)))
    # As Tune does: what such a process starts has to be where its group is, which has no CPU.
    group = placement_group([{"memory": 1}])
    captured = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    process = ray.remote(num_cpus=0, scheduling_strategy=captured)(process).remote(
        {"trial": {"number": 3, "values": {}, "rows": []}}
    )
    assert ray.get(process.train.remote())[WAITED] == 1.0
    assert free_cpus() == 0
    ray.get(process.stop.remote())
    ray.kill(process)
    remove_placement_group(group)
    wait_for_cpus(2)
    assert not (tmp_path / "places/trial-003" / REASON).exists()


def test_a_task_knows_its_ray_where_several_run(ray_local):
    import ray

    with outside(os.getenv, "RAY_API_SERVER_ADDRESS") as work:
        assert ray.get(work) == ray.get_runtime_context().gcs_address


def test_a_training_without_cpus_says_that_it_waits(ray_local, tmp_path, monkeypatch):
    import ray
    from ray.util import placement_group, remove_placement_group

    wait_for_cpus(2)
    monkeypatch.setattr(trial_work, "_WORD_S", 0.0)
    # What it trains on is there.
    monkeypatch.setattr(training, "missing", lambda config, nodes: [])
    monkeypatch.setattr(training, "trained", lambda config: SimpleNamespace(inputs={}))
    others = placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(others.ready())
    try:
        waiting = training.follow_training(make_config(), Folder(str(tmp_path)), None)
        news = [next(waiting), next(waiting)]
        assert 0 < news[0].waited_s < news[1].waited_s
        assert {one.waits_for for one in news} == {RESOURCES}
        assert describe_booked() == "of 2 CPU, 2 are booked: 2 by groups of workers, 0 by other tasks and actors"
        waiting.close()
    finally:
        remove_placement_group(others)


class Slow:
    """An actor that makes inputs until it is told that another trial needs them no longer."""

    def __init__(self, done: str) -> None:
        self.done = done

    def make(self, config: Any) -> None:
        import time

        while not Path(self.done).exists():
            time.sleep(0.05)


def slow_round(done: str, capacity: Any, number: int) -> Any:
    Slow(done).make(None)
    return Row(epoch=number, score=0.5, metrics={}), True


def test_a_trial_says_what_is_being_made_for_it(ray_local, tmp_path, monkeypatch):
    import ray

    wait_for_cpus(2)
    monkeypatch.setattr(trial_work, "_WORD_S", 0.0)
    monkeypatch.setattr(training, "missing", lambda config, nodes: [nodes])
    monkeypatch.setattr(training, "trained", lambda config: SimpleNamespace(inputs={}))
    monkeypatch.setattr(training, "train", lambda config, place: [])
    monkeypatch.setattr(refresh, "run_round", slow_round)
    done = tmp_path / "done"
    maker = ray.remote(num_cpus=0)(Slow).remote(str(done))
    following = training.follow_training(make_config(), Folder(str(tmp_path)), maker)
    assert next(following).waits_for == INPUTS
    rounds = refresh.follow_refresh(str(done), {})
    assert next(rounds).waits_for == "round 1, which is being made"
    done.touch()
    assert next(one for one in rounds if one.finished).rows[0].score == 0.5
    following.close()
