"""``raydr search`` for a text: what is refused, with which hint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.store.building import Building, begin
from raydr.store.identity import Identity
from raydr.verbs.app import app


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w"))


@pytest.mark.parametrize("options", [{"split": "test"}, {"trec": "out.trec"}])
@pytest.mark.parametrize("text", ["", "a river"])
def test_a_text_beside_a_split_is_refused(config: RunConfig, text: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"got a text \({text!r}\) and --{next(iter(options))}: leave one out"):
        raydr.search(config, text, **options)


def test_an_empty_text_of_the_command_line_is_no_search_of_a_split(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    result = CliRunner().invoke(app, ["search", str(tmp_path / "run.yaml"), "--split", "test", ""])
    assert result.exit_code == 2
    assert not (tmp_path / "w").exists()


def test_wrong_models_and_texts_get_the_right_hint(config: RunConfig) -> None:
    with pytest.raises(ArtifactError, match=r"there is no bm25 .*: raydr search CONFIG --model bm25"):
        raydr.search(config, "a river", model="bm25")
    with pytest.raises(
        ArtifactError, match=r"there is no run called runs/test/fused in .*: raydr fuse CONFIG makes it"
    ):
        raydr.search(config, "a river", model="fused")
    places = Places.of(config.workdir)
    identity = Identity(kind="model")
    with begin(places.folder("model", identity.fingerprint), identity) as making:
        assert isinstance(making, Building)
        making.finish()
    places.point("models/mine", "model", identity.fingerprint)
    with pytest.raises(
        ArtifactError,
        match=r"there is no model called models/nope in .*; there is mine: raydr train CONFIG --name nope makes it",
    ) as caught:
        raydr.search_text(config, "a river", model="nope")
    assert "raydr index" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"has no index of mine: make it with raydr index CONFIG --model mine"):
        raydr.search_text(config, "a river", model="mine")
    with pytest.raises(ConfigError, match=r"search_text takes a str, got a list: call it for each text"):
        raydr.search_text(config, ["a river"])  # type: ignore[arg-type]


def test_what_was_changed_behind_the_manifest_is_not_searched(config: RunConfig) -> None:
    raydr.index(config, "untrained")
    assert len(raydr.search_text(config, "a river", "untrained", 3)) == 3
    places = Places.of(config.workdir)
    shard = Path(places.open("index/untrained", "index").folder.path("shard-000.faiss"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(ArtifactError, match=r"shard-000\.faiss differs from the checksum in the manifest"):
        raydr.search_text(config, "a river", "untrained")
    with pytest.raises(ArtifactError, match=r"shard-000\.faiss differs from the checksum in the manifest"):
        raydr.evaluate(config, ["untrained"])
    shard.write_bytes(whole)
    weights = Path(places.open("models/untrained", "model").folder.path("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match=r"model\.safetensors has 1000 bytes, but its manifest has \d+"):
        raydr.search_text(config, "a river", "untrained")


def test_bm25_of_an_earlier_corpus_is_not_read_by_rows_of_another(
    config: RunConfig, beir_folder: Path, tmp_path: Path
) -> None:
    raydr.search(config, model="bm25")
    hits = raydr.search_text(config, "a river", "bm25", 3)
    data = Path(shutil.copytree(beir_folder, tmp_path / "data"))
    rows = (data / "corpus.jsonl").read_text().splitlines(keepends=True)
    (data / "corpus.jsonl").write_text("".join(reversed(rows)))
    changed = RunConfig.of(
        config.model_dump() | {"data": config.data.model_dump() | {"reader": {"name": "beir", "path": str(data)}}}
    )
    raydr.prepare(changed, again=True)
    with pytest.raises(FingerprintError, match=r"made from another corpus .*: make it again with raydr search CONFIG"):
        raydr.search_text(changed, "a river", "bm25", 3)
    raydr.search(changed, model="bm25", again=True)
    assert {hit.passage_id for hit in hits} == {
        hit.passage_id for hit in raydr.search_text(changed, "a river", "bm25", 3)
    }


def test_a_training_under_a_name_that_is_no_variants_says_whose_it_is(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--name", "nope", "--dry-run"])
    assert "nope is no variant: the config's own training gets this name" in result.output
