"""A model that leaves: its card reads as the hub reads it, says what was measured and found, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Brings a detector that always flags half.
import training.harness  # noqa: F401
from huggingface_hub import ModelCard
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.artefacts.evaluation import load_result
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.models.config import ModelConfig, read_config
from raydr.ops.export import CardFacts, model_card
from raydr.verbs.app import app


@pytest.fixture(scope="module")
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run with noise put in, a detection that looks for it, and negatives that a judge has seen, evaluated."""
    folder = tmp_path_factory.mktemp("export-model")
    config = RunConfig.parse(
        small_run(
            beir_folder, tiny_checkpoint, folder / "w", name="tried", inject_noise={"share": 0.25},
            judge={"judges": ["margin"], "model": "untrained"},
            train={
                "num_epochs": 2, "loss": {"name": "npc", "warmup_epochs": 1},
                "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median"},
            },
            evaluate={"measures": ["RR@10", "R@5"], "bootstrap_samples": 100, "permutations": 100},
        )
    )  # fmt: skip
    raydr.evaluate(config, ["bm25", "trained"])
    return config


def code_of(card: str, place: Path) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    return [code.replace("FOLDER_OR_HUB_NAME", str(place)) for code in blocks]


def test_a_model_leaves_with_figures_noise_and_code_that_runs(config: RunConfig, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    places, place = Places.of(config.workdir), tmp_path / "out"
    model = places.open("models/trained", "model")
    raydr.export(config, str(place), model="trained")
    card = ModelCard.load(place / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert (card.data.get("base_model"), card.data.get("datasets")) == (None, None)
    result = load_result(places.open("evaluation/test", "evaluation"))
    own = {summary.measure: summary for summary in result.summaries if summary.system == "trained"}
    figures = {entry.metric_type: entry.metric_value for entry in card.data.eval_results}
    assert figures == {measure: pytest.approx(summary.mean, abs=1e-5) for measure, summary in own.items()}
    reciprocal = own["RR@10"]
    assert f"{reciprocal.mean:.3f} [{reciprocal.low:.3f}, {reciprocal.high:.3f}]" in card.text
    detection = model.info["detections"][-1]
    assert f"{detection['share_flagged']:.1%} of the training pairs were flagged" in card.text
    assert f"precision {detection['precision']:.2f}" in card.text
    assert "Noise was injected on purpose: 25%, mismatched." in card.text
    assert "Mined negatives as judged by margin: keep" in card.text
    assert model.fingerprint in card.text
    assert "num_random: 20" in card.text

    [code] = code_of(card.text, place)
    known: dict[str, Any] = {}
    exec(code, known)
    there = SentenceTransformer(str(model.folder), device="cpu").encode_query(["a question"])
    np.testing.assert_array_equal(np.asarray(known["queries"]), there)
    assert not list(place.rglob("epoch-*.parquet"))
    # As a checkpoint it brings what it was trained with.
    assert ModelConfig(checkpoint=str(place)).query == read_config(place).query


def test_what_was_exported_is_known_and_replaced_only_when_asked(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = raydr.export(config, str(tmp_path / "out"), model="trained")
    capsys.readouterr()
    assert raydr.export(config, str(tmp_path / "out"), model="trained").fingerprint == first.fingerprint
    assert "already there" in capsys.readouterr().err
    with pytest.raises(FingerprintError, match="has other settings than requested"):
        raydr.export(config, str(tmp_path / "out"), model="untrained")
    with pytest.raises(ArtifactError, match=r"no model called models/nope.*there is trained"):
        raydr.export(config, str(tmp_path / "other"), model="nope")
    with pytest.raises(ConfigError, match="options of data sets"):
        raydr.export(config, str(tmp_path / "other"), model="trained", shape="lists")
    with pytest.raises(ConfigError, match="export --format beir does not take --fold-whitespace"):
        raydr.export(config, str(tmp_path / "other"), fold_whitespace=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("own words")
    with pytest.raises(ArtifactError, match="holds files that raydr did not write"):
        raydr.export(config, str(tmp_path / "mine"), model="trained")
    with pytest.raises(ArtifactError, match=r"README\.md is a file: choose an output folder"):
        raydr.export(config, str(tmp_path / "mine" / "README.md"), model="trained", again=True)


def facts_of(model: dict[str, Any], **changes: Any) -> CardFacts:
    facts: dict[str, Any] = {
        "name": "run-x", "system": "x", "model": ModelConfig.model_validate(model), "base_model": "org/base",
        "data_set": "org/data", "settings": {"train": {"loss": "nce"}}, "training": {}, "results": [],
        "noise": ["nothing"], "made_by": "By raydr.",
    }  # fmt: skip
    return CardFacts(**facts | changes)


def test_late_interaction_opens_in_pylate_and_says_so(tiny_checkpoint: str) -> None:
    settings = {"checkpoint": tiny_checkpoint, "score": "sum_of_max", "passage": {"max_length": 64}}
    card = ModelCard(model_card(facts_of(settings)))
    assert (card.data.library_name, card.data.base_model, card.data.datasets) == ("PyLate", "org/base", ["org/data"])
    assert "models.ColBERT" in card.text
    assert "The model was not evaluated." in card.text
    # PyLate scales vectors to length 1.
    dot = ModelCard(model_card(facts_of(settings | {"similarity": "dot"})))
    assert dot.data.library_name == "sentence-transformers"
    assert "pylate" not in dot.text.lower()


def test_two_towers_are_opened_one_by_one(tiny_checkpoint: str, tmp_path: Path) -> None:
    from raydr.models.dual_encoder import DualEncoder, build_tokenizers

    model = {"checkpoint": tiny_checkpoint, "towers": "two", "passage": {"max_length": 64}}
    settings = ModelConfig.model_validate(model)
    DualEncoder.from_config(settings).save(tmp_path, build_tokenizers(settings))
    known: dict[str, Any] = {}
    [code] = code_of(model_card(facts_of(model)), tmp_path)
    exec(code, known)
    assert known["scores"].shape == (1, 1)


@pytest.mark.usefixtures("here")
def test_the_command(config: RunConfig, tmp_path: Path) -> None:
    import yaml

    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    done = CliRunner().invoke(app, ["export", str(file), str(tmp_path / "out"), "--model", "trained"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\n")


def test_negatives_are_named_with_or_without_their_folder(config: RunConfig, tmp_path: Path) -> None:
    for at, name in enumerate(("negatives/bm25-train", "bm25-train")):
        raydr.export(config, str(tmp_path / str(at)), format="sentence-transformers", negatives=name)
    with pytest.raises(ArtifactError, match=r"no negatives called negatives/nope .* there is bm25-train"):
        raydr.export(config, str(tmp_path / "none"), format="sentence-transformers", negatives="negatives/nope")
