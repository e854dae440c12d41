"""Training and measuring from Python."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from transformers.utils import logging as transformers_logging

import raydr
from api.made_pairs import SMALL, make_pairs
from raydr.artefacts.places import Places
from raydr.console import warn
from raydr.errors import ArtifactError, ConfigError
from raydr.indexing.faiss_backend import faiss_threads
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.training.sections import PairDetectionConfig


@pytest.fixture(scope="module")
def arguments(tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = SMALL | {"evaluate": {"measures": ["R@5", "RR@10"]}}
    return {"model": tiny_checkpoint, "workdir": tmp_path_factory.mktemp("api"), "settings": settings}


@pytest.fixture(scope="module")
def model(arguments: dict[str, Any]) -> raydr.Model:
    return raydr.train(make_pairs(), num_epochs=2, **arguments)


def test_the_default_is_what_is_recommended(model: raydr.Model) -> None:
    train = model.config.train
    assert (train.loss.name, train.num_epochs) == ("npc", 2)
    assert train.detection == PairDetectionConfig.model_validate({"detector": "local_fdr", "margins": "cross_fitted"})
    assert len(model.artifact.info["detections"]) == 1


def test_sentence_transformers_opens_the_model_with_the_same_vectors(model: raydr.Model) -> None:
    scorer = DualEncoderScorer(model.folder, "float32", "cpu", 1024)
    texts = [passage for _, passage in make_pairs()[:3]]
    ours = scorer.encode("passage", ["", "", ""], texts)
    theirs = model.sentence_transformer().encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_config_is_the_same_run_for_the_command_line(model: raydr.Model, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(model.config.to_yaml())
    [artifact] = raydr.verbs.training.train(raydr.RunConfig.load(tmp_path / "mine.yaml"))
    assert artifact.fingerprint == model.artifact.fingerprint


def test_a_trained_model_is_a_checkpoint_for_other_calls(model: raydr.Model) -> None:
    pairs, settings = make_pairs(20), SMALL
    by_model = raydr.find_noise(pairs, model=model, settings=settings).table
    pd.testing.assert_frame_equal(by_model, raydr.find_noise(pairs, model=model.folder, settings=settings).table)
    with pytest.raises(ConfigError, match="model is a SentenceTransformer; expected a Hugging Face name, a folder"):
        raydr.find_noise(pairs, model=model.sentence_transformer())  # type: ignore[arg-type]


def test_what_is_held_out_measures_the_model(model: raydr.Model) -> None:
    table = model.evaluate()
    assert table.groupby("system", sort=False).size().to_dict() == {"bm25": 2, "untrained": 2, "trained": 2}
    assert (table["num_queries"] > 0).all()
    assert table["mean"].between(0, 1).all()


def test_other_pairs_measure_the_saved_model(model: raydr.Model, tmp_path: Path) -> None:
    place = model.save(tmp_path / "saved")
    assert (Path(place) / "README.md").exists()
    pairs = make_pairs(24)
    table = raydr.evaluate(pairs, model=place, workdir=tmp_path / "w")
    assert set(table["system"]) == {"bm25", "untrained"}
    assert (table["num_queries"] == 24).all()
    again = model.evaluate(pairs, workdir=tmp_path / "w2")
    assert again["mean"].tolist() == table["mean"].tolist()
    assert set(again["system"]) == {"bm25", "trained"}


def test_splits_of_a_mapping_are_taken_as_they_are(arguments: dict[str, Any], tmp_path: Path) -> None:
    pairs = make_pairs()
    splits = {"train": pairs[:40], "validation": pairs[40:50], "test": pairs[50:]}
    made = raydr.train(splits, loss="nce", num_epochs=1, **arguments | {"workdir": tmp_path})
    assert made.config.data.hold_out == {}
    assert made.artifact.info["num_examples"] == 40
    assert (made.evaluate()["num_queries"] == 10).all()


def test_a_config_in_place_of_pairs_is_the_verb(tmp_path: Path) -> None:
    raw = {"data": {"reader": {"name": "beir", "path": "nowhere"}}, "workdir": str(tmp_path)}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    for config in (raydr.RunConfig.parse(raw), raw, tmp_path / "run.yaml"):
        with pytest.raises(raydr.errors.RaydrError, match="nowhere"):
            raydr.train(config, name="other", dry_run=True)
    with pytest.raises(ConfigError, match="raydr.train with a config does not take loss, seed: change the config"):
        raydr.train(raw, loss="nce", seed=1)
    with pytest.raises(ConfigError, match="raydr.train with pairs does not take name"):
        raydr.train(make_pairs(), name="other")
    assert not Places.of(str(tmp_path)).names()


def test_a_config_gives_the_same_model_as_pairs(model: raydr.Model, tmp_path: Path) -> None:
    """Under its name; a dry run gives none, and a ranker is no retriever."""
    assert raydr.train(model.config, dry_run=True) is None
    again = raydr.train(model.config, name="mine")
    assert (again.name, again.artifact.fingerprint) == ("mine", model.artifact.fingerprint)
    assert set(again.evaluate()["system"]) == {"bm25", "untrained", "mine"}
    assert Path(again.save(tmp_path / "saved"), "modules.json").exists()
    ranker = replace(again, name="ranker", artifact=Places.of(model.config.workdir).open("corpus", "corpus"))
    with pytest.raises(ConfigError, match="ranker is a ranker, no retriever"):
        ranker.sentence_transformer()


def test_a_call_prints_warnings_alone_unless_it_is_verbose(
    model: raydr.Model, arguments: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(*arguments: Any, **options: Any) -> None:
        warn("beware")

    model.evaluate()
    capfd.readouterr()
    monkeypatch.setattr("raydr.pipeline.session.check_splits", warned)
    model.evaluate()
    assert capfd.readouterr() == ("", "warning: beware\n")
    model.evaluate(verbose=True)
    assert "nothing to make" in capfd.readouterr().err


def test_what_lowers_the_means_is_a_warning_in_python_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"query": query, "passage": text, "label": int(at > 2)} for at, (query, text) in enumerate(make_pairs(20))]
    settings = SMALL | {"evaluate": {"measures": ["R@5"]}}
    raydr.evaluate(rows, workdir=tmp_path, settings=settings)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3 of 20 judged queries have no positive, and score 0 in each mean" in " ".join(err.split())


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_test_split_is_measured_where_pairs_have_any(
    in_memory: bool, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """A figure on the training split would flatter a model that was trained on it."""
    frame = pd.DataFrame(make_pairs(), columns=["query", "passage"])
    splits = frame.assign(split=["train"] * 35 + ["dev"] * 5 + ["test"] * 20)
    splits.to_csv(tmp_path / "pairs.csv", index=False)
    arguments = arguments | {"workdir": tmp_path}
    table = raydr.evaluate(splits if in_memory else tmp_path / "pairs.csv", **arguments)
    assert {(row.split, row.num_queries) for row in table.itertuples()} == {("test", 20)}
    alone = raydr.evaluate(splits[splits["split"] == "test"], **arguments)
    assert {(row.split, row.num_queries) for row in alone.itertuples()} == {("test", 20)}


def test_calls_leave_the_process_as_it_was(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's random numbers, threads and tokenizers in forked processes go on as without the calls."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    with faiss_threads(2):
        raydr.evaluate(make_pairs(20), **arguments | {"workdir": tmp_path / "imports"})
        before = process_state()
        assert before["threads"] == 2
        raydr.train(make_pairs(), num_epochs=1, **arguments | {"workdir": tmp_path}).evaluate()
        assert process_state() == before


def process_state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
        "threads": torch.get_num_threads(),
        "bars": transformers_logging.is_progress_bar_enabled(),
        "tokenizers": os.environ.get("TOKENIZERS_PARALLELISM"),
    }


def test_a_model_is_measured_by_its_own_files(
    model: raydr.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the current folder nor a config that would train another model changes what is measured."""
    monkeypatch.chdir(tmp_path)
    dataset = Places.of(model.config.workdir).open("dataset", "dataset").folder
    config = model.config.model_copy(update={"seed": 5, "workdir": "w"})
    other = raydr.train(config, dataset=str(dataset), name="mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = replace(other, name="trained")
    assert set(again.evaluate()["system"]) == {"bm25", "untrained", "trained"}
    pointer = Places.of(str(tmp_path / "w")).pointer("models/trained")
    assert pointer is not None
    assert pointer.key == other.artifact.fingerprint
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_model_is_not_saved_over_its_own_files(model: raydr.Model) -> None:
    with pytest.raises(ArtifactError, match="holds a model of raydr: choose another output folder"):
        model.save(model.folder)
    assert Path(model.folder, "model.safetensors").exists()
