"""Trials that are refreshes, without Ray Tune: what they share, what they leave, and how the best is confirmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.distributed.cluster import ray_session
from raydr.pipeline.compare import compare_models
from raydr.pipeline.garbage import open_claims
from raydr.pipeline.rounds import lay_out
from raydr.pipeline.session import open_session
from raydr.tuning.plan import plan_search
from raydr.tuning.run import study, train_anew
from raydr.tuning.space import build_space, with_values
from raydr.tuning.trial import Objective, declare, follow_refresh, nodes_of

#: What differs from the default: another round.
LONGER = {"refresh.num_rounds": 2}


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    settings: dict[str, Any] = {
        # Mining in between is what tests of the refresh look at.
        "train": {"num_epochs": 1, "num_hard_negatives": 0},
        "model": {"dropout": 0.0},
        "evaluate": {"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        "refresh": {"num_rounds": 1, "evaluate_splits": ["dev"]},
    }
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))


def there(config: RunConfig, kind: str) -> set[str]:
    """Keys of the finished artefacts of a kind among the nodes of a trial."""
    places = Places.of(config.workdir)
    nodes = nodes_of(config, refreshes=True).values()
    return {node.key for node in nodes if node.kind == kind and places.folder(kind, node.key).exists("manifest.json")}


def test_trials_share_rounds_leave_nothing_large_and_are_confirmed(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = Objective(config, True)
    longer = with_values(config, LONGER)
    with ray_session(config.ray):
        [([first], over)] = follow_refresh(config)
        assert over
        shared = there(config, "model")
        assert len(shared) == 1
        rounds = follow_refresh(longer)
        assert next(rounds) == ([first], False)
        # A round begins when the search wants it.
        assert there(longer, "model") == shared
        (_, second), over = next(rounds)
        assert over
        assert set(second.metrics) == {"dev RR@10", "dev recall@5"}
        assert second.score == max(row.metrics["dev RR@10"] for row in (first, second))
        both = there(longer, "model")
        assert shared < both
        objective.forget([LONGER])
        assert not there(longer, "index") | there(longer, "embeddings")
        # A trial to come may go on from them.
        assert there(longer, "model") == both
        places = Places.of(config.workdir)
        with monkeypatch.context() as patch, open_claims(places) as other:
            other.add([places.folder("model", key) for key in both])
            # As if another process had them.
            patch.setattr("raydr.pipeline.garbage._own", set())
            objective.forget([{}, LONGER], ("model",))
            assert there(longer, "model") == both
        objective.forget([{}, LONGER], ("model",), kept=shared)
        assert there(longer, "model") == shared
        # What is small stays, and a trial to come finds it.
        assert there(longer, "run")
    with open_session(config) as session:
        run = session.recipe.context
        configs = {"default": run, "best": run.of(longer)}

        def confirmed() -> Any:
            models = {
                name: [train_anew(session, own, name, config.seed + 1, refreshes=True)] for name, own in configs.items()
            }
            return compare_models(session, run, models, [config.seed + 1], ["dev", "test"], "confirm")

        evaluations = confirmed()
        assert [evaluation.split for evaluation in evaluations] == ["dev", "test"]
        assert {row.measure for row in evaluations[1].comparisons} == {"RR@10", "recall@5"}
        assert {row.system for row in evaluations[1].summaries} == {"default", "best"}
        own = run.of(longer.model_copy(update={"seed": config.seed + 1}))
        left = [
            node
            for arm in lay_out(own)
            for refresh_round in arm.rounds
            for node in refresh_round.nodes().values()
            if node.temporary
        ]
        assert not any(session.places.folder(node.kind, node.key).exists("manifest.json") for node in left)
        assert [evaluation.by_seed for evaluation in confirmed()] == [evaluation.by_seed for evaluation in evaluations]


def test_a_trial_that_cannot_be_planned_is_no_end_of_the_search(config: RunConfig) -> None:
    objective = Objective(config, True)
    with ray_session(config.ray):
        objective.forget([{"refresh.judges": ["misspelt"]}, {"train.num_epochs": -1}])


def test_a_search_depends_on_judges_that_only_some_trials_use(config: RunConfig) -> None:
    def key(margin: float) -> str:
        raw = config.model_dump(mode="json")
        raw["train"]["num_hard_negatives"] = 1
        raw["refresh"]["num_rounds"] = 2
        raw["judge"]["judges"] = [{"name": "margin", "margin": margin}]
        space = {
            "objective": "refresh",
            "scheduler": {"name": "none"},
            "space": {"refresh.judges": {"choice": [[], ["margin"]]}},
        }
        plan = plan_search(build_space(space, RunConfig.parse(raw), "mine"))
        with open_session(plan.space.config) as session:
            return study(session, plan, Objective(plan.space.config, True), 1).key

    assert key(0.05) == key(0.05)
    assert key(0.05) != key(0.2)


def test_a_trial_declares_what_a_verb_declares(config: RunConfig) -> None:
    with open_session(config) as session:
        [verbs] = lay_out(session.recipe.context)
        [trials] = lay_out(declare(config))
        assert [refresh_round.nodes().keys() for refresh_round in verbs.rounds] == [
            refresh_round.nodes().keys() for refresh_round in trials.rounds
        ]
