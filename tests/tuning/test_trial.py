"""A trial's process: what works for it ends with it and gives its CPUs back, and what breaks off is tried again."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from ray import cloudpickle, tune
from ray.exceptions import NodeDiedError

from raydr.distributed.failures import worker_errors
from raydr.errors import DataError
from raydr.store.folder import Folder
from raydr.tuning import trial
from raydr.tuning.report import Row, best_trial
from raydr.tuning.trial import TrialProcess, follow_training, outside
from tuning.made_space import make_config, make_trial

# Processes of Ray do not find the packages of the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = [Row(epoch=epoch, score=0.1 * epoch, metrics={}) for epoch in (1, 2, 3)]


class Breaking:
    """An objective whose work breaks off after its second epoch, so many times."""

    def __init__(self, error: Exception, times: int, max_failures: int = 1) -> None:
        self.error, self.times, self.max_failures = error, times, max_failures

    def follow(self, values: dict[str, Any], place: Folder) -> Generator[tuple[list[Row], bool], None, None]:
        # It goes on from what is kept, and tells all rows again.
        yield ROWS[:1], False
        yield ROWS[:2], False
        if self.times:
            self.times -= 1
            with worker_errors():
                raise self.error
        yield ROWS, True


def results(objective: Any) -> list[dict[str, Any]]:
    process = object.__new__(TrialProcess)
    process.setup({"number": 0, "values": {}}, objective, Folder("memory://places"))
    steps = [process.step()]
    while not steps[-1]["done"]:
        steps.append(process.step())
    return steps


def test_epochs_of_other_values_under_the_same_number_do_not_count() -> None:
    """A killed search forgets a trial that had just begun, and may propose other values next."""
    seen: list[Folder] = []

    class Noting(Breaking):
        def follow(self, values: dict[str, Any], place: Folder) -> Generator[tuple[list[Row], bool], None, None]:
            seen.append(place)
            yield ROWS, True

    for beta in (0.1, 0.2, 0.1):
        process = object.__new__(TrialProcess)
        process.setup({"number": 3, "values": {"beta": beta}}, Noting(DataError("none"), 0), Folder("memory://places"))
        process.step()
    assert seen[0].url == seen[2].url != seen[1].url


@pytest.mark.parametrize(("error", "times"), [(NodeDiedError("gone"), 6), (DataError("a bad row"), 1)])
def test_every_epoch_is_told_once_however_often_work_breaks_off(error: Exception, times: int) -> None:
    """The loss of a node, which a cloud may take back at any time, is no failure of the trial."""
    steps = results(Breaking(error, times))
    assert [result["epoch"] for result in steps] == [1, 2, 3]
    assert [len(result["rows"]) for result in steps] == [1, 2, 3]
    assert [result["finished"] for result in steps] == [False, False, True]


def test_a_trial_that_fails_again_says_why_and_is_over() -> None:
    last = results(Breaking(DataError("a bad row"), 2))[-1]
    assert (last["error"], last["done"], last["epoch"]) == ("a bad row", True, 2)


def test_the_best_is_among_those_trained_to_their_end() -> None:
    trials = [make_trial(0, [0.1, 0.3]), make_trial(1, [0.9], "stopped"), make_trial(2, [0.1, 0.3])]
    assert best_trial(trials) == trials[0]
    assert best_trial(trials[1:2]) is None


@pytest.mark.parametrize(("num_epochs", "scores"), [(4, [0.2, 0.5, 0.1, 0.3]), (2, [0.2, 0.5])])
def test_a_score_is_of_no_epoch_that_training_cannot_keep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_epochs: int, scores: list[float]
) -> None:
    """Two epochs are plain NCE, and the model is one of the others, however good the warm-up was."""
    figures = [{"dev RR@10": value} for value in [0.2, 0.5, 0.1, 0.3][:num_epochs]]
    monkeypatch.setattr(trial, "outside", lambda *_, **__: nullcontext())
    monkeypatch.setattr(trial.ray, "wait", lambda *_, **__: [[None], []])
    monkeypatch.setattr(trial, "_result_of", lambda _: figures)
    config = make_config(train={"num_epochs": num_epochs})
    [(rows, is_finished)] = follow_training(config, Folder(str(tmp_path)))
    assert is_finished
    assert [row.score for row in rows] == scores


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
        begun: a file that is there when the group works.
        store: of Ray Train.
    """

    max_failures = 0

    def __init__(self, begun: str, store: str) -> None:
        self.begun, self.store = begun, store

    def follow(self, values: dict[str, Any], place: Folder) -> Generator[tuple[list[Row], bool], None, None]:
        import ray

        with outside(train_for_ever, self.begun, self.store) as work:
            while not Path(self.begun).exists():
                assert not ray.wait([work], timeout=0.1)[0]
            yield ROWS[:1], False
            raise AssertionError("a trial that was stopped goes on")


def test_the_group_of_a_stopped_trial_gives_its_cpus_back(ray_local, tmp_path):
    """Ray Train's own cleaner asks the dashboard, which this Ray has not: it would never give them back."""
    import ray
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def free_cpus() -> float:
        return float(ray.available_resources().get("CPU", 0))

    wait_until(lambda: free_cpus() == 2, "both CPUs are free")
    objective = Endless(str(tmp_path / "begun"), str(tmp_path / "store"))
    process = tune.with_parameters(TrialProcess, objective=objective, places=Folder(str(tmp_path)))
    # As Tune does: what such a process starts has to be where its group is, which has no CPU.
    group = placement_group([{"memory": 1}])
    captured = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    process = ray.remote(num_cpus=0, scheduling_strategy=captured)(process).remote({"number": 3, "values": {}})
    assert ray.get(process.train.remote())["epoch"] == 1
    assert free_cpus() == 0
    ray.get(process.stop.remote())
    ray.kill(process)
    remove_placement_group(group)
    wait_until(lambda: free_cpus() == 2, "the CPUs of the stopped trial are free")
