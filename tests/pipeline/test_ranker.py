"""The run's cross-encoder: trained on what the judges leave of any miner's candidates, under a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run
from typer.testing import CliRunner

import raydr
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError, ConfigError, ModelError
from raydr.models.config import CrossEncoderConfig, ModelConfig, SideConfig
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.models.dual_encoder import DualEncoder
from raydr.store.artifact import Artifact
from raydr.verbs.app import app


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(ranker: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
        cross_encoder = {"checkpoint": tiny_checkpoint, "max_length": 48}
        settings: dict[str, Any] = {
            "train": {"num_epochs": 1},
            "ranker": {"model": cross_encoder, "batch_size": 8, "num_hard_negatives": 3, "dtype": "float32"}
            | (ranker or {}),
        }
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **(settings | sections)))

    return parse


def test_train_makes_the_ranker_on_what_the_judges_leave_and_it_is_no_retriever(
    configure: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = {"judges": ["consistency", {"name": "margin", "margin": 0.01}], "model": "untrained"}
    config = configure(judge=judge)
    ranker = raydr.train(config, name="ranker").artifact
    assert "epoch 1: loss " in "".join(capsys.readouterr())
    places = Places.of(config.workdir)
    assert places.open("models/ranker", "cross_encoder").fingerprint == ranker.fingerprint
    inputs = ranker.manifest.identity.inputs
    assert inputs["negatives"] == places.open("negatives/judged-margin-bm25-train", "negatives").fingerprint
    assert inputs["dataset"] == places.open("dataset-consistency", "dataset").fingerprint
    # The epoch is chosen on dev, by what the miner finds there.
    assert ranker.info["history"][0]["metrics"].keys() == {"loss", "dev RR@10"}
    assert inputs["dev_run"] == places.open("runs/dev/bm25", "run").fingerprint
    assert ranker.info["dev"].keys() == {"dev RR@10"}
    assert ranker.info["mined_by"] == "bm25, judged by margin"
    # A few steps teach it nothing, and it says so.
    chosen = ranker.info["history"][ranker.info["best_epoch"]]["metrics"]["dev RR@10"]
    assert chosen < ranker.info["dev"]["dev RR@10"]
    [remark] = ranker.info["remarks"]
    assert f"no better than the run that it is given: dev RR@10 {chosen:.4f}, the run " in remark
    # No retriever was needed but for what the judges ask.
    assert places.pointer("models/trained") is None
    with pytest.raises(ConfigError, match="ranker is a cross-encoder; expected a retriever"):
        raydr.encode(config, model="ranker")
    with pytest.raises(ConfigError, match="ranker is a cross-encoder; expected a retriever"):
        raydr.search_text(config, "a river", "ranker")
    with pytest.raises(ArtifactError, match="expected a model at .*, found a cross_encoder"):
        places.open("models/ranker", "model")
    retriever = ModelConfig(checkpoint=ranker.folder.path("."), passage=SideConfig(max_length=32))
    with pytest.raises(
        ModelError, match=r"is a cross-encoder \(Bert.*\), and a retriever is expected here: give an enc"
    ):
        DualEncoder.from_config(retriever)


def test_data_without_candidates_of_their_own(configure: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure(negatives={"miner": "source"})
    with pytest.raises(ConfigError, match=r"ranker\.num_hard_negatives is 3 and there are no candidates of split 'tra"):
        raydr.train(config, name="ranker")
    assert "have no negative that came with the data" in " ".join("".join(capsys.readouterr()).split())
    raydr.train(config)
    shown = " ".join("".join(capsys.readouterr()).split())
    assert "no query of 'train' has a candidate, and hard negatives (train.num_hard_negatives 1) are random" in shown


@pytest.mark.usefixtures("here")
def test_any_miner_proposes_the_candidates(configure: Any) -> None:
    recipe = recipe_of(configure(negatives={"miner": "untrained", "depth": 5}))
    [mined] = [node for role, node in recipe.ranker().inputs.items() if role == "negatives"]
    assert mined.arguments["miner"] == "untrained"
    assert mined.inputs["run"].inputs["index"].ancestors().keys() & {recipe.model("untrained").key}
    # Nor are the dev queries' passages anybody else's.
    assert recipe.ranker().inputs["dev_run"].inputs["index"].key == mined.inputs["run"].inputs["index"].key
    assert "dev_run" not in recipe_of(configure({"dev": None})).ranker().inputs
    # A retriever without hard negatives needs no candidates; the ranker does all the same.
    recipe = recipe_of(configure(train={"num_hard_negatives": 0}))
    assert "negatives" in recipe.ranker().inputs
    assert "negatives" not in recipe.trained().inputs
    # Of a checkpoint that is taken as it is nothing is mined.
    taken = recipe_of(configure({"num_epochs": 0})).ranker()
    assert (taken.arguments["predicts"], dict(taken.inputs)) == ("log_odds", {})


def test_a_miners_run_over_dev_must_be_there_too(configure: Any, tmp_path: Path) -> None:
    config = configure(negatives={"miner": "lucene", "depth": 5})
    file = tmp_path / "a.trec"
    file.write_text("q00 Q0 p001 1 2.5 x\n")
    raydr.import_run(config, str(file), system="lucene", split="train")
    message = "selecting the ranker's epoch needs a run of 'lucene' over split 'dev', which does not exist"
    with pytest.raises(ConfigError, match=message):
        raydr.train(config, name="ranker")
    raydr.import_run(config, str(file), system="lucene", split="dev")
    assert raydr.train(config, name="ranker", dry_run=True) is None


@pytest.mark.parametrize(("length", "warns"), [(48, False), (32, True)])
def test_a_ranker_that_cuts_elsewhere_than_its_tokenizer_warns(
    length: int, warns: bool, configure: Any, tiny_checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = CrossEncoderConfig(checkpoint=tiny_checkpoint, max_length=48)
    CrossEncoder.from_config(made).save(tmp_path / "cross", PairTokenizer(made))
    model = {"checkpoint": str(tmp_path / "cross"), "max_length": length}
    raydr.train(configure({"num_epochs": 0, "model": model}), name="ranker")
    shown = " ".join("".join(capsys.readouterr()).split())
    assert ("cuts a pair at 48 tokens by its tokenizer" in shown) is warns
    assert ("ranker.model.max_length at 32: scores of longer pairs differ" in shown) is warns


def test_what_cannot_be_a_ranker_is_refused(configure: Any) -> None:
    with pytest.raises(ModelError, match=r"ranker\.num_epochs is 0, but the checkpoint .* without a classifier"):
        raydr.train(configure({"num_epochs": 0}), name="ranker")
    with pytest.raises(ConfigError, match=r"ranker\.num_hard_negatives is 3 and there are no candidates of split 'tra"):
        raydr.train(configure(negatives=None), name="ranker")
    with pytest.raises(ConfigError, match="'ranker' would be a cross-encoder"):
        configure(variants={"ranker": {}})


def rows_of(run: Artifact) -> list[dict[str, Any]]:
    return [row for part in Run(run).parts() for row in part.to_pylist()]


def test_a_run_is_reranked_evaluated_and_asked_by_a_text(
    configure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(rerank={"depth": 20}, evaluate={"measures": ["R@5"]})
    [made] = raydr.rerank(config, system="bm25", trec=str(tmp_path / "run.trec"))
    places = Places.of(config.workdir)
    assert places.open("runs/test/bm25+ranker", "run").fingerprint == made.fingerprint
    assert len((tmp_path / "run.trec").read_text().splitlines()) == made.rows() <= 20 * 10
    before = places.open("runs/test/bm25", "run")
    pairs = {(row["query_id"], row["passage_id"]) for row in rows_of(before) if row["rank"] <= 20}
    assert {(row["query_id"], row["passage_id"]) for row in rows_of(made)} == pairs
    # A retriever orders its own run as it is, by its own scores.
    [same] = raydr.rerank(config, system="untrained", by="untrained")
    scores = {(row["query_id"], row["passage_id"]): row["score"] for row in rows_of(same)}
    searched = rows_of(places.open("runs/test/untrained", "run"))
    assert scores.keys() == {(row["query_id"], row["passage_id"]) for row in searched if row["rank"] <= 20}
    for row in searched:
        if row["rank"] <= 20:
            assert scores[row["query_id"], row["passage_id"]] == pytest.approx(row["score"], abs=2e-3)
    # What has been reranked is among the systems, and a system by its name.
    recipe = recipe_of(config)
    assert recipe.systems("test") == ["bm25", "untrained", "trained", "bm25+ranker", "untrained+untrained"]
    [evaluation] = raydr.evaluate(config, system=["bm25", "bm25+ranker"])
    assert evaluation.info["systems"] == ["bm25", "bm25+ranker"]
    assert evaluation.manifest.identity.inputs["runs/bm25+ranker"] == made.fingerprint
    # The page of the run has the ranker, what it does to the run that it orders, and both runs query by query.
    raydr.report(config)
    page = (Path(config.workdir) / "report.html").read_text()
    assert f"<p>ranker: {places.open('models/ranker', 'cross_encoder').info['remarks'][0]}.</p>" in page
    assert "reranked, test: difference" in page
    assert '"systems": ["bm25", "bm25+ranker"]' in page
    # While another command makes the ranker anew, its name points to what is not complete.
    manifest = Path(places.open("models/ranker", "cross_encoder").folder.path("manifest.json"))
    kept = manifest.read_bytes()
    manifest.unlink()
    capsys.readouterr()
    raydr.report(config)
    assert "not on the page: models/ranker: removed, or another" in " ".join(capsys.readouterr().err.split())
    assert "<p>ranker: " not in (Path(config.workdir) / "report.html").read_text()
    manifest.write_bytes(kept)
    # A text is answered as a query is.
    [asked] = raydr.rerank(config, system="untrained")
    queries = Dataset(places.open("dataset", "dataset")).queries("test").to_pylist()
    [text] = [row["text"] for row in queries if row["query_id"] == "q50"]
    hits = raydr.search_text(config, text, "untrained", 5, rerank=True)
    best = [row for row in rows_of(asked) if row["query_id"] == "q50"][:5]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    for hit, row in zip(hits, best, strict=True):
        assert hit.score == pytest.approx(row["score"], abs=1e-4)


def test_a_model_that_cannot_rerank_is_refused(configure: Any, tmp_path: Path) -> None:
    config = configure()
    with pytest.raises(
        ArtifactError, match=r"no cross_encoder called models/ranker-large .*raydr train CONFIG --name ranker"
    ):
        raydr.rerank(config, system="bm25", by="ranker-large")
    with pytest.raises(ArtifactError, match="there is no model called models/strange"):
        raydr.rerank(config, system="bm25", by="strange")
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    refused = CliRunner().invoke(app, ["search", str(tmp_path / "run.yaml"), "--rerank"])
    assert refused.exit_code == 2
    assert "raydr rerank CONFIG --system trained reranks a run" in refused.output


def test_a_variant_learns_from_the_ranker_of_the_same_candidates(configure: Any) -> None:
    distilled = {"loss": {"name": "ranker_kl", "nce_weight": 0.5}, "num_hard_negatives": 3}
    config = configure(variants={"distilled": distilled})
    model = raydr.train(config, name="distilled").artifact
    places = Places.of(config.workdir)
    mined, ranker = places.open("negatives/bm25-train", "negatives"), places.open("models/ranker", "cross_encoder")
    key = model.manifest.identity.inputs["ranker_scores"]
    scores = Artifact.open(places.folder("ranker_scores", key), "ranker_scores")
    inputs = scores.manifest.identity.inputs
    assert (inputs["model"], inputs["negatives"]) == (ranker.fingerprint, mined.fingerprint)
    assert ranker.manifest.identity.inputs["negatives"] == mined.fingerprint
    assert scores.info["num_pairs"] == 40 + mined.rows("negatives/train")
    assert model.info["history"][0]["metrics"].keys() >= {"divergence", "nce"}
    # Kept: another training that learns from it asks nobody.
    recipe = recipe_of(configure(variants={"distilled": distilled | {"loss": "margin_mse"}}))
    assert recipe.trained("distilled").inputs["ranker_scores"].key == key


@pytest.mark.usefixtures("here")
def test_who_teaches_whom(configure: Any) -> None:
    kl = {"loss": "ranker_kl"}
    # What the ranker learns from is mined by the model trained without it.
    recipe = recipe_of(configure(train=kl, negatives={"miner": "trained", "depth": 5}))
    student = recipe.trained()
    [ranker] = [node for node in student.ancestors().values() if node.kind == "cross_encoder"]
    [teacher] = [node for node in ranker.ancestors().values() if node.kind == "model"]
    losses = [node.arguments["training"].train.loss.name for node in (teacher, student)]
    assert losses == ["nce", "ranker_kl"]
    # A retriever teaches too; its scores are those of its own losses.
    recipe = recipe_of(configure(variants={"small": kl | {"ranker": "trained"}}))
    scores = recipe.trained("small").inputs["ranker_scores"]
    assert scores.inputs["model"].key == recipe.trained().key
    with pytest.raises(ConfigError, match=r"train\.ranker: trained learns from trained; let one of them learn from"):
        recipe_of(configure(train=kl | {"ranker": "trained"})).trained()
    mutual = {"a": kl | {"ranker": "b"}, "b": kl | {"ranker": "a"}}
    with pytest.raises(ConfigError, match="a learns from b learns from a"):
        recipe_of(configure(variants=mutual)).trained("a")


@pytest.mark.usefixtures("here")
def test_all_variants_learn_from_what_one_model_mined(configure: Any) -> None:
    """Else each would train a miner of its own, and the name of the candidates would be that of the last."""
    variants = {"listed": {"num_hard_negatives": 3}, "distilled": {"num_hard_negatives": 3, "loss": "ranker_kl"}}
    recipe = recipe_of(configure(negatives={"miner": "trained", "depth": 5}, variants=variants))
    mined = recipe.trained().inputs["negatives"].key
    listed, distilled = recipe.trained("listed"), recipe.trained("distilled")
    assert {listed.inputs["negatives"].key, distilled.inputs["negatives"].key} == {mined}
    assert distilled.inputs["ranker_scores"].inputs["negatives"].key == mined
    [ranker] = [node for node in distilled.ancestors().values() if node.kind == "cross_encoder"]
    assert ranker.inputs["negatives"].key == mined
