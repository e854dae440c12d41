"""Tiny copies of the encoders that the field uses: raydr gives the vectors that sentence-transformers gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.test_checkpoint_settings import TEXTS, sentence_transformer, vectors
from raydr.errors import ModelError
from raydr.models.config import CrossEncoderConfig, ModelConfig
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer, log_odds
from raydr.models.dual_encoder import DualEncoder
from raydr.models.tokens import Tokenizer

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def _xlm_roberta(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import XLMRobertaConfig, XLMRobertaModel

    return XLMRobertaModel(XLMRobertaConfig(**common, max_position_embeddings=130, type_vocab_size=1))


def _modernbert(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import ModernBertConfig, ModernBertModel

    ends = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return ModernBertModel(ModernBertConfig(**common, **ends, global_attn_every_n_layers=2, local_attention=8))


def _squeezebert(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import SqueezeBertConfig, SqueezeBertModel

    groups = dict.fromkeys(["q", "k", "v", "post_attention", "intermediate", "output"], 1)
    return SqueezeBertModel(
        SqueezeBertConfig(**common, embedding_size=32, **{f"{name}_groups": num for name, num in groups.items()})
    )


def _qwen3(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(Qwen3Config(**common, num_key_value_heads=1, head_dim=16))


def _fnet(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import FNetConfig, FNetModel

    return FNetModel(FNetConfig(**common, max_position_embeddings=130))


def _convbert(common: dict[str, Any]) -> torch.nn.Module:
    from transformers import ConvBertConfig, ConvBertModel

    return ConvBertModel(ConvBertConfig(**common, embedding_size=32, max_position_embeddings=130))


INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
#: By a model that is made so: its architecture, and what its folder says of vectors and prompts.
MODELS: dict[str, tuple[Callable[[dict[str, Any]], torch.nn.Module], dict[str, Any]]] = {
    "multilingual E5": (_xlm_roberta, {"prompts": {"query": "query: ", "passage": "passage: "}}),
    "BGE-M3": (_xlm_roberta, {"pooling": {"pooling_mode": "cls"}}),
    "GTE ModernBERT": (_modernbert, {"pooling": {"pooling_mode": "cls"}}),
    "Nomic's ModernBERT": (_modernbert, {"prompts": {"query": "search_query: ", "passage": "search_document: "}}),
    "a pooler that is always called": (_squeezebert, {}),
    "Qwen3-Embedding": (_qwen3, {"pooling": {"pooling_mode": "lasttoken"}, "prompts": {"query": INSTRUCTION}}),
}


def checkpoint(folder: Path, tiny_checkpoint: str, build: Callable[[dict[str, Any]], torch.nn.Module]) -> str:
    """The tiny checkpoint's tokenizer, which pads on the left as decoders' do, and another architecture."""
    shutil.copytree(tiny_checkpoint, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    side = "left" if build is _qwen3 else "right"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": side}))
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    torch.manual_seed(0)
    build({"vocab_size": vocabulary, "pad_token_id": 0, **SIZE}).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    from sentence_transformers import SentenceTransformer

    build, made = MODELS[name]
    plain = checkpoint(tmp_path / "plain", tiny_checkpoint, build)
    folder = sentence_transformer(tmp_path / "st", plain, normalize=True, max_seq_length=120, **made)
    mine, theirs = vectors(ModelConfig(checkpoint=folder)), SentenceTransformer(folder, device="cpu")
    expected = {
        "query": theirs.encode_query(TEXTS),
        "passage": theirs.encode(TEXTS, prompt_name="passage" if theirs.prompts.get("passage") else None),
    }
    for side, vectors_ND in mine.items():
        np.testing.assert_allclose(vectors_ND, expected[side], atol=2e-5)
    # Texts differ by what they say.
    assert np.abs(mine["query"][0] - mine["query"][1]).max() > 1e-3


@pytest.mark.invariant
@pytest.mark.parametrize("build", [_fnet, _convbert])
def test_an_encoder_whose_vectors_depend_on_padding_is_refused(
    build: Callable[[dict[str, Any]], torch.nn.Module], tmp_path: Path, tiny_checkpoint: str
) -> None:
    config = ModelConfig.model_validate(
        {"checkpoint": checkpoint(tmp_path / "plain", tiny_checkpoint, build), "passage": {"max_length": 64}}
    )
    with pytest.raises(ModelError, match=r"\((fnet|convbert)\) gives a text other vectors beside longer texts"):
        DualEncoder.from_config(config)


@pytest.mark.invariant
@pytest.mark.parametrize("padding", [None, -1, 0, 7])
def test_a_pair_has_one_score_whatever_pads_it(padding: int | None, tmp_path: Path, tiny_checkpoint: str) -> None:
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    def decoder(common: dict[str, Any]) -> torch.nn.Module:
        config = Qwen3Config(**common | {"pad_token_id": padding}, num_key_value_heads=1, head_dim=16, num_labels=1)
        return Qwen3ForSequenceClassification(config)

    config = CrossEncoderConfig(checkpoint=checkpoint(tmp_path / "ranker", tiny_checkpoint, decoder), max_length=100)
    model, tokenizer = CrossEncoder.from_config(config, must_be_trained=True).eval(), PairTokenizer(config)

    def scores(texts: list[str]) -> list[float]:
        tokens = tokenizer(["king"] * len(texts), [""] * len(texts), texts)
        return list(log_odds(model, tokens, 4096, tokenizer.pad_id))

    together, alone = scores(TEXTS), [scores([text])[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert len(set(together)) == len(TEXTS)


def test_a_tokenizer_with_token_types_of_its_own_is_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    """Funnel's and XLNet's first token has a type of its own, and other types give other vectors."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "funnel")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"]["single"][0]["SpecialToken"]["type_id"] = 2
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | names))
    with pytest.raises(ModelError, match=r"gives a text token types other than 0 \(\[2, 0, 0\]\)"):
        Tokenizer(folder, trust_remote_code=False)
