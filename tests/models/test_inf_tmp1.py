"""A compiled encoder gives the vectors of the plain one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from raydr.errors import ModelError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.encode_config import Batching
from raydr.models.inference import InferenceEncoder
from tests.conftest import make_sentence

TEXTS = [make_sentence(at, 1 + at % 17) for at in range(40)]


@pytest.fixture
def folder(tiny_checkpoint: str, tmp_path: Path) -> str:
    config = ModelConfig(checkpoint=tiny_checkpoint, passage=SideConfig(max_length=24), num_layers=1)
    DualEncoder.from_config(config, seed=1).save(tmp_path, build_tokenizers(config))
    return str(tmp_path)


def encode(folder: str, batching: Batching, dtype: str = "float32", device: str = "cpu") -> np.ndarray:
    tokens = load_tokenizer(folder, "passage")(None, TEXTS)
    # So small a budget makes batches of many shapes.
    encoder = InferenceEncoder(folder, "passage", dtype, device, 64, 1 if device == "cpu" else None, batching)
    return encoder.encode(tokens).astype(np.float32)


@pytest.mark.invariant
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile takes a C++ compiler")
def test_compiled_equals_eager(folder):
    np.testing.assert_allclose(encode(folder, "compiled"), encode(folder, "padded"), atol=2e-3)


@pytest.mark.gpu
def test_compiled_equals_eager_on_a_gpu(folder):
    compiled, padded = encode(folder, "compiled", "bfloat16", "cuda"), encode(folder, "padded", "bfloat16", "cuda")
    assert (compiled * padded).sum(axis=1).min() > 0.999


def test_without_a_compiler_it_is_said(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelError, match="there is no no-such-compiler here"):
        encode(folder, "compiled")


def test_the_process_keeps_its_number_of_threads(folder):
    before = torch.get_num_threads()
    encoder = InferenceEncoder(folder, "passage", "float32", "cpu", 512, num_threads=before + 1)
    seen = []
    encoder.tower.register_forward_pre_hook(lambda *ignored: seen.append(torch.get_num_threads()))
    encoder.encode(load_tokenizer(folder, "passage")(None, ["river"]))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
