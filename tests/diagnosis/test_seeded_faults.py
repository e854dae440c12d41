"""Whole trainings of tiny models with one fault each, diagnosed by the verb: is it the one that is named first?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WORDS
from small_runs import small_run

import raydr
from raydr.artefacts.diagnosis import load_result
from raydr.config.run import RunConfig

pytestmark = pytest.mark.usefixtures("here")

SIZES = {"train": 240, "dev": 80, "test": 60}
NUM_FILLERS = 60
#: Words of passages; each has another one that only queries say, which is what training can learn.
SPOKEN = WORDS[:40]
SYNONYM = dict(zip(SPOKEN, WORDS[40:80], strict=True))


class World:
    """A BEIR data set of passages of 14 words, and of queries that say 9 of them, 2 by synonyms."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.passages: dict[str, str] = {}
        self.queries: dict[str, str] = {}
        self.qrels: dict[str, list[tuple[str, str]]] = {}
        for split, num in SIZES.items():
            self.qrels[split] = [(f"{split}{at}", f"p-{split}{at}") for at in range(num)]
            for query_id, passage_id in self.qrels[split]:
                words = self.rng.choice(SPOKEN, 14, replace=False).tolist()
                self.passages[passage_id] = " ".join(words)
                self.queries[query_id] = self.query_about(words)
        for at in range(NUM_FILLERS):
            self.passages[f"filler{at}"] = " ".join(self.rng.choice(SPOKEN, 14, replace=False))

    def query_about(self, words: list[str]) -> str:
        sentence = self.rng.choice(words, 9, replace=False).tolist()
        return " ".join(sentence[:7] + [SYNONYM[word] for word in sentence[7:]])

    def write(self, folder: Path) -> Path:
        (folder / "qrels").mkdir(parents=True)
        rows = [{"_id": key, "title": "", "text": text} for key, text in self.passages.items()]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = [{"_id": key, "text": text} for key, text in self.queries.items()]
        (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for split, pairs in self.qrels.items():
            lines = [f"{query_id}\t{passage_id}\t1" for query_id, passage_id in pairs]
            (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
        return folder


def mismatched(world: World) -> None:
    """Half of the training queries have the passage of another one."""
    pairs = world.qrels["train"]
    half = len(pairs) // 2
    turned = [passage_id for _, passage_id in pairs[1:half]] + [pairs[0][1]]
    world.qrels["train"][:half] = [(pairs[at][0], turned[at]) for at in range(half)]


def second_positives(world: World) -> None:
    """Each passage of the training split has a sibling that says as much to the query and nobody has judged."""
    spoken = {synonym: word for word, synonym in SYNONYM.items()}
    for query_id, passage_id in world.qrels["train"]:
        asked = [spoken.get(word, word) for word in world.queries[query_id].split()]
        others = world.rng.choice([word for word in SPOKEN if word not in asked], 5, replace=False).tolist()
        world.passages[f"sibling-{passage_id}"] = " ".join(asked + others)


def copied_passages(world: World) -> None:
    for passage_id, text in list(world.passages.items()):
        if world.rng.uniform() < 0.5:
            world.passages[f"copy-{passage_id}"] = f"{text} {SPOKEN[0]}"


def leaked(world: World) -> None:
    for query_id, passage_id in world.qrels["test"]:
        world.queries[f"again-{query_id}"] = world.queries[query_id]
        world.qrels["train"].append((f"again-{query_id}", passage_id))


def dangling(world: World) -> None:
    pairs = world.qrels["test"]
    world.qrels["test"] = [
        (query_id, f"gone-{at}" if at % 2 else passage_id) for at, (query_id, passage_id) in enumerate(pairs)
    ]


def healthy(world: World) -> None:
    pass


Change = Callable[[World], None]
#: What is done to the data, to the settings, and the check that must be named first.
FAULTS: dict[str, tuple[Change, dict[str, Any], str]] = {
    "half of the pairs mismatched": (mismatched, {}, "mismatched_pairs"),
    "unjudged positives as hard negatives": (
        second_positives,
        {"negatives": {"depth": 2}, "train": {"num_hard_negatives": 1, "optimizer": {"learning_rate": 5e-4}}},
        "false_negatives",
    ),
    "copies of passages": (copied_passages, {}, "duplicates"),
    "test queries in train": (leaked, {}, "leakage"),
    "judgments of another corpus": (dangling, {"data": {"max_bad_rows": 100}}, "unanswered_queries"),
    "learning rate 100 times too hot": (healthy, {"train": {"optimizer": {"learning_rate": 0.5}}}, "learning_rate"),
    "learning rate far too cold": (
        healthy,
        {"train": {"optimizer": {"learning_rate": 5e-7}}},
        "learning_rate",
    ),
    "scale 0.2": (healthy, {"model": {"scale": 0.2}}, "temperature"),
    "four tokens": (healthy, {"model": {"query": {"max_length": 4}, "passage": {"max_length": 4}}}, "truncation"),
    "two steps": (healthy, {"train": {"num_epochs": 1, "batch_size": 120}}, "too_few_steps"),
    "vectors of two numbers": (
        healthy,
        {"model": {"projection": 2}, "train": {"num_epochs": 8}},
        "collapsed_vectors",
    ),
}
HEALTHY: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one more epoch": {"train": {"num_epochs": 7}},
    "hard negatives of BM25": {"negatives": {"depth": 10, "first_rank": 4}, "train": {"num_hard_negatives": 1}},
    "RCL": {"train": {"loss": "rcl"}},
    "a higher scale": {"model": {"scale": 40}},
}


@pytest.fixture
def diagnosed(tiny_checkpoint: str, tmp_path: Path) -> Callable[..., list[str]]:
    """The faults of a training, the likeliest first."""

    def run(change: Change, sections: dict[str, Any], seed: int = 0, quick: bool = True) -> list[str]:
        world = World(seed)
        change(world)
        train = {"num_epochs": 5, "batch_size": 16, "num_hard_negatives": 0, "optimizer": {"learning_rate": 5e-3}}
        settings = {"seed": seed, "negatives": None, "ray": {"in_process_rows": 10_000}} | sections
        settings["train"] = train | sections.get("train", {})
        config = RunConfig.parse(small_run(world.write(tmp_path / "data"), tiny_checkpoint, tmp_path / "w", **settings))
        [artifact] = raydr.diagnose(config, quick=quick)
        result = load_result(artifact)
        assert result.num_queries == SIZES["dev"]
        return [f"{fault.check}: {fault.observation}" for fault in result.faults]

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_named_first(diagnosed: Callable[..., list[str]], fault: str) -> None:
    change, sections, check = FAULTS[fault]
    faults = diagnosed(change, sections)
    assert [line.partition(":")[0] for line in faults[:1]] == [check], faults


@pytest.mark.parametrize("settings", HEALTHY)
def test_a_healthy_training_is_not_accused(diagnosed: Callable[..., list[str]], settings: str) -> None:
    assert diagnosed(healthy, HEALTHY[settings], seed=len(settings)) == []


@pytest.mark.parametrize(("checkpoint", "is_read"), [("offline:minilm", True), ("", False)])
def test_a_retriever_measures_pairs_in_a_quick_diagnosis_where_dev_is_held_out_of_them(
    checkpoint: str,
    is_read: bool,
    beir_folder: Path,
    tiny_checkpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half of the pairs of a prepared file were wrong, and the likeliest cause was too few steps."""
    config = small_run(beir_folder, checkpoint or tiny_checkpoint, tmp_path, negatives=None)
    for hold_out, listed in ({"dev": 0.1}, is_read), ({}, False):
        config["data"]["hold_out"] = hold_out
        raydr.diagnose(RunConfig.parse(config), quick=True, dry_run=True)
        assert ("margins-train: new" in capsys.readouterr().err) == listed
