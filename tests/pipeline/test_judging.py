"""Judges of a run: the models that they need are trained, verdicts are put together, a query is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from small_runs import recipe_of, small_run

import raydr
from raydr.artefacts.declaration import Node
from raydr.artefacts.folds import fold_of_texts
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import pairs_of, read_parquet
from raydr.errors import ConfigError, DataError
from raydr.models.cross_encoder import ProbabilityScorer
from raydr.models.dual_encoder import DualEncoder
from raydr.noise.evidence import evidence
from raydr.pipeline.rounds import lay_out
from raydr.pipeline.why import print_query
from raydr.store.artifact import Artifact

NUM_QUERIES = 40
DEPTH = 4


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(judges: list[Any], classifier: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
        cross_encoder = {"checkpoint": tiny_checkpoint, "max_length": 48}
        settings: dict[str, Any] = {
            "inject_noise": {"share": 0.25},
            "negatives": {"depth": DEPTH},
            "train": {"num_epochs": 1},
            "judge": {
                "model": "untrained",
                "judges": judges,
                "classifier": {"model": cross_encoder, "dtype": "float32"} | (classifier or {}),
            },
        }
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **(settings | sections)))

    return parse


def made_of(artifact: Artifact, role: str, kind: str, places: Places) -> Artifact:
    return Artifact.open(places.folder(kind, artifact.manifest.identity.inputs[role]), kind)


def test_encoders_that_do_not_fit_are_said_before_a_judges_model_is_trained(configure: Any, tmp_path: Path) -> None:
    config = configure(["classifier"], encode={"cpus_per_actor": 500.0})
    with pytest.raises(ConfigError, match="not enough for encode.min_actors 1 of 500 CPUs"):
        raydr.judge(config)
    assert not (tmp_path / "w" / "store").exists()


def test_sieve_classifier_and_npc_together_act_in_the_training(configure: Any) -> None:
    classifier = {"name": "classifier", "positive_above": 0.0, "positives": "relabel"}
    config = configure([{"name": "sieve", "keep_minimum": 1}, classifier, "npc"])
    judged, pairs = raydr.judge(config)
    places = Places.of(config.workdir)
    assert places.open("negatives/judged-sieve+classifier-bm25-train", "negatives").fingerprint == judged.fingerprint
    assert places.open("dataset-npc", "dataset").fingerprint == pairs.fingerprint
    # Every probability is above 0: all are relabelled, whatever the sieve says.
    sieve = places.open("verdicts/sieve-bm25-train", "verdicts")
    assert (judged.info["relabel"], judged.info["judges"]) == (sieve.info["verdicts"], ["sieve", "classifier"])
    assert 0 < sieve.info["keep"] < sieve.info["verdicts"]
    # The sieve's model is a copy that was trained on the candidates alone; the retriever is as it was.
    model = made_of(sieve, "model", "model", places)
    untrained = made_of(model, "start", "model", places)
    assert "training" not in untrained.manifest.identity.config
    trained = model.manifest.identity.config["training"]["train"]
    assert (trained["loss"]["name"], trained["in_batch_negatives"]) == ("rcl", False)
    assert trained["num_hard_negatives"] == DEPTH
    weights = [DualEncoder.load(artifact.folder.root).state_dict() for artifact in (untrained, model)]
    assert any(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    # The YAML is the run: a training takes what its judges leave, without being told.
    result = raydr.train(config).artifact
    assert result.manifest.identity.inputs["negatives"] == judged.fingerprint
    assert result.manifest.identity.inputs["dataset"] == pairs.fingerprint

    data = Dataset(places.open("dataset-noisy", "dataset"))
    row = next(row for row in data.qrels("train").to_pylist() if row["noise"] == "mismatched")
    story = raydr.why(config, row["query_id"])
    assert (story.split, [positive.judgment["noise"] for positive in story.positives]) == ("train", ["mismatched"])
    # Pairs without ids have ids that their owner does not know.
    assert raydr.why(config, story.text) == story
    assert [verdict["judge"] for verdict in story.positives[0].verdicts] == ["npc"]
    # Candidates hold the positive that the query has lost: the truth is known of it.
    lost = next(negative for negative in story.negatives if negative.passage_id == row["original_passage_id"])
    assert {verdict["judge"] for verdict in lost.verdicts} == {"sieve", "classifier"}
    assert {verdict["truth"] for verdict in lost.verdicts} == {True}
    artifacts = {origin["artifact"]: origin for origin in lost.provenance}
    assert artifacts["negatives/bm25-train"]["miner"] == "bm25"
    assert artifacts["negatives/judged-sieve+classifier-bm25-train"]["action"] == "relabel"
    console = Console(width=200, record=True)
    print_query(story, console)
    shown = console.export_text()
    assert "found by bm25, round 0, rank" in shown
    assert f"injected noise: mismatched, in place of {row['original_passage_id']}" in shown
    assert lost.text in shown


def test_what_cannot_be_judged_is_refused(configure: Any) -> None:
    config = configure([])
    with pytest.raises(ConfigError, match="no judge is named"):
        raydr.judge(config)
    with pytest.raises(ConfigError, match="unknown judge 'oracle'; allowed: calibrated, calibrated_neg"):
        raydr.judge(config, ["oracle"])
    with pytest.raises(ConfigError, match="use it without other judges"):
        raydr.judge(config, ["truth", "npc"])
    with pytest.raises(ConfigError, match="sieve judges only the training split of its model, 'train'; got 'dev'"):
        raydr.judge(config, ["sieve"], split="dev")
    [clean] = raydr.judge(config, ["truth"])
    assert Dataset(clean).qrels("train").num_rows == NUM_QUERIES * 3 // 4
    with pytest.raises(
        DataError, match=r"no split of the data set at .* \(dev, test, train\) has a query with the id or text 'x9'"
    ):
        raydr.why(config, "x9")


def test_a_cross_encoder_that_read_the_pairs_judges_them(configure: Any) -> None:
    random = {"num_hard_negatives": 0, "num_random_negatives": 2}
    config = configure(["pair_classifier"], random, negatives=None, train={"num_hard_negatives": 0})
    [dataset] = raydr.judge(config)
    places = Places.of(config.workdir)
    verdicts = places.open("verdicts/pair_classifier-train", "verdicts")
    # Trained against random passages alone: no candidates were mined.
    classifier = made_of(verdicts, "model", "cross_encoder", places)
    assert "negatives" not in classifier.manifest.identity.inputs
    rows = [row for name in verdicts.parts("verdicts/train") for row in read_parquet(verdicts.local(name)).to_pylist()]
    assert len(rows) == NUM_QUERIES
    assert sum(row["truth"] for row in rows) == NUM_QUERIES // 4
    assert all(row["action"] == ("drop" if row["score"] > 0.5 else "keep") for row in rows)
    assert dataset.info["judgments_after"] == sum(row["action"] == "keep" for row in rows)
    scorer = ProbabilityScorer(classifier.folder.root, "float32", "cpu", 4096)
    data, corpus = Dataset(places.open("dataset-noisy", "dataset")), Corpus(places.open("corpus", "corpus"))
    texts = query_texts(data, "train", [rows[0]["query_id"]])
    each = np.zeros(1, dtype=np.int64)
    probability = scorer.score(texts, corpus.texts(corpus.rows_of([rows[0]["passage_id"]])), each, each)[0]
    assert rows[0]["score"] == pytest.approx(1 - probability, abs=1e-5)


@pytest.mark.parametrize("name", ["classifier", "pair_classifier"])
def test_each_query_is_judged_by_the_cross_encoder_that_has_not_seen_it(configure: Any, name: str) -> None:
    learnt: dict[str, Any] = {
        "num_epochs": 4,
        "batch_size": 4,
        "num_hard_negatives": 1,
        "num_random_negatives": 1,
        "optimizer": {"learning_rate": 5e-3},
    }
    config = configure([name], {"num_folds": 2} | learnt)
    raydr.judge(config)
    places = Places.of(config.workdir)
    node = recipe_of(config).verdicts(config.judge.judge(name), "train")
    made = {
        role: Artifact.open(places.folder(node_input.kind, node_input.key), node_input.kind)
        for role, node_input in node.inputs.items()
    }
    data, corpus = Dataset(made["dataset"]), Corpus(made["corpus"])
    fold_of = fold_of_texts(made["folds"], data, "train")
    trained = [made_of(made[f"models/{fold}"], "dataset", "dataset", places) for fold in range(2)]
    texts = [set(Dataset(node_data).queries("train")["text"].to_pylist()) for node_data in trained]
    assert texts[0].isdisjoint(texts[1])
    assert sorted(map(len, texts)) == [NUM_QUERIES // 2] * 2
    verdicts = Artifact.open(places.folder("verdicts", node.key), "verdicts")
    rows = [row for part in verdicts.parts("verdicts/train") for row in read_parquet(verdicts.local(part)).to_pylist()]
    assert len({row["query_id"] for row in rows}) == NUM_QUERIES
    scorers = [ProbabilityScorer(made[f"models/{fold}"].folder.root, "float32", "cpu", 4096) for fold in range(2)]
    each, apart = np.zeros(1, dtype=np.int64), []
    for row in rows[:: len(rows) // 8]:
        [text] = query_texts(data, "train", [row["query_id"]])
        fold = fold_of[text]
        assert text not in texts[fold]
        assert text in texts[1 - fold]
        passage = corpus.texts(corpus.rows_of([row["passage_id"]]))
        mine, other = (scorers[at].score([text], passage, each, each)[0] for at in (fold, 1 - fold))
        score = 1 - row["score"] if name == "pair_classifier" else row["score"]
        assert score == pytest.approx(mine, abs=1e-5)
        apart.append(abs(mine - other))
    assert max(apart) > 1e-4


def rows_of(verdicts: Artifact) -> dict[tuple[str, str], dict[str, Any]]:
    tables = (read_parquet(verdicts.local(part)) for part in verdicts.parts("verdicts/train"))
    return {(row["query_id"], row["passage_id"]): row for table in tables for row in table.to_pylist()}


def test_a_cascade_reads_what_is_in_doubt_and_learns_from_what_is_kept(configure: Any) -> None:
    first = {"name": "consistency", "top_k": 2, "num_random": 40}
    second = {"name": "pair_classifier", "after": "consistency", "unsure": [0.6, 1.0]}
    config = configure([first, second], {"num_folds": 2, "pairs_kept_by": "consistency", "batch_size": 4})
    [dataset] = [artifact for artifact in raydr.judge(config) if artifact.kind == "dataset"]
    places = Places.of(config.workdir)
    before, after = (rows_of(places.open(f"verdicts/{name['name']}-train", "verdicts")) for name in (first, second))
    assert 0 < len(after) < len(before) == NUM_QUERIES
    scores = np.array([row["score"] for row in before.values()])
    flagged = np.array([row["action"] == "drop" for row in before.values()])
    doubt = 1 / (1 + np.exp(-evidence(scores, flagged)))
    assert after.keys() == {pair for pair, wrong in zip(before, doubt, strict=True) if wrong >= 0.6}
    # Where it has read its word counts, else that of the judge before.
    kept = {pair for pair, row in (before | after).items() if row["action"] == "keep"}
    assert set(pairs_of(Dataset(dataset).qrels("train"))) == kept
    # Half of what the first judge keeps is what each cross-encoder has learnt from.
    read = places.open("verdicts/pair_classifier-train", "verdicts")
    assert (read.info["after"], read.info["before"]) == ("consistency", NUM_QUERIES)
    kept_before = {pair for pair, row in before.items() if row["action"] == "keep"}
    learnt = [
        set(
            pairs_of(
                Dataset(
                    made_of(made_of(read, f"models/{fold}", "cross_encoder", places), "dataset", "dataset", places)
                ).qrels("train")
            )
        )
        for fold in range(2)
    ]
    assert learnt[0].isdisjoint(learnt[1])
    assert learnt[0] | learnt[1] == kept_before
    [audit] = raydr.audit(config, model="untrained")
    page = Path(audit.local("report.html")).read_text()
    assert "pairs that a cross-encoder takes for irrelevant" in page
    assert "inconclusive" not in page


def test_of_candidates_too_only_what_is_in_doubt_is_read(configure: Any) -> None:
    second = {"name": "classifier", "after": "margin", "unsure": [0.3, 0.7], "positive_above": 0.0}
    config = configure(["margin", second])
    raydr.judge(config)
    places = Places.of(config.workdir)
    before, after = (places.open(f"verdicts/{name}-bm25-train", "verdicts") for name in ("margin", "classifier"))
    assert rows_of(after).keys() < rows_of(before).keys()
    assert after.info["drop"] == after.info["verdicts"] > 0
    judged = places.open("negatives/judged-margin+classifier-bm25-train", "negatives")
    both = rows_of(before) | rows_of(after)
    assert judged.info["drop"] == sum(row["action"] == "drop" for row in both.values())


# -- whose models they ask, without making any


def asked(recipe: Any, judge: str, split: str = "train") -> Node:
    model: Node = recipe.verdicts(recipe.config.judge.judge(judge), split).inputs["model"]
    return model


@pytest.mark.usefixtures("here")
def test_judges_share_the_cross_encoder_that_learns_from_the_training_candidates(configure: Any) -> None:
    recipe = recipe_of(configure(["classifier", "pair_classifier"]))
    classifier = asked(recipe, "classifier")
    assert classifier.inputs["negatives"].key == recipe.candidates("train").key
    assert asked(recipe, "pair_classifier").key == classifier.key
    # Whatever split is judged.
    assert asked(recipe, "classifier", "dev").key == classifier.key
    assert asked(recipe, "pair_classifier", "dev").key == classifier.key
    [first] = lay_out(recipe.context)[0].rounds[:1]
    assert {node.inputs["model"].key for node in first.verdicts} == {classifier.key}


@pytest.mark.usefixtures("here")
def test_cross_encoders_of_folds_are_shared_and_other_splits_are_judged_by_one(configure: Any) -> None:
    recipe = recipe_of(configure(["classifier", "pair_classifier"], {"num_folds": 3}))
    judges = [recipe.config.judge.judge(name) for name in ("classifier", "pair_classifier")]
    negatives, pairs = (recipe.verdicts(judge, "train").inputs for judge in judges)
    roles = {"folds", "models/0", "models/1", "models/2"}
    assert roles < pairs.keys()
    assert {role: negatives[role].key for role in roles} == {role: pairs[role].key for role in roles}
    # One training of all queries: a number of folds is none of its settings.
    alone = recipe_of(configure(["classifier"]))
    assert asked(recipe, "classifier", "dev").key == asked(alone, "classifier", "dev").key
    # A cross-encoder that is taken as it is has seen no query.
    as_it_is = recipe_of(configure(["classifier"], {"num_folds": 3, "num_epochs": 0}))
    assert "folds" not in as_it_is.verdicts(judges[0], "train").inputs


@pytest.mark.usefixtures("here")
def test_a_cascade_is_the_same_in_a_round_and_its_cross_encoder_is_shared(configure: Any) -> None:
    after = [{"name": "pair_classifier", "after": "npc"}, {"name": "classifier", "after": "guide"}]
    recipe = recipe_of(configure(["npc", "guide", *after], {"pairs_kept_by": "npc", "num_folds": 2}))
    pairs, negatives = (recipe.verdicts(recipe.config.judge.judge(settings["name"]), "train") for settings in after)
    assert pairs.inputs["earlier"].key == recipe.names["verdicts/npc-train"].key
    assert negatives.inputs["earlier"].key == recipe.names["verdicts/guide-bm25-train"].key
    kept = pairs.inputs["models/0"].inputs["dataset"].inputs["kept"]
    assert negatives.inputs["models/1"].inputs["dataset"].inputs["kept"].key == kept.key
    assert kept.inputs["verdicts/npc"].key == pairs.inputs["earlier"].key
    [first] = lay_out(recipe.context)[0].rounds[:1]
    assert {pairs.key, negatives.key} < {node.key for node in first.verdicts}


@pytest.mark.usefixtures("here")
def test_a_cross_encoder_that_is_trained_once_is_one_whatever_each_round_keeps(configure: Any) -> None:
    first = {"name": "npc", "margins": "model"}
    for how, num in {"once": 1, "each_round": 3}.items():
        refresh = {"num_rounds": 3, "classifier": how}
        config = configure([first, "classifier"], {"pairs_kept_by": "npc"}, refresh=refresh)
        rounds = lay_out(recipe_of(config).context)[0].rounds
        assert len({refresh_round.verdicts[0].key for refresh_round in rounds}) == 3
        assert len({refresh_round.verdicts[1].inputs["model"].key for refresh_round in rounds}) == num, how


@pytest.mark.usefixtures("here")
def test_who_is_named_brings_along_whom_it_comes_after(configure: Any) -> None:
    second = {"name": "pair_classifier", "after": "npc"}
    third = {"name": "language_model", "after": "pair_classifier", "model": "m"}
    classifier = {"pairs_kept_by": "npc", "num_folds": 2}
    config = configure(["npc", second, third], classifier, refresh={"num_rounds": 1, "judges": ["language_model"]})
    recipe = recipe_of(config)
    [only] = lay_out(recipe.context)[0].rounds
    assert only.judged.pairs is not None
    assert [name for name in only.judged.pairs.inputs if name.startswith("verdicts/")] == [
        "verdicts/npc",
        "verdicts/pair_classifier",
        "verdicts/language_model",
    ]
    # What a judge keeps is what its whole chain keeps.
    config = configure(["npc", {**third, "after": "npc"}, "classifier"], {"pairs_kept_by": "language_model"})
    kept = asked(recipe_of(config), "classifier").inputs["dataset"]
    assert {"verdicts/npc", "verdicts/language_model"} < kept.inputs.keys()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("by", "match"),
    [
        ("guide", "is 'guide', which judges candidates; expected a judge of pairs such as npc"),
        ("pair_classifier", "is 'pair_classifier', which itself asks the cross-encoder that trains on these pairs"),
        ("language_model", "is 'language_model', which itself asks the cross-encoder"),
        ("oracle", "unknown judge 'oracle'"),
    ],
)
def test_a_cross_encoder_learns_from_what_others_keep(configure: Any, by: str, match: str) -> None:
    judges = ["guide", "pair_classifier", {"name": "language_model", "after": "pair_classifier"}]
    with pytest.raises(ConfigError, match=match):
        configure(judges, {"pairs_kept_by": by, "num_folds": 2})
    with pytest.raises(ConfigError, match="was trained on the pairs that npc keeps; set num_folds to 2 or more"):
        configure(judges, {"pairs_kept_by": "npc"})


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("model", ["trained", "ranker"])
def test_judges_of_candidates_are_refused_where_candidates_are_those_of_the_data(configure: Any, model: str) -> None:
    """Such a training draws candidates that no judge has read."""

    def declare(num_hard_negatives: int) -> Node:
        drawn = {"num_hard_negatives": num_hard_negatives}
        random = {"num_random_negatives": 1, "dev": None}
        recipe = recipe_of(configure(["npc", "margin"], negatives=None, train=drawn, ranker=drawn | random))
        return recipe.scorer(model)

    with pytest.raises(ConfigError, match="judge.judges: margin judges candidates, .* set negatives.miner to source"):
        declare(1)
    assert declare(0)


@pytest.mark.usefixtures("here")
def test_a_cross_encoder_needs_candidates_or_random_passages(configure: Any) -> None:
    nothing_mined: dict[str, Any] = {"negatives": None, "train": {"num_hard_negatives": 0}}
    recipe = recipe_of(configure(["pair_classifier"], {"num_hard_negatives": 1}, **nothing_mined))
    with pytest.raises(ConfigError, match=r"judge\.classifier\.num_hard_negatives is 1, but the run mines no"):
        recipe.trained()


@pytest.mark.usefixtures("here")
def test_trained_means_trained_without_judges_where_judges_ask(configure: Any) -> None:
    """A judge that asked the model that its verdicts lead to would be a cycle."""
    config = configure(["margin"], judge={"judges": ["margin"], "model": "trained"})
    recipe = recipe_of(config)
    model = recipe.trained()
    [verdicts] = [node for node in model.ancestors().values() if node.kind == "verdicts"]
    judge = verdicts.inputs["model"]
    assert judge.key != model.key
    assert not [node for node in judge.ancestors().values() if node.kind == "verdicts"]
    assert recipe.names["models/trained"].key == model.key
