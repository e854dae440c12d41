"""What trials read is made once for each distinct setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training.harness import model_config

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.steps import Step
from raydr.stages.train import save_untrained
from raydr.store.folder import Folder
from raydr.tuning.inputs import Upstream
from raydr.tuning.trial_config import with_values

pytestmark = pytest.mark.ray


def make_config(checkpoint: str, workdir: Path, **changes: Any) -> RunConfig:
    train = {"num_epochs": 1, "batch_size": 8, "num_hard_negatives": 2, "dtype": "float32"}
    return RunConfig.parse(
        {
            "workdir": str(workdir),
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "model": model_config(checkpoint).model_dump(),
            "train": train,
            "negatives": {"miner": "source", "depth": 4},
            "judge": {"sieve": {"batch_size": 8}},
            "encode": {"dtype": "float32"},
        }
        | changes
    )


def made(root: Path) -> set[str]:
    """Kinds of what was made, with their keys."""
    return {path.parent.name for path in root.glob("*/manifest.json")}


def test_equal_settings_are_made_once_and_a_keep_rule_shares_the_sieve(ray_local, tiny_data, tiny_checkpoint, tmp_path):
    corpus, dataset = Folder(tiny_data[0]), Folder(tiny_data[1])
    config = make_config(tiny_checkpoint, tmp_path)
    model = save_untrained(config, Folder(str(tmp_path / "untrained"))).folder
    upstream = Upstream(config, Folder(str(tmp_path / "up")), dataset, corpus, None, model, judged=True)

    plain = upstream.make(config)
    assert plain.dataset == dataset
    assert plain.negatives is not None
    # What the training alone depends on makes no difference.
    faster = with_values(config, {"train.optimizer.learning_rate": 1e-3, "train.num_hard_negatives": 1})
    assert upstream.make(faster) == plain
    window = upstream.make(with_values(config, {"negatives.first_rank": 2}))
    assert window.negatives != plain.negatives
    assert len(made(tmp_path / "up")) == 2

    sieved = with_values(config, {"judge.judges": [{"name": "sieve", "rule": "mean"}]})
    judged = upstream.make(sieved)
    assert judged.negatives not in (plain.negatives, window.negatives)
    softer = with_values(config, {"judge.judges": [{"name": "sieve", "rule": "mean_std", "num_std": -1.0}]})
    assert upstream.make(softer).negatives != judged.negatives
    kinds = sorted(name.rpartition("-")[0] for name in made(tmp_path / "up"))
    assert kinds == ["judged", "judged", "mined", "mined", "sieve", "verdicts-sieve", "verdicts-sieve"]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "up").rglob("manifest.json")}
    assert upstream.make(sieved) == judged
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "up").rglob("manifest.json")} == before


def test_without_hard_negatives_nothing_is_made_and_nothing_can_be_sieved(
    ray_local, tiny_data, tiny_checkpoint, tmp_path
):
    corpus, dataset = Folder(tiny_data[0]), Folder(tiny_data[1])
    config = with_values(make_config(tiny_checkpoint, tmp_path), {"train.num_hard_negatives": 0})
    upstream = Upstream(config, Folder(str(tmp_path / "up")), dataset, corpus, None, None, judged=True)
    assert upstream.make(config).negatives is None
    assert not (tmp_path / "up").exists()
    with pytest.raises(ConfigError, match="judge sieve judges hard negatives, and the training has none"):
        upstream.make(with_values(config, {"judge.judges": ["sieve"]}))
    # A classifier of pairs that learns from random passages needs no candidates.
    reading = {"judge.judges": ["pair_classifier"], "judge.classifier.num_hard_negatives": 0}
    steps: dict[str, Step] = {}
    pairs, judged = upstream.plan(with_values(config, reading), steps)
    assert judged is None
    assert pairs is not None
    assert [step.label for step in steps.values()] == ["classifier", "verdicts-pair_classifier", "pairs"]
