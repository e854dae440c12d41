"""Searches that cannot be run are refused before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.errors import ConfigError
from raydr.tuning.trial import trained

SPACE = {"space": {"model.scale": {"uniform": [5, 50]}}}


def test_trials_that_do_not_fit(beir_folder, tiny_checkpoint, tmp_path):
    raw: dict[str, Any] = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_workers": 4})
    with pytest.raises(ConfigError, match=r"a trial takes 4 CPU \(section train\), Ray has 2 CPU: 0 at a time fit"):
        raydr.tune(raydr.RunConfig.parse(raw), SPACE, name="mine")
    assert not (tmp_path / "work" / "corpus").exists()


def test_a_dry_run_says_what_would_be_searched_and_makes_nothing(beir_folder, tiny_checkpoint, tmp_path, capsys):
    raw: dict[str, Any] = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_epochs": 4})
    assert raydr.tune(raydr.RunConfig.parse(raw), SPACE, name="mine", dry_run=True) is None
    log = capsys.readouterr().err
    assert "model.scale" in log
    assert "mine-bm25-train: new" in log
    assert "tune-mine: new" in log
    assert not (tmp_path / "work" / "store").exists()


def test_a_search_reads_data_that_changed_since_the_last_search(beir_folder, tiny_checkpoint, tmp_path):
    data = Path(shutil.copytree(beir_folder, tmp_path / "data"))
    config = raydr.RunConfig.parse(small_run(data, tiny_checkpoint, tmp_path / "work"))

    def model_of_search() -> str:
        raydr.tune(config, SPACE, dry_run=True)
        return trained(config).key

    before = model_of_search()
    with open(data / "corpus.jsonl", "a") as corpus:
        corpus.write('{"_id": "new", "title": "", "text": "a new passage"}\n')
    assert model_of_search() != before


def test_trials_find_in_folders_of_their_own_what_is_named_from_here(
    beir_folder, tiny_checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(beir_folder.parent)
    searched = []
    monkeypatch.setattr("raydr.tuning.run.run_tune", lambda session, plan: searched.extend([session, plan.space]))
    raw = small_run(Path(beir_folder.name), tiny_checkpoint, Path("work"))
    raydr.tune(raydr.RunConfig.parse(raw), SPACE, name="mine")
    for trial in searched:
        assert trial.config.data.reader.path == str(beir_folder)
        assert trial.config.workdir == f"{beir_folder.parent}/work"


def test_a_missing_split_is_refused_before_any_trial_by_the_names_of_those_there(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table is read for it."""
    monkeypatch.setattr("raydr.data.dataset.read_split", lambda *_: pytest.fail("a table was read"))
    splits = {"dev_split": "dev", "test_splits": ["nix"]}
    raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_epochs": 4}, data=splits)
    with pytest.raises(ConfigError, match=r"tune-mine: the data set at .* has no split 'nix'; it has dev, test, train"):
        raydr.tune(raydr.RunConfig.parse(raw), SPACE | {"confirm": {"num_seeds": 1}}, name="mine")


@pytest.mark.parametrize(
    ("train", "key", "values"),
    [
        # How it is computed, and not what.
        ({}, "train.cpus_per_worker", [1, 2]),
        # Judges of hard negatives, where a training has none.
        ({"num_hard_negatives": 0}, "judge.judges", [[], [{"name": "sieve"}]]),
    ],
)
def test_a_setting_that_changes_nothing_is_not_searched(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, train: dict[str, Any], key: str, values: list[Any]
) -> None:
    raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_epochs": 2} | train)
    with pytest.raises(ConfigError, match=f"{key} cannot be searched: with this config none of its values changes"):
        raydr.tune(raydr.RunConfig.parse(raw), {"space": {key: {"choice": values}}}, name="mine")
    assert not (tmp_path / "work" / "store").exists()
