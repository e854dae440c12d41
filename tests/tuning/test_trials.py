"""Books of trials, resources, and the schedulers' memory."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.errors import ConfigError
from raydr.tuning.resources import Shares, share_resources
from raydr.tuning.schedule import plan_schedule
from raydr.tuning.scheduler import make_scheduler
from raydr.tuning.trials import Trial, as_table, best_trial, common_epoch
from tuning.made_space import make_config, make_space, make_trial

TWO = {"CPU": 2.0, "GPU": 0.0}


def test_the_best_is_among_the_finished_and_all_are_compared_where_all_have_been():
    trials = [
        make_trial(0, [0.1, 0.2, 0.3]),
        make_trial(1, [0.9], "stopped"),
        make_trial(2, [0.1, 0.2, 0.3]),
        make_trial(3, [], "failed"),
    ]
    assert best_trial(trials) == trials[0]
    assert common_epoch(trials) == 1
    assert best_trial(trials[1:2]) is None


def test_the_table_has_a_row_an_epoch_and_keeps_numbers_as_numbers():
    trials = [
        make_trial(0, [0.1, 0.2], **{"model.scale": 20.0, "train.loss": {"name": "nce"}}),
        make_trial(1, [], "failed", **{"model.scale": 10, "train.loss": {"name": "rcl", "beta": 0.5}}),
    ]
    table = as_table(trials)
    assert table["trial"].to_pylist() == [0, 0, 1]
    assert table["value:model.scale"].to_pylist() == [20.0, 20.0, 10.0]
    assert table["value:train.loss"].to_pylist() == ["nce", "nce", "rcl(beta=0.5)"]
    assert table["score"].to_pylist() == [0.1, 0.2, None]


def test_trainings_share_what_there_is_or_are_refused():
    def share(capacity: dict[str, float], wanted: int | None = None, **train: Any) -> Shares:
        return share_resources(make_config(train=train), False, capacity, 10, wanted)

    assert share(TWO).concurrency == 2
    assert share(TWO, num_workers=2).describe() == (
        "1 trial at a time, with 2 Ray Train workers of 1 CPU; Ray has 2 CPU"
    )
    assert share({"CPU": 64.0, "GPU": 4.0}, use_gpu=True, cpus_per_worker=4).concurrency == 4
    assert share({"CPU": 64.0, "GPU": 0.0}).concurrency == 10
    assert share({"CPU": 1.0, "GPU": 0.0}, cpus_per_worker=0.1).concurrency == 10
    with pytest.raises(ConfigError, match=r"a trial takes 4 CPU .* Ray has 2 CPU: 0 at a time fit. Lower"):
        share(TWO, num_workers=4)
    with pytest.raises(ConfigError, match=r"2 at a time fit, 3 are asked for .* or trials.concurrency"):
        share(TWO, wanted=3)
    with pytest.raises(ConfigError, match=r"takes 1 CPU and 1 GPU .* Ray has 2 CPU: 0 at a time fit"):
        share(TWO, use_gpu=True)
    with pytest.raises(ConfigError, match="grow and shrink"):
        share(TWO, num_workers=(1, 2))


def test_every_node_of_a_refresh_must_fit_into_its_share():
    config = make_config(encode={"cpus_per_actor": 2, "cpus_per_tokenizer": 1})

    def share(capacity: dict[str, float], wanted: int | None = None) -> Shares:
        return share_resources(config, True, capacity, 9, wanted)

    assert share({"CPU": 8.0, "GPU": 0.0}).describe() == "1 trial at a time, with all of it; Ray has 8 CPU"
    assert share({"CPU": 8.0, "GPU": 0.0}, 2).describe() == "2 trials at a time, each with 1/2 of it; Ray has 8 CPU"
    assert share({"CPU": 8.0, "GPU": 0.0}, 2).each == {"CPU": 4.0, "GPU": 0.0}
    with pytest.raises(
        ConfigError, match=r"takes 3 CPU \(section encode\), Ray has 4 CPU: 1 at a time fit, 2 are asked"
    ):
        share({"CPU": 4.0, "GPU": 0.0}, 2)


class FakeTrial:
    """What schedulers look at."""

    def __init__(self, number: int) -> None:
        self.trial_id = f"new-{number}"
        self.config: dict[str, Any] = {"trial": {"number": number}}


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_resumed_scheduler_stops_what_it_would_have_stopped(name):
    space = make_space(scheduler={"name": name, "grace_epochs": 4, "min_trials": 2})
    schedule = plan_schedule(space)
    over = [make_trial(at, [0.1, 0.2, 0.3, 0.4 + at / 10, 0.5 + at / 10]) for at in range(3)]

    def decision(trials: list[Trial], number: int, score: float) -> str:
        scheduler, trial = make_scheduler(space.settings.scheduler, schedule, trials), FakeTrial(number)
        scheduler.on_trial_add(None, trial)
        decisions = [scheduler.on_trial_result(None, trial, {"epoch": epoch, "score": score}) for epoch in range(1, 5)]
        assert set(decisions[:3]) == {"CONTINUE"}
        return decisions[3]

    assert decision(over, 7, 0.05) == "STOP"
    assert decision(over, 7, 0.99) == "CONTINUE"
    assert decision([], 7, 0.05) == "CONTINUE"
    # The others are compared with the default, so it is trained to its end however bad it is.
    assert decision(over, 0, 0.05) == "CONTINUE"
