"""Groups of texts through backbones of several kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raydr.models.backbone import shape_backbone
from raydr.models.batching import pad_in_groups
from raydr.models.config import ModelConfig
from raydr.models.tokens import Tokens
from raydr.models.tower import Tower

SIZE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
#: Each counts positions in a way of its own, or has no segments.
BACKBONES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "mpnet": {"pad_token_id": 1},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
}


def make_tower(kind: str) -> Tower:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(3)
    backbone = AutoModel.from_config(AutoConfig.for_model(kind, **SIZE | BACKBONES[kind]))
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    return Tower(backbone, ModelConfig(checkpoint="unused")).eval()


def make_tokens(lengths: list[int]) -> Tokens:
    ids = np.random.default_rng(0).integers(4, 40, sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(ids, offsets, np.asarray(lengths, dtype=np.int32), 0)


def vectors_and_gradients(tower: Tower, overhead: int) -> list[Tensor]:
    batch = pad_in_groups(make_tokens([3, 9, 4, 9, 12]), tower.backbone.config.pad_token_id or 0, overhead)
    assert len(batch.groups) == (4 if overhead == 0 else 1)
    tower.zero_grad()
    vectors_ND = tower.encode_groups(batch, "passage")
    vectors_ND[:, :4].square().sum().backward()
    return [
        vectors_ND.detach(),
        *(parameter.grad.clone() for parameter in tower.parameters() if parameter.grad is not None),
    ]


@pytest.mark.invariant
@pytest.mark.parametrize("kind", BACKBONES)
def test_groups_are_encoded_as_one_padded_batch_and_as_without_gradients(kind: str) -> None:
    tower = make_tower(kind)
    together, grouped = vectors_and_gradients(tower, 10**9), vectors_and_gradients(tower, 0)
    assert len(together) == len(grouped) > 10
    for tensor, other in zip(together, grouped, strict=True):
        torch.testing.assert_close(other, tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen3"])
def test_what_is_left_of_a_cut_backbone_is_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, **SIZE | {"num_hidden_layers": 4} | BACKBONES.get(kind, {}))
    backbone = AutoModel.from_config(config)
    shape_backbone(backbone, ModelConfig(checkpoint="unused", num_layers=2), kind)
    backbone.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.config.num_hidden_layers == 2
    assert loaded.state_dict().keys() == backbone.state_dict().keys()


def test_the_words_of_all_groups_are_looked_up_at_once() -> None:
    """Each lookup has a gradient as large as the vocabulary."""
    tower = make_tower("bert")
    lookups: list[int] = []
    tower.backbone.get_input_embeddings().register_forward_hook(lambda *arguments: lookups.append(arguments[2].ndim))
    vectors_and_gradients(tower, 0)
    assert len(lookups) == 1
    with torch.no_grad():
        tower.encode_groups(pad_in_groups(make_tokens([3, 9]), 0, 0), "passage")
    assert len(lookups) == 3
