"""The fused pass of a BERT gives the hidden states of its own pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from raydr.models import fused_bert
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.fused_bert import FusedBert, can_fuse, checked, fused
from raydr.models.inference import InferenceEncoder
from tests.conftest import make_sentence

LENGTHS = (5, 1, 9, 7)


def attention_of_segments(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """What PyTorch's kernel computes, which only GPUs have: each segment attends to itself."""
    assert longest >= int(bounds.diff().max())
    context = torch.full_like(query, torch.nan)
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        heads = [states[start:end].transpose(0, 1) for states in (query, key, value)]
        context[start:end] = nn.functional.scaled_dot_product_attention(*heads).transpose(0, 1)
    return context


def make_backbone(model_type: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 32, "type_vocab_size": 2, "pad_token_id": 1, "initializer_range": 0.5,
    }  # fmt: skip
    config = AutoConfig.for_model(model_type, **(shape | settings))
    return AutoModel.from_config(config, add_pooling_layer=False).eval()


def padded() -> dict[str, Tensor]:
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    ids = torch.randint(2, 60, mask.shape, generator=torch.Generator().manual_seed(1))
    return {
        "input_ids": ids.masked_fill(~mask, 1),
        "attention_mask": mask.long(),
        "token_type_ids": (torch.arange(max(LENGTHS)) > 2).expand_as(mask).long(),
    }


@pytest.mark.parametrize("model_type", sorted(fused_bert.BERT_LIKE))
def test_it_gives_the_hidden_states_of_the_network(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_bert, "attend", attention_of_segments)
    backbone, texts = make_backbone(model_type), padded()
    assert can_fuse(backbone)
    real = texts["attention_mask"].bool()
    with torch.no_grad():
        expected = backbone(**texts).last_hidden_state[real]
        hidden = FusedBert(backbone)(**texts).last_hidden_state
    # GELU by tanh and by the error function.
    torch.testing.assert_close(hidden[real], expected, atol=5e-3, rtol=0)
    assert hidden.isfinite().all()


def test_weights_that_change_in_place_change_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher's weights move after each step."""
    monkeypatch.setattr(fused_bert, "attend", attention_of_segments)
    backbone, other, texts = make_backbone("bert"), make_backbone("bert", initializer_range=0.1), padded()
    network = FusedBert(backbone)
    names = [name.removeprefix("bert.") for name, _ in network.named_parameters()]
    assert names == [name for name, _ in other.named_parameters()]
    with torch.no_grad():
        torch._foreach_copy_(list(network.parameters()), list(other.parameters()))
        expected = FusedBert(other)(**texts).last_hidden_state
        torch.testing.assert_close(network(**texts).last_hidden_state, expected)


@pytest.mark.parametrize("settings", [{"hidden_act": "relu"}, {"is_decoder": True}])
def test_what_is_no_such_bert_keeps_its_own_pass(settings: dict[str, Any]) -> None:
    assert not can_fuse(make_backbone("bert", **settings))


def test_code_of_a_checkpoint_keeps_its_own_pass() -> None:
    """It may call itself BERT and have layers of its own."""
    backbone = make_backbone("bert")
    backbone.__class__ = type("BertModel", (type(backbone),), {"__module__": "transformers_modules.somebody"})
    assert not can_fuse(backbone)
    assert not can_fuse(FusedBert(make_backbone("bert")))


def test_another_architecture_and_adapters_keep_their_own_pass() -> None:
    assert not can_fuse(AutoModel.from_config(AutoConfig.for_model("mpnet", num_hidden_layers=1, vocab_size=50)))
    peft = pytest.importorskip("peft")
    backbone = make_backbone("bert")
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["query"]), backbone)
    assert not can_fuse(backbone)


def test_a_processor_keeps_the_networks_own_pass() -> None:
    backbone = make_backbone("bert")
    assert fused(backbone, "cpu", torch.bfloat16) is backbone


def test_a_pass_that_agrees_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_bert, "attend", attention_of_segments)
    assert isinstance(checked(make_backbone("bert"), "cpu"), FusedBert)


@pytest.mark.parametrize("factor", [1.5, float("nan")])
def test_a_pass_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(fused_bert, "attend", lambda *texts: factor * attention_of_segments(*texts))
    backbone = make_backbone("bert")
    with pytest.warns(UserWarning, match="the fused pass differs by"):
        assert checked(backbone, "cpu") is backbone


def test_without_the_kernel_the_network_keeps_its_own_pass() -> None:
    """PyTorch has that kernel for GPUs alone."""
    backbone = make_backbone("bert")
    with pytest.warns(UserWarning, match="keeps the network's own pass"):
        assert checked(backbone, "cpu") is backbone


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_vectors_on_a_gpu_are_as_near_to_the_exact_ones_as_without(
    tiny_checkpoint: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    config = ModelConfig(checkpoint=tiny_checkpoint, passage=SideConfig(max_length=24))
    DualEncoder.from_config(config, seed=1).save(tmp_path, build_tokenizers(config))
    tokens = load_tokenizer(tmp_path, "passage")(None, [make_sentence(at, 1 + at % 17) for at in range(40)])

    def encode(dtype: str) -> np.ndarray:
        # So small a budget makes batches of many shapes.
        return np.asarray(InferenceEncoder(tmp_path, "passage", dtype, "cuda", 64).encode(tokens), dtype=np.float32)

    exact, quick = encode("float32"), encode(dtype)
    monkeypatch.setattr(fused_bert, "can_fuse", lambda backbone: False)
    own = encode(dtype)
    assert not np.array_equal(quick, own)
    assert np.abs(quick - exact).mean() < 1.5 * np.abs(own - exact).mean()
