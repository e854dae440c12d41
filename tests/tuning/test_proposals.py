"""Which trials are made: they depend on the seed, their number and what is known, on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.errors import ConfigError
from raydr.tuning.importance import importances
from raydr.tuning.proposals import num_trials, propose
from tuning.made_space import make_config, make_space, make_trial

GRID = {"model.scale": {"grid": [10, 20]}, "train.loss.warmup_epochs": {"int": [1, 2]}}


def test_the_first_trial_is_the_default():
    for algorithm in ("tpe", "random"):
        space = make_space(search={"algorithm": algorithm})
        assert propose(space, 0, []) == space.defaults


def test_random_trials_depend_on_seed_and_number_alone():
    space = make_space(search={"algorithm": "random"})
    again = make_space(search={"algorithm": "random", "num_trials": 50})
    other = make_space(config=make_config(seed=1), search={"algorithm": "random"})
    drawn = [propose(space, number, []) for number in range(1, 9)]
    assert drawn == [propose(again, number, [make_trial(0, [0.1])]) for number in range(1, 9)]
    assert drawn[0] != propose(other, 1, [])
    assert len({str(values) for values in drawn}) > 6
    for values in drawn:
        assert all(one.encode(values[key]) is not None for key, one in space.parameters.items())


def test_a_grid_is_every_combination_after_the_default():
    space = make_space(GRID, search={"algorithm": "grid"})
    assert num_trials(space) == 4
    trials = [tuple(propose(space, number, []).values()) for number in range(4)]
    assert trials == [(20.0, 2), (10, 1), (10, 2), (20, 1)]
    with pytest.raises(ConfigError, match="leave it out"):
        num_trials(make_space(GRID, search={"algorithm": "grid", "num_trials": 4}))
    with pytest.raises(ConfigError, match=r"train.optimizer.learning_rate is a range: give it steps"):
        num_trials(make_space(search={"algorithm": "grid"}))


def test_tpe_learns_where_the_good_trials_are():
    space = make_space({"model.scale": {"uniform": [1, 99]}, "train.sampler": {"choice": ["top", "uniform"]}},
                       search={"algorithm": "tpe", "num_random": 10})  # fmt: skip
    trials = []
    for number in range(30):
        values = propose(space, number, trials)
        score = 1.0 - abs(values["model.scale"] - 70.0) / 100.0 + 0.2 * (values["train.sampler"] == "uniform")
        trials.append(make_trial(number, [score], **values))
    late = [trial.values for trial in trials[20:]]
    assert np.mean([abs(values["model.scale"] - 70.0) < 20 for values in late]) > 0.6
    assert np.mean([values["train.sampler"] == "uniform" for values in late]) > 0.6


def test_tpe_takes_stopped_failed_and_running_trials_and_a_default_outside_the_space():
    space = make_space({"model.scale": {"uniform": [30, 60]}}, search={"num_random": 1})
    assert None is space.parameters["model.scale"].encode(space.defaults["model.scale"])
    trials = [
        make_trial(0, [0.5, 0.6], **space.defaults),
        make_trial(1, [0.2], "stopped", **{"model.scale": 31.0}),
        make_trial(2, [], "failed", **{"model.scale": 32.0}),
        make_trial(3, [0.3], "running", **{"model.scale": 33.0}),
        make_trial(4, [0.7, 0.8], "finished", **{"model.scale": 55.0}),
    ]
    assert space.parameters["model.scale"].encode(propose(space, 5, trials)["model.scale"]) is not None
    assert propose(space, 5, trials) == propose(space, 5, trials)


def test_importance_finds_the_setting_that_matters_and_compares_at_the_same_epoch():
    space = make_space({"model.scale": {"uniform": [1, 99]}, "train.optimizer.weight_decay": {"uniform": [0, 1]}},
                       search={"algorithm": "random"})  # fmt: skip
    trials = []
    for number in range(24):
        values = propose(space, number, [])
        early = values["model.scale"] / 100
        # After epoch 2 only the trials that were not stopped have a score, which says the opposite.
        scores, status = ([early, early], "stopped") if number % 2 else ([early, early, 1 - early], "finished")
        trials.append(make_trial(number, scores, status, **values))
    found = importances(space.parameters, trials, seed=0)
    assert (found.epoch, found.num_trials) == (2, 24)
    assert found.rows[0].key == "model.scale"
    assert found.rows[0].share > max(0.8, found.rows[0].by_chance)
    assert found.rows[1].share < found.rows[1].by_chance
    assert importances(space.parameters, trials[:4], seed=0).reason.startswith("4 comparable trials are too few")
    level = [make_trial(at, [0.5], **trials[at].values) for at in range(8)]
    assert "same score" in importances(space.parameters, level, seed=0).reason
