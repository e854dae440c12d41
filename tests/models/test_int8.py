"""An encoder in int8 gives nearly the vectors of the float one, and the same ones with any number of threads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from raydr.data.embeddings import VectorSets
from raydr.errors import ModelError
from raydr.models import int8
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer, load_tower
from raydr.models.inference import InferenceEncoder
from tests.conftest import make_sentence

#: Both packages come with the extra ``int8``, and ``dev`` has it; some processors cannot.
computes = pytest.mark.skipif(int8.missing_for_int8() is not None, reason=str(int8.missing_for_int8()))

TEXTS = [make_sentence(at, 1 + at % 17) for at in range(40)]


def save(checkpoint: str, folder: Path, score: str) -> Path:
    """A model in a folder."""
    config = ModelConfig.model_validate(
        {"checkpoint": checkpoint, "passage": {"max_length": 24}, "projection": 16, "score": score}
    )
    DualEncoder.from_config(config, seed=1).save(folder / "model", build_tokenizers(config))
    return folder


def quantize(folder: Path, output: Path) -> dict[str, float]:
    """Its encoder in int8, made on half of the texts."""
    tokenizer = load_tokenizer(folder / "model", "passage")
    tower = load_tower(folder / "model", "passage").ready("cpu", torch.float32)
    return int8.quantize(tower, tokenizer(None, TEXTS[:20]), tokenizer.pad_id, "passage", output)


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and beside it its encoder in int8."""
    folder = save(tiny_checkpoint, tmp_path_factory.mktemp("int8"), "dual")
    quantize(folder, folder)
    return folder


def encode(folder: Path, dtype: str, budget: int = 64, num_threads: int = 1, texts: list[str] = TEXTS) -> np.ndarray:
    """Vectors (T, D): of all tokens of all texts where each has one."""
    quantized = folder if dtype == "int8" else ""
    encoder = InferenceEncoder(folder / "model", "passage", dtype, "cpu", budget, num_threads, quantized=quantized)
    vectors = encoder.encode(load_tokenizer(folder / "model", "passage")(None, texts))
    return (vectors.vectors_TD if isinstance(vectors, VectorSets) else vectors).astype(np.float32)


def check_near(folder: Path) -> None:
    exact, quantised = encode(folder, "float32"), encode(folder, "int8")
    assert quantised.shape == exact.shape
    assert (quantised * exact).sum(axis=1).min() > 0.99
    assert not np.array_equal(quantised, exact)


@computes
def test_vectors_are_nearly_those_of_the_float_encoder(folder: Path) -> None:
    check_near(folder)


@computes
def test_so_are_those_of_all_tokens_of_a_text(tiny_checkpoint: str, tmp_path: Path) -> None:
    save(tiny_checkpoint, tmp_path, "sum_of_max")
    cosine = quantize(tmp_path, tmp_path)
    # Padding has none.
    assert 0.99 < cosine["lowest"] < cosine["mean"] < 0.9999999
    check_near(tmp_path)


@computes
@pytest.mark.invariant
def test_the_number_of_threads_changes_no_bit(folder: Path) -> None:
    np.testing.assert_array_equal(encode(folder, "int8", num_threads=2), encode(folder, "int8", num_threads=1))


@computes
@pytest.mark.invariant
def test_a_vector_is_that_of_the_text_alone_up_to_rounding(folder: Path) -> None:
    together = encode(folder, "int8", budget=4096)
    alone = np.concatenate([encode(folder, "int8", texts=[text]) for text in TEXTS[:4]])
    assert (together[: len(alone)] * alone).sum(axis=1).min() > 0.999


@computes
@pytest.mark.invariant
def test_made_again_it_gives_the_same_vectors(folder: Path, tmp_path: Path) -> None:
    expected = encode(folder, "int8")
    quantize(folder, tmp_path)
    # Only names in it differ.
    assert (tmp_path / "encoder.bin").read_bytes() == (folder / "encoder.bin").read_bytes()
    (tmp_path / "encoder.xml").replace(folder / "encoder.xml")
    np.testing.assert_array_equal(encode(folder, "int8"), expected)


@computes
def test_no_word_of_its_use_is_sent(folder: Path) -> None:
    assert sys.modules["openvino_telemetry"] is None


@computes
def test_an_encoder_whose_vectors_would_be_others_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_LEAST_COSINE", 1.1)
    with pytest.raises(ModelError, match=r"20 texts have a mean cosine of [01]\.\d+ .*set encode.dtype=auto"):
        quantize(folder, tmp_path)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "find_spec", lambda name: None if name == "nncf" else name)
    with pytest.raises(ModelError, match=r"^encode.dtype is int8, .* nncf not installed: pip install nncf"):
        int8.require_int8()
    monkeypatch.setattr(int8, "find_spec", lambda name: name)
    monkeypatch.setattr(int8, "cpu_has_int8", lambda: False)
    with pytest.raises(ModelError, match=r"no instructions that multiply bytes .*set encode.dtype=auto"):
        int8.require_int8()
    monkeypatch.setattr(int8, "cpu_has_int8", lambda: True)
    int8.require_int8()
