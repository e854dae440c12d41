"""Judges of a run in order: the models that they need are trained, verdicts are put together, a query is explained."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from stages.judge_inputs import DEPTH, NUM_QUERIES, JudgeInputs, make_inputs

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.errors import ConfigError, DataError
from raydr.graph.job import open_job
from raydr.models.cross_encoder import CrossEncoderScorer
from raydr.models.dual_encoder import DualEncoder
from raydr.pages.query_story import print_story
from raydr.stages.judge_negatives import query_texts
from raydr.store.artifact import Artifact
from raydr.verbs.api import why

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str, ray_local: None) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("judging"), tiny_checkpoint)


def with_judges(inputs: JudgeInputs, *judges: object) -> RunConfig:
    raw = inputs.config.model_dump(mode="json")
    raw["judge"] |= {"model": "untrained", "judges": list(judges)}
    return RunConfig.parse(raw)


def test_encoders_that_do_not_fit_are_said_before_a_judges_model_is_trained(inputs: JudgeInputs) -> None:
    config = with_judges(inputs, "classifier")
    encode = config.encode.model_copy(update={"cpus_per_actor": 500.0})
    with open_job(config.model_copy(update={"encode": encode})) as job:
        with pytest.raises(ConfigError, match="not enough for encode.min_actors 1 of 500 CPUs"):
            job.judge([], "train")
        assert not (job.workspace.root / "classifiers").exists()


def test_sieve_classifier_and_npc_together(inputs: JudgeInputs) -> None:
    classifier = {"name": "classifier", "positive_above": 0.0, "positives": "relabel"}
    config = with_judges(inputs, {"name": "sieve", "keep_minimum": 1}, classifier, "npc")
    with open_job(config) as job:
        judged, dataset = job.judge([], "train")
        place = job.workspace
    assert judged.folder.url.endswith("negatives/judged-sieve+classifier-bm25-train")
    # Every probability is above 0: all are relabelled, whatever the sieve says.
    assert (judged.info["relabel"], judged.info["judges"]) == (NUM_QUERIES * DEPTH, ["sieve", "classifier"])
    sieve = Artifact.open(place.verdicts("sieve-bm25-train"), "verdicts")
    assert sieve.info["verdicts"] == NUM_QUERIES * DEPTH
    assert 0 < sieve.info["keep"] < NUM_QUERIES * DEPTH
    # The sieve's model is a copy that was trained on the candidates alone; the retriever is as it was.
    model = Artifact.open(place.model("sieve-bm25"), "model")
    assert sieve.manifest.identity.inputs["model"] == model.fingerprint
    trained = model.manifest.run_config["train"]
    assert trained["loss"] == {
        "name": "rcl",
        "beta": {"final": 0.5, "start_epoch": 0, "ramp_epochs": 0, "initial": 0.0},
        "reduction": "paper",
    }
    assert (trained["in_batch_negatives"], trained["num_hard_negatives"]) == (False, DEPTH)
    weights = [DualEncoder.load(place.model(name).root).state_dict() for name in ("untrained", "sieve-bm25")]
    assert any(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert Dataset(dataset).fingerprint != Dataset.open(inputs.dataset).fingerprint
    assert dataset.folder.url.endswith("dataset-npc")

    story = why(config, "q05")
    assert (story.split, [one.noise for one in story.positives]) == ("train", ["mismatched"])
    assert [verdict.judge for verdict in story.positives[0].verdicts] == ["npc"]
    planted = next(one for one in story.negatives if one.passage_id == "s05")
    assert {verdict.judge for verdict in planted.verdicts} == {"sieve", "classifier"}
    assert {verdict.truth for verdict in planted.verdicts} == {True}
    places = {found.artifact: found for found in planted.provenance}
    assert places["negatives/bm25-train"].score == 8.0
    assert places["negatives/judged-sieve+classifier-bm25-train"].action == "relabel"
    assert places["dataset"].miner == "planted"
    console = Console(width=200, record=True)
    print_story(story, console)
    shown = console.export_text()
    assert "found by bm25, round 0, rank 2, score 8.0000 (positive: 9.0000)" in shown
    assert "mismatched on purpose, in place of p05" in shown
    assert planted.text in shown


def test_what_cannot_be_judged_is_refused(inputs: JudgeInputs) -> None:
    with open_job(with_judges(inputs)) as job:
        with pytest.raises(ConfigError, match="no judge was named"):
            job.judge([], "train")
        with pytest.raises(ConfigError, match="unknown judge 'oracle'; allowed: classifier, consistency"):
            job.judge(["oracle"], "train")
        with pytest.raises(ConfigError, match="use it alone"):
            job.judge(["truth", "npc"], "train")
        clean = Dataset(job.judge(["truth"], "train")[0])
        assert clean.qrels("train").num_rows == NUM_QUERIES * 4 // 5
    with pytest.raises(DataError, match=r"no split of the data set at .* \(train\) has a query 'x9'"):
        why(inputs.config, "x9")


def test_a_cross_encoder_that_read_the_pairs_judges_them(inputs: JudgeInputs) -> None:
    raw = inputs.config.model_dump(mode="json")
    raw["judge"]["judges"] = ["pair_classifier"]
    raw["judge"]["classifier"] |= {"num_hard_negatives": 0, "num_random_negatives": 2}
    with open_job(RunConfig.parse(raw)) as job:
        (dataset,) = job.judge([], "train")
        place = job.workspace
    # Trained against random passages alone: no candidates were mined.
    classifier = Artifact.open(place.root / "classifiers" / "random", "cross_encoder")
    assert "negatives" not in classifier.manifest.identity.inputs
    verdicts = Artifact.open(place.verdicts("pair_classifier-train"), "verdicts")
    assert verdicts.manifest.identity.inputs["model"] == classifier.fingerprint
    table = pa.concat_tables([read_parquet(verdicts.local(name)) for name in verdicts.parts("verdicts/train")])
    rows = {row["query_id"]: row for row in table.to_pylist()}
    assert len(rows) == NUM_QUERIES
    assert rows["q05"]["truth"]
    assert not rows["q07"]["truth"]
    scorer = CrossEncoderScorer(classifier.folder.root, "float32", "cpu", 4096)
    data, corpus = Dataset.open(inputs.dataset), Corpus.open(inputs.corpus)
    text = query_texts(data, "train", ["q07"])
    each = np.zeros(1, dtype=np.int64)
    probability = scorer.score(text, corpus.texts(corpus.rows_of(["p07"])), each, each)[0]
    assert rows["q07"]["score"] == pytest.approx(1 - probability, abs=1e-5)
    assert all(row["action"] == ("drop" if row["score"] > 0.5 else "keep") for row in rows.values())
    assert dataset.info["judgments_after"] == sum(row["action"] == "keep" for row in rows.values())
