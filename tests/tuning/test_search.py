"""Whole searches on the Ray of this process: trials that are groups of workers, and trials that are refreshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from patience import wait_until
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.errors import TuningError
from raydr.store.artifact import Artifact

#: The second trial learns next to nothing.
GRID = {"space": {"train.optimizer.learning_rate": {"grid": [1e-7]}}, "search": {"algorithm": "grid"}}


def make_config(beir_folder: Path, checkpoint: str, workdir: Path, **sections: Any) -> RunConfig:
    # Mining is what tests of the graph look at.
    train = {"num_hard_negatives": 0, "optimizer": {"learning_rate": 3e-3, "schedule": "constant"}}
    sections["train"] = train | sections.get("train", {})
    return RunConfig.parse(small_run(beir_folder, checkpoint, workdir, **sections))


def test_a_group_that_is_stopped_leaves_nothing_behind(ray_local, beir_folder, tiny_checkpoint, tmp_path):
    train = {"num_workers": 2, "num_epochs": 6}
    config = make_config(beir_folder, tiny_checkpoint, tmp_path / "work", train=train)
    tuning = raydr.tune(config, GRID | {"scheduler": {"grace_epochs": 2}}, name="mine")
    assert [trial.status for trial in tuning.trials] == ["finished", "stopped"]
    assert [row.epoch for row in tuning.trials[1].rows] == [1, 2]
    # Only what the best trial has made is kept, under a name.
    kept = (tmp_path / "work/models/mine-best").resolve()
    assert [path for path in (tmp_path / "work/store/model").iterdir() if path.is_dir()] == [kept]
    wait_until(lambda: ray.available_resources().get("CPU") == 2, "the CPUs are free")


def test_a_search_whose_trials_all_failed_begins_anew(ray_local, beir_folder, tiny_checkpoint, tmp_path, capsys):
    """The same command restored the failed trials: it repeated their first reason, whatever was mended since."""
    train = {"num_epochs": 2, "optimizer": {"learning_rate": 1e25}}
    config = make_config(beir_folder, tiny_checkpoint, tmp_path / "work", train=train)
    space = GRID | {"space": {"train.optimizer.learning_rate": {"grid": [2e25]}}, "scheduler": {"name": "none"}}
    for _ in range(2):
        with pytest.raises(TuningError, match="none of the 2 trials .* the first reason: .*finite"):
            raydr.tune(config, space | {"trials": {"max_failures": 0}}, name="mine")
        shown = capsys.readouterr().err
        assert "trial 0 (the default): learning_rate 1e+25" in shown
        assert "resuming" not in shown


def test_rounds_of_refreshes_are_compared(ray_local, beir_folder, tiny_checkpoint, tmp_path):
    config = make_config(
        beir_folder,
        tiny_checkpoint,
        tmp_path / "work",
        train={"num_epochs": 2},
        evaluate={"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        refresh={"num_rounds": 2, "measure": "RR@10"},
    )
    tuning = raydr.tune(config, GRID | {"objective": "refresh"}, name="mine")
    trials = tuning.trials
    assert [tuple(trial.values.values()) for trial in trials] == [(3e-3,), (1e-7,)]
    assert [(trial.status, len(trial.rows)) for trial in trials] == [("finished", 2), ("stopped", 1)]
    assert "dev recall@5" in trials[0].rows[0].metrics
    assert not list((tmp_path / "work/store").glob("index/*/manifest.json"))
    Artifact.open(str(tmp_path / "work/models/mine-best"), "model").verify()
    assert "for raydr refresh" in Path(tuning.study.local("best.yaml")).read_text()
