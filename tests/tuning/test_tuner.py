"""What Ray Tune is given: Optuna's search with the default first, and schedulers that spare it and remember."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from ray import cloudpickle
from ray.tune.search import SearchGenerator
from ray.tune.search.optuna import OptunaSearch

from raydr.store.folder import Folder
from raydr.tracking.tracker import NullTracker
from raydr.tuning.plan import plan_search
from raydr.tuning.search import Reporter, _open_tuner, make_scheduler, make_searcher, trial_of
from raydr.tuning.trial import Objective
from tuning.made_space import make_config, make_space, make_trial

SCALES = {"model.scale": {"uniform": [1, 99]}, "train.sampler": {"choice": ["top", "uniform"]}}


def searcher(space: dict[str, Any] | None = None, seed: int = 0, **search: Any) -> OptunaSearch:
    return make_searcher(plan_search(make_space(space, make_config(seed=seed), search=search)))


def values(asked: OptunaSearch, number: int) -> dict[str, Any]:
    suggestion = asked.suggest(str(number))
    assert suggestion is not None
    assert suggestion["number"] == number
    parameters: dict[str, Any] = suggestion["values"]
    return parameters


@pytest.mark.parametrize("algorithm", ["tpe", "random"])
def test_the_first_trial_is_the_default_and_the_others_are_drawn_by_the_seed(algorithm):
    space = make_space()
    asked, same, other = (searcher(seed=seed, algorithm=algorithm) for seed in (0, 0, 1))
    drawn = [values(asked, number) for number in range(8)]
    assert drawn[0] == space.defaults
    assert drawn == [values(same, number) for number in range(8)]
    assert drawn[1] != [values(other, number) for number in range(2)][1]
    for trial in drawn[1:]:
        assert all(parameter.encode(trial[key]) is not None for key, parameter in space.parameters.items())


def test_a_default_outside_the_space_is_the_first_trial_all_the_same():
    asked = searcher({"model.scale": {"uniform": [30, 60]}}, num_random=1)
    assert values(asked, 0) == {"model.scale": 20.0}
    asked.on_trial_complete("0", {"score": 0.9})
    for number in range(1, 6):
        assert 30 <= values(asked, number)["model.scale"] <= 60
        asked.on_trial_complete(str(number), {"score": 0.1 * number})


def test_a_grid_is_tried_in_its_order():
    asked = searcher({"model.scale": {"grid": [10, 20, 40]}}, algorithm="grid")
    assert [values(asked, number)["model.scale"] for number in range(3)] == [20.0, 10.0, 40.0]


def test_tpe_learns_where_the_good_trials_are_and_a_restored_search_proposes_the_same(tmp_path: Path):
    def scores(restored_at: int | None = None) -> list[float]:
        asked, trial_scores = searcher(SCALES, algorithm="tpe", num_random=10), []
        for number in range(40):
            if number == restored_at:
                # As Ray Tune does when a killed search goes on.
                asked.save(str(tmp_path / "searcher"))
                asked = searcher(SCALES, algorithm="tpe", num_random=10)
                asked.restore(str(tmp_path / "searcher"))
            trial = values(asked, number)
            trial_scores.append(1 - abs(trial["model.scale"] - 70) / 100 + 0.2 * (trial["train.sampler"] == "uniform"))
            asked.on_trial_complete(str(number), {"score": trial_scores[-1]})
        return trial_scores

    uninterrupted = scores()
    # Drawn at random they come to 0.81.
    assert np.mean(uninterrupted[20:]) > 0.93
    assert scores(restored_at=20) == uninterrupted


class TuneTrial:
    """What schedulers look at of a trial of Ray Tune."""

    def __init__(self, number: int, rows: list[dict[str, Any]] | None = None) -> None:
        self.trial_id, self.config, self.status = f"id-{number}", {"number": number, "values": {}}, "TERMINATED"
        self.last_result: dict[str, Any] = {"rows": rows, "done": True, "finished": True} if rows else {}

    def is_finished(self) -> bool:
        return bool(self.last_result)


def test_a_restored_scheduler_stops_what_it_would_have_stopped():
    plan = plan_search(make_space(scheduler={"grace_epochs": 4}))
    over = [make_trial(at, [0.1, 0.2, 0.3, 0.4 + at / 10, 0.5 + at / 10]) for at in range(3)]

    def decision(known: list[Any], number: int, score: float) -> str:
        scheduler, trial = make_scheduler(plan), TuneTrial(number)
        for known_trial in known:
            scheduler.on_trial_add(None, TuneTrial(known_trial.number, [row.model_dump() for row in known_trial.rows]))
        scheduler.on_trial_add(None, trial)
        decisions = [scheduler.on_trial_result(None, trial, {"epoch": epoch, "score": score}) for epoch in range(1, 5)]
        # A trial that has failed has no score.
        scheduler.on_trial_complete(None, trial, {"error": "died"})
        assert set(decisions[:3]) == {"CONTINUE"}
        return decisions[3]

    assert decision(over, 7, 0.05) == "STOP"
    assert decision(over, 7, 0.99) == "CONTINUE"
    assert decision([], 7, 0.05) == "CONTINUE"
    # The others are compared with the default, so it is trained to its end however bad it is.
    assert decision(over, 0, 0.05) == "CONTINUE"
    # Tune keeps it with the search.
    cloudpickle.dumps(make_scheduler(plan))


def test_what_a_trial_of_ray_tune_has_come_to():
    def status(ray_status: str = "TERMINATED", **last: Any) -> tuple[str, str]:
        trial = trial_of(SimpleNamespace(config={"number": 3, "values": {}}, status=ray_status, last_result=last))
        return trial.status, trial.error

    row = {"epoch": 1, "score": 0.5, "metrics": {}}
    assert status("RUNNING", rows=[row], finished=False, done=False) == ("running", "")
    assert status(rows=[row], finished=False, done=True) == ("stopped", "")
    assert status(rows=[row], finished=True, done=True) == ("finished", "")
    assert status(rows=[], error="a bad row", done=True) == ("failed", "a bad row")
    assert status("ERROR", rows=[row], finished=False) == ("failed", "its process died")


def test_a_resumed_search_has_the_number_of_trials_at_a_time_of_its_command(ray_local, tmp_path, recwarn):
    plan = plan_search(make_space())
    objective = Objective(plan.space.config, refreshes=False)
    Reporter(NullTracker(), plan, objective, cast(Any, None))

    def searching(concurrency: int) -> SearchGenerator:
        tuner = _open_tuner(Folder(str(tmp_path)), plan, objective, concurrency)
        return SearchGenerator(tuner._local_tuner._tune_config.search_alg)

    # As Ray Tune does when a killed search goes on.
    searching(2).save_to_dir(str(tmp_path), "first")
    resumed = searching(1)
    resumed.restore_from_dir(str(tmp_path))
    assert resumed.searcher.max_concurrent == 1
    assert resumed.searcher.suggest("a") is not None
    # A resumed trial reports its epochs again.
    for _ in range(2):
        resumed.searcher.on_trial_result("a", {"score": 0.5, "training_iteration": 1})
    assert not [warning for warning in recwarn if "reported" in str(warning.message)]
