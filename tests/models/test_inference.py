"""Encoding in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.inference import InferenceEncoder
from tests.conftest import make_sentence

TEXTS = [make_sentence(at, 1 + at % 17) for at in range(40)]


@pytest.fixture
def folder(tiny_checkpoint: str, tmp_path: Path) -> str:
    config = ModelConfig(checkpoint=tiny_checkpoint, passage=SideConfig(max_length=24))
    DualEncoder.from_config(config, seed=1).save(tmp_path, build_tokenizers(config))
    return str(tmp_path)


def test_the_process_keeps_its_number_of_threads(folder):
    before = torch.get_num_threads()
    encoder = InferenceEncoder(folder, "passage", "float32", "cpu", 512, num_threads=before + 1)
    seen = []
    encoder.tower.register_forward_pre_hook(lambda *ignored: seen.append(torch.get_num_threads()))
    encoder.encode(load_tokenizer(folder, "passage")(None, ["river"]))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
