"""Trials that are refreshes, without Ray Tune: what they share, what they leave, and how the best is confirmed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raydr.tuning.confirm import BEST, DEFAULT
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph import stage_calls
from raydr.runtime.tracking import NullTracker
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.tuning import refresh as tune_refresh
from raydr.tuning.plan import plan_search
from raydr.tuning.refresh import RefreshConfirming, RefreshObjective, refresh_task, run_round
from raydr.tuning.resources import Shares
from raydr.tuning.space import build_space
from raydr.tuning.trial_config import with_values
from raydr.tuning.trials import Row

pytestmark = pytest.mark.timeout(1800)

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
    found = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **settings))
    # The small data have no test split.
    return found.model_copy(update={"data": found.data.model_copy(update={"test_splits": ["train"]})})


def made(root: Path, pattern: str) -> dict[str, int]:
    """When the artefacts whose folders fit were finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in root.glob(f"{pattern}/manifest.json")}


def test_trials_share_rounds_leave_no_vectors_and_are_confirmed(ray_local, config, tiny_data, tmp_path, monkeypatch):
    corpus, dataset, root = Folder(tiny_data[0]), Folder(tiny_data[1]), tmp_path / "rounds"
    shares = Shares(1, {"CPU": 2.0, "GPU": 0.0})
    objective = RefreshObjective(config, dataset, corpus, Folder(str(root)), shares)
    longer = with_values(config, LONGER)

    def run(own: RunConfig, name: str, number: int) -> tuple[Row, bool]:
        return run_round(own, dataset, corpus, Folder(str(root)), Folder(str(tmp_path / name)), shares.each, number)

    first, over = run(config, "model-0", 1)
    assert over
    Artifact.open(str(tmp_path / "model-0"), "model").verify()
    shared = made(root, "round-1/train-*")
    assert len(shared) == 1
    objective.forget({}, [LONGER])
    # The other trial is running, and needs them.
    assert len(made(root, "round-1/index-*")) == 1

    # A scheduler must not stop a trial that is done: its last row comes with its model.
    assert run(longer, "model-1", 1) == (first, False)
    assert not (tmp_path / "model-1").exists()
    second, over = run(longer, "model-1", 2)
    assert over
    assert set(second.metrics) == {"dev RR@10", "dev recall@5 (qrels)"}
    assert second.score == max(row.metrics["dev RR@10"] for row in (first, second))
    Artifact.open(str(tmp_path / "model-1"), "model").verify()
    assert made(root, "round-1/train-*") == shared
    objective.forget(LONGER, [])
    assert not made(root, "round-[12]/index-*")
    assert not made(root, "round-[12]/passages-*")
    assert len(made(root, "round-[12]/train-*")) == 2

    # The default's best round is the first one of the other as well, and its vectors are needed to the end.
    monkeypatch.setattr(tune_refresh, "best_round", lambda _, __, done: done[-1])
    encoded: list[Folder] = []
    encode = stage_calls.encode_passages
    monkeypatch.setattr(stage_calls, "encode_passages", lambda *inputs: encoded.append(inputs[-2]) or encode(*inputs))
    opened = Artifact.open(corpus, "corpus"), Artifact.open(dataset, "dataset")
    place = tmp_path / "confirm"
    confirming = partial(
        RefreshConfirming, {DEFAULT: config, BEST: longer}, [config.seed + 1], *opened, Folder(str(place))
    )
    found = confirming(NullTracker()).run()
    assert [one.split for one in found] == ["dev", "train"]
    assert {row.measure for row in found[1].comparisons} == {"RR@10", "recall@5 (qrels)"}
    # The splits to report on are searched once a system, with its best round.
    assert [len(made(place, f"{name}-*/run-train-*")) for name in (DEFAULT, BEST)] == [1, 1]
    assert not made(place, "*/passages-*")
    assert len(encoded) == len({str(folder) for folder in encoded}) == 2
    again = confirming(NullTracker()).run()
    assert [one.by_seed for one in again] == [one.by_seed for one in found]


def test_side_by_side_takes_an_index_of_one_shard(config, tiny_data):
    corpus = Artifact.open(tiny_data[0], "corpus")
    sharded = config.model_copy(update={"index": config.index.model_copy(update={"shard_rows": 50})})
    tune_refresh._check_shards(config, corpus, Shares(2, {"CPU": 4.0}))
    tune_refresh._check_shards(sharded, corpus, Shares(1, {"CPU": 4.0}))
    with pytest.raises(ConfigError, match=r"has \d+ shards: two trials that search at a time could each hold"):
        tune_refresh._check_shards(sharded, corpus, Shares(2, {"CPU": 4.0}))


def test_a_trial_that_cannot_be_planned_is_no_end_of_the_search(config, tiny_data, tmp_path):
    corpus, dataset = Folder(tiny_data[0]), Folder(tiny_data[1])
    objective = RefreshObjective(config, dataset, corpus, Folder(str(tmp_path)), Shares(1, {"CPU": 2.0}))
    objective.forget({"refresh.judges": ["misspelt"]}, [{"train.num_epochs": -1}])


def test_a_search_depends_on_judges_that_only_some_trials_use(config, tiny_data, tmp_path):
    job: Any = SimpleNamespace(corpus=Folder(tiny_data[0]), dataset=Folder(tiny_data[1]))

    def fingerprint(margin: float) -> str:
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
        return refresh_task(job, plan, Shares(1, {"CPU": 2.0}), Folder(str(tmp_path)), "float32").identity.fingerprint

    assert fingerprint(0.05) == fingerprint(0.05)
    assert fingerprint(0.05) != fingerprint(0.2)
