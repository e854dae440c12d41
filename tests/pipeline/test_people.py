"""Trainings obey what people have decided, and are made again when that changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

# Known by its name where it was imported: flags half of the pairs.
from training.harness import AboveMedian

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts, read_split
from raydr.data.tables import read_parquet
from raydr.noise.decisions import Decision, Subject, Verdict, append_decision, digest_texts
from raydr.noise.judges.people import People
from raydr.pipeline.rounds import lay_out
from raydr.store.artifact import Artifact


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    npc = {"name": "npc", "margins": "model", "num_random": 20, "detector": AboveMedian().name}
    settings: dict[str, Any] = {
        "inject_noise": {"share": 0.25},
        "train": {
            "num_epochs": 1,
            "loss": {"name": "npc", "warmup_epochs": 0, "use_consistency": False},
            "pair_detection": {"detector": AboveMedian().name, "margins": "model", "num_random": 20},
        },
        "negatives": {"depth": 4},
        "judge": {"model": "untrained", "judges": [npc, "margin", "people"]},
    }
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))


def decide(
    config: RunConfig, subject: Subject, query_id: str, passage_id: str, verdict: Verdict, reviewer: str = "ada"
) -> None:
    places = Places.of(config.workdir)
    data, corpus = Dataset(places.open("dataset-noisy", "dataset")), Corpus(places.open("corpus", "corpus"))
    [query], shown = query_texts(data, "train", [query_id]), corpus.texts(corpus.rows_of([passage_id]))
    line = Decision(
        at="2026-01-01T00:00:00+00:00", reviewer=reviewer, subject=subject, split="train", query_id=query_id,
        passage_id=passage_id, texts=digest_texts(query, shown.titles[0], shown.texts[0]), verdict=verdict,
    )  # fmt: skip
    append_decision(Path(People().decisions(config.workdir)), line)


def actions(verdicts: Artifact) -> dict[tuple[str, str], str]:
    tables = (read_parquet(verdicts.local(part)) for part in verdicts.parts("verdicts/train"))
    rows = (row for table in tables for row in table.to_pylist())
    return {(row["query_id"], row["passage_id"]): row["action"] for row in rows}


def test_a_judge_whose_drops_people_warrant_is_made_again_after_new_decisions(config: RunConfig) -> None:
    calibrated = {"name": "calibrated", "after": "npc", "max_right_dropped": 0.5}
    judges = [*config.model_dump()["judge"]["judges"][:2], calibrated]
    changed = RunConfig.parse(config.model_dump(mode="json") | {"judge": {"model": "untrained", "judges": judges}})
    raydr.judge(changed)
    places = Places.of(config.workdir)
    before = places.open("verdicts/calibrated-train", "verdicts")
    pairs = [*actions(before)]
    assert (before.info["detector"]["num_decided"], before.info["drop"]) == (0, 0)
    for pair in pairs:
        decide(config, "pairs", *pair, "wrong")
    raydr.judge(changed, again=True)
    after = places.open("verdicts/calibrated-train", "verdicts")
    assert after.fingerprint != before.fingerprint
    assert after.info["detector"]["num_decided"] == after.info["drop"] == len(pairs)


def test_a_training_obeys_people_whatever_judges_and_detectors_say(config: RunConfig) -> None:
    raydr.judge(config)
    places = Places.of(config.workdir)
    of_pairs, of_negatives = (
        actions(places.open(f"verdicts/{name}", "verdicts")) for name in ("npc-train", "margin-bm25-train")
    )
    flagged, kept = ([pair for pair, action in of_pairs.items() if action == kind] for kind in ("drop", "keep"))
    right, clean = flagged[:5], next(pair for pair, action in of_negatives.items() if action == "keep")
    for pair in right:
        decide(config, "pairs", *pair, "right")
    decide(config, "pairs", *kept[1], "wrong")
    decide(config, "pairs", *kept[2], "unsure")
    decide(config, "negatives", *clean, "wrong")
    model = raydr.train(config, again=True).artifact
    inputs = model.manifest.identity.inputs
    pairs = Dataset(Artifact.open(places.folder("dataset", inputs["dataset"]), "dataset"))
    left = {(row["query_id"], row["passage_id"]) for row in pairs.qrels("train").to_pylist()}
    assert left == {*right, *kept} - {kept[1]}
    negatives = Artifact.open(places.folder("negatives", inputs["negatives"]), "negatives")
    table = read_split(negatives, "negatives", "train").to_pylist()
    [verdict] = [row for row in table if (row["query_id"], row["passage_id"]) == clean]
    assert (verdict["action"], verdict["weight"]) == ("drop", 0.0)
    assert model.info["num_examples"] == len(left)
    # The detection in training flags half of what is left, but for what people call right.
    trusted = {query_id for query_id, _ in right}
    detected = {
        row["query_id"]: row["clean"]
        for row in read_parquet(model.folder.path("detection/epoch-001.parquet")).to_pylist()
    }
    assert all(detected[query_id] for query_id in trusted)
    assert sum(detected.values()) < len(left)
    assert model.info["detections"][0]["share_flagged"] == pytest.approx(1 - sum(detected.values()) / len(detected))
    # What people say stands beside what judges say.
    story = raydr.why(config, kept[1][0])
    assert {verdict["judge"]: verdict["action"] for verdict in story.positives[0].verdicts} == {
        "npc": "keep",
        "people": "drop",
    }


@pytest.mark.invariant
@pytest.mark.usefixtures("here")
def test_keys_change_with_what_is_decided_and_with_nothing_else(config: RunConfig, tmp_path: Path) -> None:
    raydr.inject_noise(config)

    def keys(config: RunConfig = config) -> dict[str, str]:
        recipe = recipe_of(config)
        nodes = {
            "model": recipe.trained(),
            "ranker": recipe.ranker(),
            "round": lay_out(recipe.context)[0].rounds[0].model,
        }
        nodes |= {name: recipe.names[f"verdicts/{name}-train"] for name in ("npc", "people", "people_negatives-bm25")}
        return {name: node.key for name, node in nodes.items()}

    def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
        return {name for name, key in before.items() if key != after[name]}

    row = Dataset(Places.of(config.workdir).open("dataset-noisy", "dataset")).qrels("train").to_pylist()[0]
    pair = row["query_id"], row["passage_id"]
    before = keys()
    decide(config, "pairs", *pair, "wrong")
    after = keys()
    assert changed(before, after) == {"model", "ranker", "round", "people"}
    # Another who says the same, and one who is not sure, decide nothing new.
    decide(config, "pairs", *pair, "wrong", "bob")
    decide(config, "pairs", *pair, "unsure", "eve")
    assert keys() == after
    # Where they lie does not matter.
    file = tmp_path / "moved.jsonl"
    shutil.copy(People().decisions(config.workdir), file)
    judges = [*config.judge.judges[:-1], People(file=str(file))]
    moved = config.model_copy(update={"judge": config.judge.model_copy(update={"judges": judges})})
    assert keys(moved) == after
    decide(config, "negatives", *pair, "wrong")
    assert changed(after, keys()) == {"model", "ranker", "round", "people_negatives-bm25"}
    # A draw is no decision.
    decide(config, "pairs", *pair, "right", "bob")
    assert changed(before, keys()) == {"model", "ranker", "round", "people_negatives-bm25"}


@pytest.mark.usefixtures("here")
def test_without_candidates_people_speak_of_pairs_alone(config: RunConfig) -> None:
    plain = {
        "negatives": None,
        "train": config.train.model_copy(update={"num_hard_negatives": 0}),
        "refresh": config.refresh.model_copy(update={"num_hard_negatives": 0}),
    }
    judges = config.judge.model_copy(update={"judges": [People()]})
    recipe = recipe_of(config.model_copy(update={**plain, "judge": judges}))
    kinds = [node.label for node in recipe.trained().ancestors().values() if node.kind == "verdicts"]
    assert kinds == ["judge-people-train"]
    [first] = lay_out(recipe.context)[0].rounds[:1]
    assert [node.label for node in first.verdicts] == ["round-1/judge-people-train"]


def test_the_stored_config_finds_the_file_from_any_folder(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    judges = config.judge.model_copy(update={"judges": [People(file="mine.jsonl")]})
    [stored] = config.model_copy(update={"judge": judges}).from_anywhere().judge.judges
    assert isinstance(stored, People)
    assert stored.file == str(tmp_path / "mine.jsonl")
