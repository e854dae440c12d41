"""Arguments and settings of the calls of the Python API."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import raydr
from api.made_pairs import SMALL, make_pairs
from raydr.api.calls import call_config
from raydr.errors import ConfigError


@pytest.fixture(scope="module")
def arguments(tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"model": tiny_checkpoint, "workdir": tmp_path_factory.mktemp("api"), "settings": SMALL}


@pytest.mark.parametrize(
    ("argument", "settings", "message"),
    [
        ({"num_epochs": 2}, {"train": {"num_epochs": 1}}, "train.num_epochs is 1 in settings, and .* makes it 2"),
        ({"learning_rate": 0.1}, {"train": {"optimizer": {"learning_rate": 1}}}, "train.optimizer.learning_rate is 1 "),
        ({"loss": "nce"}, {"train": {"loss": "rcl"}}, "train.loss is 'rcl' in settings"),
        ({"seed": 3}, {"seed": 4}, "seed is 4 in settings, and an argument of the call makes it 3"),
        ({"model": "a"}, {"model": {"checkpoint": "b"}}, "model.checkpoint is 'b' in settings"),
        ({"workdir": "a"}, {"workdir": "b"}, "workdir is 'b' in settings"),
    ],
)
def test_settings_do_not_override_an_argument_unseen(
    argument: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A loop over learning rates gave the same model for each."""
    with pytest.raises(ConfigError, match=message):
        raydr.train(make_pairs(), **{"workdir": None} | argument, settings=settings)
    with pytest.raises(ConfigError, match="cross_fit.num_epochs is 1 in settings, and .* makes it 0"):
        raydr.find_noise(make_pairs(), cross_fit=False, workdir=tmp_path, settings=SMALL)


def config_of(pairs: Any, workdir: str | Path, settings: dict[str, Any]) -> raydr.RunConfig:
    sections = {"train": {"loss": "npc"}}
    return call_config(pairs, model=None, seed=0, workdir=workdir, settings=settings, sections=sections, hold_out=True)


def test_settings_override_what_a_caller_has_not_chosen(tmp_path: Path) -> None:
    config = config_of(make_pairs(), tmp_path, {"seed": 4, "train": {"loss": "rcl"}})
    assert (config.seed, config.train.loss.name) == (4, "rcl")


def test_queries_of_a_split_that_is_turned_off_are_trained_on(tmp_path: Path) -> None:
    config = config_of(make_pairs(), tmp_path, {"data": {"dev_split": "", "test_splits": []}})
    assert config.data.hold_out == {}
    assert config_of(make_pairs(), tmp_path, {"data": {"dev_split": ""}}).data.hold_out == {"test": 0.1}
    # An empty mapping was merged with the shares of missing splits, and changed nothing.
    assert config_of(make_pairs(), tmp_path, {"data": {"hold_out": {}}}).data.hold_out == {}
    assert config_of(make_pairs(), tmp_path, {"data": {"hold_out": {"test": 0.2}}}).data.hold_out["test"] == 0.2


def test_a_workdir_is_that_of_the_user_or_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pairs went into a folder named ``~``, and warnings named a path that does not exist."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    config_of(pd.DataFrame(make_pairs()), "~/w", {})
    assert (tmp_path / "home" / "w" / "pairs").is_dir()
    config_of(pd.DataFrame(make_pairs()), "w", {})
    assert {path.name for path in tmp_path.iterdir()} == {"home", "w"}
    assert capfd.readouterr().err.count("warning: pairs: no column has a name that raydr knows") == 2


def test_the_exit_of_a_forked_process_leaves_the_temporary_folder() -> None:
    """A worker of a server removed the artefacts of all others."""
    program = (
        "import os, sys; from raydr.api.calls import _temporary_folder\n"
        "folder = _temporary_folder(); child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0); print(os.path.isdir(folder), folder)"
    )
    is_there, folder = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert is_there == "True"
    assert not Path(folder).exists()


def test_negatives_of_triplets_are_trained_on_and_judged(arguments: dict[str, Any]) -> None:
    """They were passages of the corpus alone, and as candidates their positives were judged."""
    pairs = make_pairs(20)
    mined = raydr.mine_hard_negatives(pairs, num_negatives=np.int64(2), judge=None, **arguments)  # type: ignore[arg-type]
    train = raydr.train(mined, loss="nce", num_epochs=1, **arguments).config.train
    assert (train.num_hard_negatives, train.sampler.name) == (1, "uniform")
    judged = raydr.find_false_negatives(pairs, mined, **arguments).table
    expected = set(zip(mined["query"], mined["negative"], strict=True))
    assert set(zip(judged["query"], judged["passage"], strict=True)) == expected
    with pytest.raises(ConfigError, match="candidates is 'model'; allowed: bm25, source, or rows"):
        raydr.find_false_negatives(pairs, "model", **arguments)


def test_few_pairs_have_no_test_split_to_evaluate(arguments: dict[str, Any]) -> None:
    model = raydr.train(make_pairs(5), loss="nce", num_epochs=1, **arguments)
    with pytest.raises(ConfigError, match="no test split was held out: train on more pairs, or evaluate on pairs"):
        model.evaluate()


def test_all_rows_or_some_leave_an_arrow_table(arguments: dict[str, Any]) -> None:
    pairs = make_pairs(20)
    noise = raydr.find_noise(pairs, **arguments)
    score = pa.array([float("nan")] * 20, pa.float32())
    table = pa.table([*map(list, zip(*pairs, strict=True)), score], names=["query", "positive", "score"])
    every = replace(noise, table=noise.table.assign(flagged=True))
    some = replace(noise, table=noise.table.assign(flagged=noise.table["query"] == pairs[0][0]))
    for rows in (table, table.to_batches()[0]):
        assert every.drop_from(rows).num_rows == 0
        kept = some.drop_from(rows)
        assert isinstance(kept, type(rows))
        assert kept.schema == table.schema
        assert kept["query"].to_pylist() == [query for query, _ in pairs[1:]]
