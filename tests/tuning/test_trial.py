"""A trial's process: what works for it ends with it and gives its CPUs back, and who waits for them says so."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle, tune

from raydr.errors import TuningError
from raydr.runtime.console import progress_bar
from raydr.runtime.tracking import NullTracker
from raydr.store.artifact import Building, Identity, begin
from raydr.store.folder import Folder
from raydr.tuning import trial
from raydr.tuning.book import Book
from raydr.tuning.objective import News
from raydr.tuning.resources import Split, describe_booked
from raydr.tuning.trial import REASON, TrialProcess, follow_training, outside
from raydr.tuning.trials import WAITED
from tuning.made_space import make_config

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: Seconds between two looks at Ray's CPUs, and looks until they have to be back.
POLL_S, LOOKS = 0.1, 600


def free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0))


def wait_for_cpus(number: float) -> None:
    for _ in range(LOOKS):
        if free_cpus() == number:
            return
        time.sleep(POLL_S)
    raise AssertionError(describe_booked())


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
            yield News([], waited_s=1.0)
            raise AssertionError("a trial that was stopped goes on")


@pytest.mark.timeout(300)
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
    monkeypatch.setattr(trial, "_WORD_S", 0.0)
    others = placement_group([{"CPU": 1}, {"CPU": 1}])
    ray.get(others.ready())
    try:
        split = Split(1, 1, 0, 1, {"CPU": 2.0})
        training = follow_training(make_config(), Folder(str(tmp_path)), split)
        assert 0 < next(training).waited_s < next(training).waited_s
        assert describe_booked() == "of 2 CPU, 2 are booked: 2 by groups of workers, 0 by other tasks and actors"
        training.close()
    finally:
        remove_placement_group(others)


def test_a_search_does_not_wait_for_ever(ray_local, tmp_path, capsys):
    with begin(str(tmp_path / "search"), Identity(kind="search")) as making, progress_bar("tune", 1, "trials") as bar:
        assert isinstance(making, Building)
        book = Book(making, NullTracker(), 1, bar, "epoch", lambda ended, running: None, max_wait_s=90.0)
        book.begin(0, {})
        book.wait(0, 60.0)
        assert "trial 0 has waited 60 s for its CPUs and GPUs; of 2 CPU, " in " ".join(capsys.readouterr().err.split())
        with pytest.raises(TuningError, match="raise trials.max_wait_s; the same command goes on with the search"):
            book.wait(0, 120.0)
