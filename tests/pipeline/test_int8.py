"""Passages in int8: one quantised encoder for all workers, queries and pairs as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

import raydr
from raydr.config.run import RunConfig
from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError, ModelError
from raydr.models import int8
from raydr.store.artifact import Artifact
from tests.made_stage import interrupt

pytestmark = pytest.mark.usefixtures("here")
computes = pytest.mark.skipif(int8.missing_for_int8() is not None, reason=str(int8.missing_for_int8()))


def run_of(beir_folder: Path, checkpoint: str, workdir: Path, **encode: Any) -> RunConfig:
    return RunConfig.parse(small_run(beir_folder, checkpoint, workdir, encode=encode))


@computes
@pytest.mark.invariant
def test_an_interrupted_encoding_goes_on_with_the_same_encoder(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = run_of(beir_folder, tiny_checkpoint, tmp_path, dtype="int8")
    [vectors] = raydr.encode(config, model="untrained")
    assert vectors.info["dtype"] == "int8"
    # Of the model, and not of what was made of it: queries are encoded by the model.
    assert vectors.info["model"] == vectors.manifest.identity.inputs["model"]
    [quantized] = [path for path in (tmp_path / "store/quantized").iterdir() if path.is_dir()]
    made = Artifact.open(str(quantized), "quantized")
    assert made.info["num_passages"] == 120
    assert 0.99 < made.info["cosine"]["mean"] < 1
    before = (quantized / "encoder.bin").stat().st_mtime_ns
    interrupt(vectors, vectors.parts()[0])
    [again] = raydr.encode(config, model="untrained")
    assert again.manifest.parts == vectors.manifest.parts
    assert (quantized / "encoder.bin").stat().st_mtime_ns == before
    assert len(Embeddings(again).ids(0)) == 25
    [queries] = raydr.encode(config, model="untrained", split="test")
    assert queries.info["dtype"] in ("float32", "bfloat16")


def test_only_passages_are_others(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "missing_for_int8", lambda: None)
    ours, theirs = (
        recipe_of(run_of(beir_folder, tiny_checkpoint, tmp_path, dtype=dtype)) for dtype in ("int8", "auto")
    )
    assert ours.queries("test", "untrained").key == theirs.queries("test", "untrained").key
    assert ours.trained().key == theirs.trained().key
    assert ours.reranked("test", "untrained").settings == theirs.reranked("test", "untrained").settings
    passages = ours.passages("untrained")
    assert passages.key != theirs.passages("untrained").key
    assert (passages.arguments["arithmetic"].dtype, passages.inputs["quantized"].kind) == ("int8", "quantized")
    # Its own model's.
    trained = ours.passages("trained")
    assert trained.inputs["quantized"].inputs["model"].key == trained.inputs["model"].key
    assert trained.inputs["quantized"].key != passages.inputs["quantized"].key


def test_what_is_missing_is_said_before_anything_is_made(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "missing_for_int8", lambda: ("nncf not installed", "pip install nncf"))
    with pytest.raises(ModelError, match="nncf not installed: pip install nncf"):
        raydr.encode(run_of(beir_folder, tiny_checkpoint, tmp_path, dtype="int8"), model="untrained")
    assert not (tmp_path / "store").exists()


def test_a_gpu_is_refused(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which runs on CPUs alone"):
        run_of(beir_folder, tiny_checkpoint, tmp_path, dtype="int8", gpus_per_actor=0.5)
