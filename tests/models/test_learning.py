"""What of a network learns: adapters, and encoders after they were merged."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from models.test_tower import SIZE, make_tokens
from raydr.errors import ConfigError
from raydr.models.backbone import choose_what_learns, merge_adapters, num_learning
from raydr.models.batching import pad_in_groups
from raydr.models.config import ModelConfig
from raydr.models.tower import Tower
from raydr.models.training_config import OptimizerConfig

KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "modernbert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8},
    # Its layers hold their weights the other way around.
    "gpt2": {},
}
SETTING = "train.optimizer"


def make_tower(kind: str, **model: Any) -> Tower:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(3)
    backbone = AutoModel.from_config(AutoConfig.for_model(kind, **SIZE | KINDS[kind]))
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    return Tower(backbone, ModelConfig(checkpoint="unused", **model)).eval()


def with_adapters(network: nn.Module, seed: int = 0, frozen_layers: int | None = None, **lora: Any) -> nn.Module:
    config = OptimizerConfig.model_validate({"frozen_layers": frozen_layers, "lora": {"rank": 4, "alpha": 8, **lora}})
    choose_what_learns(network, config, seed, SETTING)
    return network.eval()


def vectors_of(tower: Tower) -> Tensor:
    texts = pad_in_groups(make_tokens([3, 9, 4, 9, 12]), tower.backbone.config.pad_token_id or 0, 0)  # type: ignore
    with torch.no_grad():
        return tower.encode_groups(texts, "passage")


def disturb(tower: Tower) -> None:
    """Weights of adapters as after some steps."""
    with torch.no_grad():
        for name, weights in tower.named_parameters():
            if "lora_B" in name:
                weights.copy_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(len(name))) / 4)


@pytest.mark.invariant
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_encoder_gives_the_vectors_of_its_adapters(kind: str) -> None:
    tower = make_tower(kind)
    before, first = {name: weight.clone() for name, weight in tower.state_dict().items()}, vectors_of(tower)
    with_adapters(tower)
    torch.testing.assert_close(vectors_of(tower), first, rtol=0, atol=0)
    disturb(tower)
    learnt = vectors_of(tower)
    assert not torch.allclose(learnt, first, atol=1e-2)
    beside = {
        name.replace(".base_layer.", "."): weight for name, weight in tower.state_dict().items() if "lora_" not in name
    }
    assert all(torch.equal(beside[name], weight) for name, weight in before.items())
    merge_adapters(tower)
    torch.testing.assert_close(vectors_of(tower), learnt, rtol=0, atol=1e-5)
    after = tower.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    linear = {f"{name}.weight" for name, module in tower.named_modules() if isinstance(module, nn.Linear)}
    assert changed == (linear or {name for name in after if ".c_" in name and name.endswith("weight")})


def test_an_adapter_is_scaled_by_alpha_over_its_rank() -> None:
    """W + alpha/rank · B·A."""
    tower = make_tower("bert")
    name = "backbone.encoder.layer.1.attention.self.query"
    before = tower.get_submodule(name).weight.detach().clone()  # type: ignore[operator, union-attr]
    with_adapters(tower, rank=4, alpha=6, targets=["query"])
    disturb(tower)
    state = tower.state_dict()
    adapter = state[f"{name}.lora_B.default.weight"] @ state[f"{name}.lora_A.default.weight"]
    merge_adapters(tower)
    after = tower.get_submodule(name).weight.detach()  # type: ignore[union-attr]
    torch.testing.assert_close(after, before + 6 / 4 * adapter)


def test_adapters_and_what_lies_on_the_encoder_learn() -> None:
    tower = make_tower("qwen3", projection=8)
    num_whole = num_learning(tower)
    with_adapters(tower, targets=["q_proj", "mlp.down_proj"])
    learning = {name for name, parameter in tower.named_parameters() if parameter.requires_grad}
    adapters = {name for name in learning if "lora_" in name}
    assert learning - adapters == {"projection.weight", "projection.bias"}
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in adapters} == {"q_proj", "down_proj"}
    assert len(adapters) == 2 * 2 * 2
    assert num_learning(tower) == 2 * 4 * (16 + 16 + 32 + 16) + 16 * 8 + 8 < num_whole


def test_layers_that_are_frozen_get_none() -> None:
    tower = make_tower("bert")
    with_adapters(tower, frozen_layers=1)
    adapters = {name for name in tower.state_dict() if "lora_" in name}
    assert adapters
    assert all("layer.1." in name for name in adapters)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_the_seed_alone_decides_the_first_weights(kind: str) -> None:
    weights = []
    for seed, before in ((0, 1), (0, 2), (1, 1)):
        tower = make_tower(kind)
        torch.manual_seed(before)
        state = torch.get_rng_state()
        with_adapters(tower, seed)
        assert torch.equal(torch.get_rng_state(), state)
        weights.append(torch.cat([weight.flatten() for name, weight in tower.state_dict().items() if "lora_A" in name]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_what_cannot_be_done_is_said() -> None:
    error = r"^train.optimizer.lora.targets: BertModel has no linear layer 'q_proj'; it has dense, key, query, value$"
    with pytest.raises(ConfigError, match=error):
        with_adapters(make_tower("bert"), targets=["query", "q_proj"])
    with pytest.raises(ConfigError, match=r"^train.optimizer.lora: all layers of BertModel that it names are frozen$"):
        with_adapters(make_tower("bert"), frozen_layers=1, targets=["layer.0.attention.self.query"])
    for wrong in ({"rank": 0}, {"alpha": 0}, {"dropout": 1.0}, {"targets": []}, {"targets": "linear"}, {"r": 4}):
        with pytest.raises(ValidationError):
            OptimizerConfig.model_validate({"lora": wrong})


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"^train.optimizer.lora needs the package peft, .*pip install peft"):
        with_adapters(make_tower("bert"))
    choose_what_learns(make_tower("bert"), OptimizerConfig(), 0, SETTING)
