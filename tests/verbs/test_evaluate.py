"""``raydr evaluate``: a system that finds nothing scores 0, and one that cannot be made leaves the others theirs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.errors import ModelError, RaydrError


@pytest.fixture
def greek(beir_folder: Path, tmp_path: Path) -> Path:
    """Test queries in another script than the passages."""
    copy = Path(shutil.copytree(beir_folder, tmp_path / "greek"))
    rows = [json.loads(line) for line in (copy / "queries.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"text": f"ποταμός {at}βασιλιάς"}) for at, row in enumerate(rows)]
    (copy / "queries.jsonl").write_text("\n".join(lines) + "\n")
    return copy


def test_bm25_that_finds_nothing_scores_0_beside_the_others(
    greek: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    config = RunConfig.parse(small_run(greek, tiny_checkpoint, tmp_path / "work"))
    [made] = raydr.evaluate(config, ["bm25", "untrained"])
    assert set(made.info["means"]) == {"bm25", "untrained"}
    assert set(made.info["means"]["bm25"].values()) == {0.0}
    output = " ".join(capsys.readouterr().err.split())
    assert "bm25: no query of split 'test' has a result, and each counts as 0" in output


def test_figures_on_the_training_split_are_said_to_be_too_good(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    data = {"reader": {"name": "beir", "path": str(beir_folder)}, "test_splits": ["train", "test"]}
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work", data=data))
    raydr.evaluate(config, ["bm25"], dry_run=True)
    assert "train is the training split" in " ".join(capsys.readouterr().err.split())
    raydr.evaluate(config, ["bm25"], split="test", dry_run=True)
    assert "training split" not in capsys.readouterr().err


def test_a_system_that_cannot_be_made_leaves_the_others_theirs(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    broken = Path(shutil.copytree(tiny_checkpoint, tmp_path / "broken"))
    config = RunConfig.parse(small_run(beir_folder, str(broken), tmp_path / "work"))
    (broken / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"cannot load model\.checkpoint"):
        raydr.evaluate(config, ["bm25", "untrained"])
    shown = capsys.readouterr()
    assert "evaluated without untrained" in " ".join(shown.err.split())
    # The verb ends with this error, which is shown once.
    assert "cannot load" not in shown.err
    assert "test: mean" in shown.err.partition("evaluated without untrained")[2]
    # No name points to that: with the checkpoint mended it is the evaluation of both.
    shutil.copy(Path(tiny_checkpoint, "model.safetensors"), broken)
    [made] = raydr.evaluate(
        RunConfig.parse(small_run(beir_folder, str(broken), tmp_path / "work")), ["bm25", "untrained"]
    )
    assert set(made.info["means"]) == {"bm25", "untrained"}


def test_a_run_of_strangers_leaves_the_others_theirs(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work"))
    (tmp_path / "a.trec").write_text("stranger Q0 p050 1 2.5 x\n")
    raydr.import_run(config, str(tmp_path / "a.trec"), system="lucene", split="test")
    with pytest.raises(RaydrError, match="it was made for another split"):
        raydr.evaluate(config, ["bm25", "lucene"])
    assert "evaluated without lucene" in " ".join(capsys.readouterr().err.split())


def test_the_report_names_data_and_models_that_were_made_again_after_their_figures(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(beir_folder, tmp_path / "data"))
    raw = small_run(data, tiny_checkpoint, tmp_path / "work", train={"num_epochs": 1})
    config = RunConfig.parse(raw)
    raydr.evaluate(config, ["trained", "untrained", "bm25"])
    assert "of an earlier" not in Path(raydr.report(config)).read_text()
    raw["train"]["num_epochs"] = 2
    changed = RunConfig.parse(raw)
    raydr.train(changed, again=True)
    assert "The figures on test are those of an earlier trained:" in Path(raydr.report(changed)).read_text()
    # Siblings: data that were prepared again since, and an audit of them.
    raydr.evaluate(changed, ["bm25"], again=True)
    raydr.audit(changed, judges="npc", quick=True)
    assert "of an earlier" not in Path(raydr.report(changed)).read_text()
    with open(data / "corpus.jsonl", "a", encoding="utf-8") as corpus:
        corpus.write('{"_id": "later", "text": "a later passage"}\n')
    raydr.prepare(changed, again=True)
    page = Path(raydr.report(changed)).read_text()
    assert "The figures on test are those of an earlier corpus and dataset: raydr evaluate CONFIG" in page
    assert "The figures of audit quick-train are those of an earlier corpus and dataset: raydr audit CONFIG" in page


def test_again_with_changed_settings_trains_the_changed_variant_alone(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train={"num_epochs": 1}, variants={"two": {}})
    raydr.evaluate(RunConfig.parse(raw), ["trained", "two"])
    raw["variants"] = {"two": {"num_epochs": 2}}
    changed = RunConfig.parse(raw)
    capsys.readouterr()
    raydr.evaluate(changed, ["trained", "two"], again=True, dry_run=True)
    assert re.findall(r"train-(trained|two): ", capsys.readouterr().err) == ["two"]
    raydr.train(changed, name="two", again=True)
    capsys.readouterr()
    # Vectors, index and run follow their model.
    raydr.evaluate(changed, ["trained", "two"])
    assert not re.search(r"train-(trained|two): ", capsys.readouterr().err)
    # Without a change all is made again.
    raydr.evaluate(changed, ["trained", "two"], again=True, dry_run=True)
    assert "made again on request" in capsys.readouterr().err
