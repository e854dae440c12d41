"""Cross-fitting over a run: who is trained on what, one set of margins for judge, audit and training, resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from made_stage import interrupt
from small_runs import recipe_of, small_run

import raydr
from raydr.artefacts import cross_fitting
from raydr.artefacts import margins as measure_folds
from raydr.artefacts.declaration import Node
from raydr.artefacts.folds import fold_of_queries, fold_of_texts
from raydr.artefacts.places import Places
from raydr.artefacts.scoring import Scoring
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import read_parquet
from raydr.errors import DataError
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.margins import read_margins
from raydr.store.artifact import Artifact

NUM_QUERIES = 40
NPC = "npc"
DETECTION: dict[str, Any] = {"detector": "local_fdr", "margins": "cross_fitted", "weights": "posterior"}
#: The tiny model learns little, and 40 pairs are few: with 10 random passages a fold the null is coarse.
CROSS_FIT: dict[str, Any] = {"num_random": 10, "num_epochs": 2, "num_draws": 3}


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(**sections: Any) -> RunConfig:
        settings: dict[str, Any] = {
            "inject_noise": {"share": 0.25},
            "negatives": None,
            "train": {"num_epochs": 1, "num_hard_negatives": 0},
            "judge": {"judges": [NPC], "model": "untrained"},
            "cross_fit": CROSS_FIT,
        }
        for name, changes in sections.items():
            settings[name] = settings.get(name, {}) | changes if isinstance(changes, dict) else changes
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))

    return parse


def margins_node(config: RunConfig) -> Node:
    recipe = recipe_of(config)
    return recipe.verdicts(config.judge.judge("npc"), config.data.train_split).inputs["margins"]


def opened(places: Places, node: Node) -> Artifact:
    return Artifact.open(places.folder(node.kind, node.key), node.kind)


def rows_of(artifact: Artifact, under: str) -> list[dict[str, Any]]:
    tables = [read_parquet(artifact.local(name)) for name in artifact.parts(under)]
    return list(pa.concat_tables(tables).to_pylist())


def test_no_pair_is_measured_by_a_model_that_was_trained_on_it_or_its_passage(configure: Any) -> None:
    config = configure()
    [filtered] = raydr.judge(config)
    places = Places.of(config.workdir)
    node = margins_node(config)
    measured = rows_of(opened(places, node), "measures/train")
    data, corpus = Dataset(places.open("dataset-noisy", "dataset")), Corpus(places.open("corpus", "corpus"))
    qrels = data.qrels("train").to_pylist()
    assert {(row["query_id"], row["passage_id"]) for row in measured} == {
        (row["query_id"], row["passage_id"]) for row in qrels
    }
    fold_of = {row["query_id"]: row["fold"] for row in measured}
    folds = opened(places, node.inputs["folds"])
    assert fold_of_queries(folds, "train", list(fold_of)).tolist() == list(fold_of.values())
    content = dict(
        zip(
            (row["passage_id"] for row in qrels),
            corpus.content_hashes(corpus.rows_of([row["passage_id"] for row in qrels])).tolist(),
            strict=True,
        )
    )
    for fold in range(2):
        model = node.inputs[f"models/{fold}"]
        trained = Dataset(opened(places, model.inputs["dataset"])).qrels("train").to_pylist()
        assert {fold_of[row["query_id"]] for row in trained} == {1 - fold}
        mine = {content[row["passage_id"]] for row in qrels if fold_of[row["query_id"]] == fold}
        assert not mine & {content[row["passage_id"]] for row in trained}
        assert len(trained) + sum(own_fold == fold for own_fold in fold_of.values()) == NUM_QUERIES
        training = model.arguments["training"]
        assert (training.train.loss.name, training.train.num_epochs) == ("nce", 2)
    # What the judge says is the detector's word on these margins.
    verdicts = places.open("verdicts/npc-train", "verdicts")
    detection = read_margins(opened(places, node)).detect(LocalFdrDetector())
    assert [row["action"] for row in rows_of(verdicts, "verdicts/train")] == np.where(
        detection.clean, "keep", "drop"
    ).tolist()
    assert verdicts.info["detector"]["share_mismatched"] == detection.share_mismatched
    assert filtered.info["judgments_after"] == int(detection.clean.sum())


def test_margins_are_those_of_single_pairs_and_random_ones_are_of_the_fold(configure: Any) -> None:
    config = configure(cross_fit={"num_random": 1000, "num_draws": 2})
    raydr.judge(config)
    places = Places.of(config.workdir)
    node = margins_node(config)
    measured = rows_of(opened(places, node), "measures/train")
    data, corpus = Dataset(places.open("dataset-noisy", "dataset")), Corpus(places.open("corpus", "corpus"))
    queries = data.queries("train")
    text_of = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    for row in (measured[0], measured[17]):
        fold = row["fold"]
        scorer = DualEncoderScorer(opened(places, node.inputs[f"models/{fold}"]).folder.root, "float32", "cpu", 4096)
        others = sorted(
            {measured_pair["passage_id"] for measured_pair in measured if measured_pair["fold"] == fold}
            - {row["passage_id"]},
        )
        texts = corpus.texts(corpus.rows_of([row["passage_id"], *others]))
        query = scorer.encode("query", None, [text_of[row["query_id"]]])
        scores = 20.0 * (query @ scorer.encode("passage", texts.titles, texts.texts).T)[0].astype(np.float64)
        # All passages of the fold are drawn, one of them for the positive's place: which one is found by its value.
        expected = {}
        for at in range(1, len(scores)):
            rest = np.delete(scores, [0, at]).mean()
            expected[at] = (rest - scores[0], rest - scores[at])
        assert len(row["margin"]) == 2
        for values in zip(row["margin"], row["random_pair"], strict=True):
            assert sum(np.allclose(reference, values, atol=1e-5) for reference in expected.values()) == 1


def test_passages_of_pairs_are_read_as_such_whether_random_ones_or_not(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large fold draws from a part of its passages, so that a pair's own is among them or is not."""
    read, missing = measure_folds.MeasureFolds._positives, []

    def compared(self: Any, fold: Any, row_N: Any) -> Any:
        vectors, texts = read(self, fold, row_N), self.corpus.texts(row_N)
        np.testing.assert_allclose(vectors, fold.scorer.encode("passage", texts.titles, texts.texts), atol=1e-5)
        missing.extend(~np.isin(self.corpus.content_hashes(row_N), fold.content_P))
        return vectors

    monkeypatch.setattr(measure_folds.MeasureFolds, "_positives", compared)
    monkeypatch.setattr(measure_folds, "POOL_SIZE", 6)
    raydr.judge(configure(cross_fit={"num_random": 3}))
    assert len(missing) == NUM_QUERIES
    assert 0 < sum(missing) < NUM_QUERIES


@pytest.mark.parametrize("most", [2, 5])
def test_a_passage_beside_the_random_ones_may_have_more_or_fewer_tokens(most: int) -> None:
    """With a vector for each token, encodings are as wide as their longest text."""
    texts = SimpleNamespace(titles=[""], texts=["a text"])
    corpus: Any = SimpleNamespace(content_hashes=lambda rows: rows.astype(np.uint64), texts=lambda rows: texts)
    scorer: Any = SimpleNamespace(encode=lambda *_: np.full((1, most, 2), 7.0, dtype=np.float32))
    fold: Any = SimpleNamespace(scorer=scorer, content_P=np.array([1], np.uint64), vector_PD=torch.ones(1, 3, 2))
    worker: Any = SimpleNamespace(corpus=corpus)
    known, read = measure_folds.MeasureFolds._positives(worker, fold, np.array([1, 2])).sum(dim=2)
    assert known[known != 0].tolist() == [2.0] * 3
    assert read[read != 0].tolist() == [14.0] * most


def test_a_checkpoint_that_measures_all_folds_is_loaded_once(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_retriever, opened = Scoring.open_retriever, []

    def counted(self: Scoring) -> Any:
        opened.append(self.model.fingerprint)
        return opened_retriever(self)

    monkeypatch.setattr(Scoring, "open_retriever", counted)
    raydr.judge(configure(cross_fit={"num_epochs": 0, "num_folds": 3}))
    assert len(opened) == 1


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_pairs_that_are_all_right_are_kept_and_such_that_are_all_random_are_not(configure: Any, share: float) -> None:
    """With a tiny model: its queries are words of their passages, which it learns from other pairs."""
    config = configure(inject_noise={"share": share} if share else None, cross_fit={"num_epochs": 6, "num_random": 15})
    raydr.judge(config)
    verdicts = Places.of(config.workdir).open("verdicts/npc-train", "verdicts")
    flagged = 1.0 - verdicts.info["keep"] / NUM_QUERIES
    probabilities = [row["probability"] for row in rows_of(verdicts, "detection/train")]
    if share:
        # 40 pairs estimate a share within some 0.15 of it; and nothing tells one random pair from another.
        assert verdicts.info["detector"]["share_mismatched"] > 0.75
        assert np.mean(probabilities) > 0.7
    else:
        assert flagged <= 0.03
        assert np.mean(probabilities) < 0.1


def test_training_takes_its_weights_from_the_margins(configure: Any) -> None:
    loss = {"name": "npc", "warmup_epochs": 1}
    train = {"loss": loss, "pair_detection": DETECTION, "num_epochs": 2, "num_hard_negatives": 0, "keep": "last"}
    config = configure(judge={"judges": []}, train=train)
    soft = raydr.train(config).artifact
    node = recipe_of(config).trained()
    places = Places.of(config.workdir)
    assert node.inputs["margins"].key == margins_node(configure(train=train)).key
    margins = read_margins(opened(places, node.inputs["margins"]))
    detection = margins.detect(LocalFdrDetector())
    measured = {query_id: at for at, query_id in enumerate(margins.query_ids.to_pylist())}
    kept = read_parquet(soft.local("detection/epoch-002.parquet")).to_pylist()
    place_N = [measured[row["query_id"]] for row in kept]
    assert [row["margin"] for row in kept] == margins.margin_N[place_N].tolist()
    assert [row["log_posterior"] for row in kept] == detection.log_posterior[place_N].tolist()
    share = soft.info["history"][1]["metrics"]["clean_share"]
    assert share == pytest.approx(float(np.exp(detection.log_posterior).mean()), abs=1e-5)
    assert share != pytest.approx(float(detection.clean.mean()), abs=1e-3)


def test_the_audit_of_a_trained_model_flags_what_that_of_an_untrained_one_flags(configure: Any) -> None:
    config = configure()
    trained = raydr.train(configure(judge={"judges": []})).artifact
    assert trained.info["num_examples"] == NUM_QUERIES
    pages = {name: raydr.audit(config, name)[0] for name in ("untrained", "trained")}
    inputs = {name: page.manifest.identity.inputs for name, page in pages.items()}
    assert inputs["untrained"]["verdicts/npc"] == inputs["trained"]["verdicts/npc"]


@pytest.mark.invariant
def test_a_killed_cross_fit_goes_on(configure: Any) -> None:
    config = configure()
    raydr.judge(config)
    places = Places.of(config.workdir)
    node = margins_node(config)
    whole = opened(places, node)
    before = {name: whole.manifest.parts[name].checksum for name in whole.parts()}
    first = opened(places, node.inputs["models/0"])
    written = first.folder.details("manifest.json")
    # Killed after the first fold's training: its model stays, all that came later is made.
    places.folder("model", node.inputs["models/1"].key).remove()
    interrupt(whole)
    raydr.judge(config, again=True)
    again = opened(places, node)
    assert {name: again.manifest.parts[name].checksum for name in again.parts()} == before
    assert first.folder.details("manifest.json") == written


def test_pairs_are_measured_by_small_batches_where_a_fold_is_small(configure: Any) -> None:
    config = configure(train={"batch_size": 64})
    [filtered] = raydr.judge(config)
    assert filtered.info["judgments_before"] == NUM_QUERIES
    model = opened(Places.of(config.workdir), margins_node(config).inputs["models/0"])
    assert model.info["num_steps"] == 1
    assert model.info["num_examples"] >= 2
    with pytest.raises(DataError, match=r"fewer queries with a positive \(\d+\) than folds \(50\): .* fewer folds"):
        raydr.judge(configure(cross_fit={"num_folds": 50}), again=True)


@pytest.mark.usefixtures("here")
def test_margins_are_shared_by_what_trains_on_the_same_pairs(configure: Any) -> None:
    """A training's loss, detector, teacher and epochs play no part in the models of the folds; its optimiser does."""
    base = margins_node(configure()).key
    assert margins_node(configure(train={"num_epochs": 7, "loss": "rcl", "num_hard_negatives": 0})).key == base
    assert margins_node(configure(train={"pair_detection": {"detector": "anchored"}})).key == base
    assert margins_node(configure(train={"loss": "npc"})).key == base
    assert margins_node(configure(train={"teacher": {"momentum": 0.5}, "dev": {"max_queries": 7}})).key == base
    faster = {"optimizer": {"learning_rate": 5e-3}}
    assert margins_node(configure(train=faster)).key != base
    own = {"optimizer": {"learning_rate": 1e-3}, "batch_size": 8, "seed": 0}
    shared = margins_node(configure(cross_fit=own)).key
    assert margins_node(configure(train=faster | {"batch_size": 4}, cross_fit=own)).key == shared
    assert margins_node(configure(train={"num_workers": 2})).key == base


def test_labels_that_are_held_out_of_noisy_pairs_are_judged_by_models_that_were_not_trained_on_them(
    configure: Any,
) -> None:
    config = configure(
        data={"hold_out": {"held": 0.3, "chooses": 0.2}, "dev_split": "chooses", "test_splits": ["held"]},
        variants={"npc": {"pair_detection": DETECTION}},
        inject_noise=None,
        judge={"judges": [], "model": "untrained"},
    )
    [made] = raydr.evaluate(config, system=["bm25", "npc"])
    recipe = recipe_of(config)
    node = recipe.evaluation("held", ["bm25", "npc"]).inputs["suspects"]
    measured = node.inputs["margins"]
    assert measured.inputs["folds"].arguments["split"] == "train"
    assert {key: model.key for key, model in measured.inputs.items() if key.startswith("models/")} == {
        key: model.key
        for key, model in cross_fitting.margins(recipe.context, "train").inputs.items()
        if key.startswith("models/")
    }
    places = Places.of(config.workdir)
    judged, held = opened(places, node), Dataset(places.open("dataset", "dataset")).qrels("held")
    assert judged.info["verdicts"] == len(held)
    assert made.manifest.made_from[node.key] == judged.manifest.digest
    # So are those that choose the epoch of a training that detects.
    chooses = recipe.model("npc").inputs["dev_verdicts"]
    assert chooses.inputs["margins"].inputs["models/0"].key == measured.inputs["models/0"].key
    assert opened(places, chooses).info["split"] == "chooses"
    assert "dev_verdicts" not in recipe.model("trained").inputs
    # Nobody detects, or the split came with the data: nothing is judged.
    assert "suspects" not in recipe.evaluation("held", ["bm25", "trained"]).inputs
    assert "suspects" not in recipe.evaluation("test", ["bm25", "npc"]).inputs


def test_a_held_out_copy_of_a_training_query_is_measured_by_the_model_that_did_not_see_it(
    beir_folder: Path, configure: Any, tmp_path: Path
) -> None:
    """Queries q30 to q39 come a second time, under another id: some copies are held out."""
    copied = Path(shutil.copytree(beir_folder, tmp_path / "beir"))
    rows = [json.loads(line) for line in (copied / "queries.jsonl").read_text().splitlines()]
    copies = [row | {"_id": f"c{row['_id']}"} for row in rows[30:40]]
    (copied / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *copies]))
    with (copied / "qrels" / "train.tsv").open("a") as judged:
        judged.writelines(f"cq{at}\tp{at:03d}\t1\n" for at in range(30, 40))
    reader = {"name": "beir", "path": str(copied)}
    config = configure(
        data={"reader": reader, "hold_out": {"held": 0.4}, "test_splits": ["held"]},
        variants={"npc": {"pair_detection": DETECTION}},
        inject_noise=None,
        judge={"judges": [], "model": "untrained"},
    )
    raydr.evaluate(config, system=["bm25", "npc"])
    places = Places.of(config.workdir)
    measured = recipe_of(config).suspects("held", ["npc"]).inputs["margins"]
    data = Dataset(places.open("dataset", "dataset"))
    fold_of = fold_of_texts(opened(places, measured.inputs["folds"]), data, "train")
    held = rows_of(opened(places, measured), "measures/held")
    texts = query_texts(data, "held", [row["query_id"] for row in held])
    folds = [(row["fold"], fold_of[text]) for row, text in zip(held, texts, strict=True) if text in fold_of]
    assert len(folds) > 2, "no copy is held out: draw others"
    assert all(measured_by == left_out for measured_by, left_out in folds)


def test_without_epochs_the_checkpoint_as_it_is_measures_all_folds(configure: Any) -> None:
    config = configure(cross_fit={"num_epochs": 0, "num_random": 15})
    raydr.judge(config)
    places, node = Places.of(config.workdir), margins_node(config)
    # That of the baseline, made once.
    models = [node.inputs[f"models/{fold}"].key for fold in range(2)]
    assert models == [recipe_of(config).model("untrained").key] * 2
    measured = rows_of(opened(places, node), "measures/train")
    pairs = Dataset(places.open("dataset-noisy", "dataset")).qrels("train").to_pylist()
    assert [row["query_id"] for row in measured] == [row["query_id"] for row in pairs]
    # Words that query and passage share: what was not learnt tells the mismatched ones too.
    surprise = {truth: np.mean([row["margin"] for row in measured if row["truth"] == truth]) for truth in (0, 1)}
    assert surprise[1] > surprise[0]
