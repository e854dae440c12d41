"""A language model as the last judge of a run: its key, its place among the judges, what trainings obey."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from chat_stub import MODEL, ChatStub, serving
from made_language_model import make_language_model
from patience import PATIENCE_S
from small_runs import recipe_of, small_run

# Known by its name where it was imported: flags half of the pairs, and finds all sure.
from training.harness import AboveMedian

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import read_parquet
from raydr.errors import ConfigError, EndpointError, ModelError
from raydr.models.config import CrossEncoderConfig
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer, log_odds
from raydr.models.prompt import PromptConfig
from raydr.pipeline.rounds import lay_out
from raydr.store.artifact import Artifact

AGAIN: dict[str, Any] = {"name": "language_model", "model": MODEL, "unsure": [0, 1]}


@pytest.fixture
def stub() -> Iterator[ChatStub]:
    with serving(ChatStub()) as server:
        yield server


@pytest.fixture
def settings(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, stub: ChatStub) -> dict[str, Any]:
    npc = {"name": "npc", "margins": "model", "num_random": 20, "detector": AboveMedian().name}
    sections: dict[str, Any] = {
        "inject_noise": {"share": 0.25},
        "train": {"num_epochs": 1},
        "negatives": {"depth": 4},
        "judge": {
            "model": "untrained",
            "scores": "miner",
            "judges": [
                npc,
                {**AGAIN, "endpoint": stub.address},
                "margin",
                {**AGAIN, "name": "language_model_negatives", "after": "margin", "endpoint": stub.address},
            ],
        },
    }
    return small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **sections)


def changed(settings: dict[str, Any], at: int, **changes: Any) -> RunConfig:
    judges = list(settings["judge"]["judges"])
    judges[at] = judges[at] | changes
    return RunConfig.parse(settings | {"judge": settings["judge"] | {"judges": judges}})


def test_a_training_obeys_it_in_place_of_the_judge_before(settings: dict[str, Any], stub: ChatStub) -> None:
    config = RunConfig.parse(settings)
    model = raydr.train(config).artifact
    places = Places.of(config.workdir)
    assert len(places.names("verdicts")) == 4
    # npc flags half of the pairs; the model knows which fourth is wrong.
    pairs = Dataset(Artifact.open(places.folder("dataset", model.manifest.identity.inputs["dataset"]), "dataset"))
    noisy = Dataset(places.open("dataset-noisy", "dataset"))
    mismatched = {row["query_id"] for row in noisy.qrels("train").to_pylist() if row["noise"]}
    left = {row["query_id"] for row in pairs.qrels("train").to_pylist()}
    assert places.open("verdicts/npc-train", "verdicts").info["drop"] == 20
    assert left == {f"q{at:02d}" for at in range(40)} - mismatched
    assert model.info["num_examples"] == 30
    # Of the candidates it knows which are the passages that queries have lost; margin drops four times as many.
    again = places.open("verdicts/language_model_negatives-bm25-train", "verdicts").info
    assert (again["detection"]["precision"], again["detection"]["recall"]) == (1.0, 1.0)
    judged = places.open("negatives/judged-margin+language_model_negatives-bm25-train", "negatives")
    assert judged.info["drop"] == again["drop"] < places.open("verdicts/margin-bm25-train", "verdicts").info["drop"]
    story = raydr.why(config, min(mismatched))
    verdicts = {
        verdict["judge"]: (verdict["action"], verdict["score_name"], verdict["score"])
        for verdict in story.positives[0].verdicts
    }
    assert verdicts["language_model"] == ("drop", "1 - probability of relevance", pytest.approx(1.0))
    [audit] = raydr.audit(config, model="untrained", judges="npc,language_model")
    page = Path(audit.local("report.html")).read_text()
    assert "pairs that a language model takes for irrelevant, of those that it read" in page
    # What is there asks nobody.
    num = len(stub.bodies)
    raydr.train(config)
    assert len(stub.bodies) == num


def test_a_model_that_answers_otherwise_is_refused(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_language_model(tmp_path / "lm")
    # Drawn weights: each of some 300 tokens is about as likely.
    monkeypatch.setattr("raydr.artefacts.ranker_worker._LEAST_SHARE", 0.2)
    config = changed(settings, 1, model="", checkpoint=folder)
    with pytest.raises(ModelError, match=r"asked 'capital of France' .* with a probability of [1-9]\.\d% only"):
        raydr.judge(config, judge=["language_model"])


def key_of(config: RunConfig) -> str:
    """The key of the verdicts that a training obeys."""
    recipe = recipe_of(config)
    recipe.trained()
    return recipe.names["verdicts/language_model-train"].key


@pytest.mark.usefixtures("here")
def test_a_checkpoint_reads_in_place_of_a_server(settings: dict[str, Any], stub: ChatStub, tmp_path: Path) -> None:
    folder = make_language_model(tmp_path / "lm")
    local = {"model": "", "checkpoint": folder, "max_length": 500}
    config = changed(settings, 1, **local)
    raydr.judge(config, judge=["language_model"])
    places = Places.of(config.workdir)
    verdicts = places.open("verdicts/language_model-train", "verdicts")
    assert (verdicts.info["verdicts"], verdicts.info["before"]) == (40, 40)
    [part] = [read_parquet(verdicts.local(name)) for name in verdicts.parts("verdicts/train")]
    data, corpus = Dataset(places.open("dataset-noisy", "dataset")), Corpus(places.open("corpus", "corpus"))
    queries = query_texts(data, "train", part["query_id"].to_pylist())
    passages = corpus.texts(corpus.rows_of(part["passage_id"].to_pylist()))
    asked = {"checkpoint": folder, "max_length": 500, "title_separator": "\n", "prompt": PromptConfig()}
    model, tokenizer = (
        CrossEncoder.from_config(encoder_config := CrossEncoderConfig(**asked)).eval(),
        PairTokenizer(encoder_config),
    )
    odds = log_odds(model, tokenizer(queries, passages.titles, passages.texts), 512, tokenizer.pad_id)
    wrong = 1 / (1 + np.exp(odds))
    np.testing.assert_allclose(part["score"].to_numpy(), wrong, atol=1e-4)
    assert part["action"].to_pylist() == ["drop" if p > 0.5 else "keep" for p in wrong]
    # Of candidates too.
    config = changed(settings, 3, **local)
    raydr.judge(config, judge=["language_model_negatives"], again=True)
    verdicts = places.open("verdicts/language_model_negatives-bm25-train", "verdicts")
    table = pa.concat_tables([read_parquet(verdicts.local(name)) for name in verdicts.parts("verdicts/train")])
    assert len(table) == verdicts.info["before"] > 100
    assert table["action"].to_pylist() == ["drop" if p > 0.5 else "keep" for p in table["score"].to_pylist()]
    assert not stub.bodies
    config = changed(settings, 1, **local)
    # The same weights elsewhere are the same judge.
    key = key_of(config)
    shutil.copytree(folder, tmp_path / "copy")
    elsewhere = changed(settings, 1, **local | {"checkpoint": str(tmp_path / "copy")})
    assert key_of(elsewhere) == key
    otherwise = changed(settings, 1, **local | {"prompt": {"task": "it fits"}})
    assert key_of(otherwise) != key


@pytest.mark.usefixtures("here")
def test_keys_hold_what_is_asked_and_not_who_is(settings: dict[str, Any]) -> None:
    raydr.inject_noise(RunConfig.parse(settings))

    def keys(config: RunConfig) -> tuple[str, str, str]:
        recipe = recipe_of(config)
        model = recipe.trained()
        rounds = lay_out(recipe.context)[0].rounds[0].model
        return recipe.names["verdicts/language_model-train"].key, model.key, rounds.key

    before = keys(RunConfig.parse(settings))
    same = {"endpoint": "https://elsewhere.org/v1", "key_variable": "KEY", "at_once": 2, "timeout_s": 1.0}
    assert keys(changed(settings, 1, **same, max_retries=0)) == before
    for name, value in {
        "model": "other",
        "max_requests": 7,
        "prompt": {"task": "it fits"},
        "request": {"seed": 1},
    }.items():
        assert not {*keys(changed(settings, 1, **{name: value}))} & {*before}, name
    # What it looks at again is what it is made from.
    assert not {*keys(changed(settings, 0, num_random=21))} & {*before}


def test_a_wrong_key_is_said_before_anything_is_made(settings: dict[str, Any], stub: ChatStub, tmp_path: Path) -> None:
    stub.key = "sk-1"
    with pytest.raises(EndpointError, match="HTTP 401, the key is missing or wrong"):
        raydr.train(RunConfig.parse(settings))
    assert not (tmp_path / "w" / "store").exists()
    with pytest.raises(ConfigError, match="judge language_model has no model"):
        raydr.judge(changed(settings, 1, model=""), dry_run=True)
    # A dry run asks nobody.
    raydr.train(RunConfig.parse(settings), dry_run=True)


@pytest.mark.e2e
def test_a_command_that_was_killed_pays_for_nothing_twice(
    settings: dict[str, Any], stub: ChatStub, tmp_path: Path
) -> None:
    only = settings["judge"] | {"judges": settings["judge"]["judges"][2:]}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings | {"judge": only}))
    reached, going_on = threading.Event(), threading.Event()

    def stop_at_fifty(number: int) -> None:
        if number >= 50:
            reached.set()
            going_on.wait(PATIENCE_S)

    stub.before = stop_at_fifty
    command = [sys.executable, "-m", "raydr", "judge", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert reached.wait(PATIENCE_S)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = len(stub.bodies)
    stub.before = lambda number: None
    going_on.set()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    judged = Places.of(settings["workdir"]).open("verdicts/language_model_negatives-bm25-train", "verdicts")
    assert judged.info["verdicts"] > 50
    assert judged.info["requests"] <= judged.info["verdicts"] - (before - 1) + 16
