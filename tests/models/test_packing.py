"""Batches without padding give the vectors of padded ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raydr.data.vector_sets import VectorSets
from raydr.errors import ModelError
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.inference import InferenceEncoder
from raydr.models.packing import pack, plan_packs, use_packed_attention
from tests.conftest import make_sentence
from tests.made import tokens_from_lists

TITLES = [make_sentence(at, 3) if at % 3 else "" for at in range(40)]
TEXTS = [make_sentence(at, 1 + at % 17) for at in range(40)]
VARIANTS: dict[str, dict[str, Any]] = {
    "mean, cosine": {},
    "cls, dot": {"pooling": "cls", "similarity": "dot", "scale": 1},
    "last": {"pooling": "last"},
    "projection": {"projection": 8, "similarity": "dot"},
    "title as first segment": {"title": "pair"},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "multi": {"score": {"name": "multi", "num_vectors": 5}},
    "multi, codes": {"score": {"name": "multi", "vectors": "codes"}},
    "sum of max": {"score": "sum_of_max"},
}


def saved(folder, checkpoint: str, **changes: Any) -> str:
    config = ModelConfig.model_validate({"checkpoint": checkpoint, "passage": SideConfig(max_length=24), **changes})
    DualEncoder.from_config(config, seed=1).save(folder, build_tokenizers(config))
    return str(folder)


def roberta(folder, tiny_checkpoint: str) -> str:
    """A RoBERTa, whose positions begin after the padding's, with the same tokenizer."""
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    torch.manual_seed(0)
    model = RobertaModel(
        RobertaConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=130, type_vocab_size=1, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def both(folder: str, dtype: str = "float32", device: str = "cpu", budget: int = 64) -> list[np.ndarray]:
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    return [
        InferenceEncoder(folder, "passage", dtype, device, budget, 1, batching).encode(tokens).astype(np.float32)
        for batching in ("padded", "packed")
    ]


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("budget", [10, 64, 10_000])
def test_the_same_vectors_as_with_padding(variant, budget, tmp_path, tiny_checkpoint):
    padded, packed = both(saved(tmp_path / "model", tiny_checkpoint, **VARIANTS[variant]), budget=budget)
    # The last digit of half precision.
    np.testing.assert_allclose(packed, padded, atol=2e-3)
    assert np.abs(padded).sum(axis=1).min() > 0.1


@pytest.mark.invariant
@pytest.mark.parametrize("variant", SEVERAL)
def test_the_same_several_vectors_as_with_padding(variant, tmp_path, tiny_checkpoint):
    folder = saved(tmp_path / "model", tiny_checkpoint, **SEVERAL[variant])
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    padded, packed = (
        InferenceEncoder(folder, "passage", "float32", "cpu", 64, 1, batching).encode(tokens)
        for batching in ("padded", "packed")
    )
    assert isinstance(padded, VectorSets)
    assert isinstance(packed, VectorSets)
    assert packed.lengths.tolist() == padded.lengths.tolist()
    most = {"multi": 5, "multi, codes": 8, "sum of max": int(tokens.lengths.max())}[variant]
    assert padded.lengths.max() == most
    np.testing.assert_allclose(packed.vectors_TD, padded.vectors_TD, atol=2e-3)


@pytest.mark.invariant
def test_positions_that_begin_elsewhere(tmp_path, tiny_checkpoint):
    padded, packed = both(saved(tmp_path / "model", roberta(tmp_path / "roberta", tiny_checkpoint)))
    np.testing.assert_allclose(packed, padded, atol=2e-3)


@pytest.mark.invariant
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_same_vectors_on_a_gpu(dtype, tmp_path, tiny_checkpoint):
    folder = saved(tmp_path / "model", tiny_checkpoint)
    exact, _ = both(folder)
    for found in both(folder, dtype, "cuda"):
        np.testing.assert_allclose(found, exact, atol=2e-2)


def test_texts_are_laid_one_after_the_other():
    tokens = tokens_from_lists([[1, 2, 3], [4], [5, 6]])
    packed = pack(tokens, np.array([2, 0]), first_position=2)
    assert packed.input_ids_1T.tolist() == [[5, 6, 1, 2, 3]]
    assert packed.position_ids_1T.tolist() == [[2, 3, 2, 3, 4]]
    assert packed.starts_N1.tolist() == [0, 2, 5]
    assert packed.longest == 3


def test_every_text_is_in_one_pack_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 60, size=200)
    groups = plan_packs(lengths, 100)
    assert sorted(np.concatenate(groups).tolist()) == list(range(200))
    assert max(lengths[group].sum() for group in groups) <= 100
    assert [len(group) for group in plan_packs(np.array([500, 1]), 100)] == [1, 1]


def test_encoders_that_cannot_are_refused():
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

    other = DistilBertModel(DistilBertConfig(vocab_size=10, dim=8, n_layers=1, n_heads=1, hidden_dim=8))
    with pytest.raises(ModelError, match="kinds bert, roberta, xlm-roberta can do, but this one is a distilbert"):
        use_packed_attention(other, "cpu", torch.float32)
    with pytest.raises(ModelError, match="needs bfloat16 or float16 on a GPU"):
        use_packed_attention(
            BertModel(
                BertConfig(
                    vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
                )
            ),
            "cuda",
            torch.float32,
        )
