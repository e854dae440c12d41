"""Saving, loading, and agreement with sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raydr.errors import ConfigError, ModelError
from raydr.models.batching import pad_in_groups
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.config import ModelConfig, SideConfig, read_config, tower_folder
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.inference import InferenceEncoder, encode_tokens
from raydr.models.scores.poly import Poly

TEXTS = ["the red river flows", "king", "a very long text about the old castle on the mountain " * 6, "alpha beta"]
TITLES = ["river", "", "castle", "letters"]

VARIANTS: dict[str, dict[str, Any]] = {
    "shared, mean, cosine": {},
    "shared, last": {"pooling": "last"},
    "shared, cls, dot": {"pooling": "cls", "similarity": "dot", "scale": 1},
    "two towers": {"towers": "two"},
    "projection": {"projection": 8, "similarity": "dot"},
    "one layer": {"num_layers": 1},
    "prefixes": {
        "query": SideConfig(prefix="query: ", max_length=24),
        "passage": SideConfig(prefix="p: ", max_length=24),
    },
}

#: Those whose vectors are no sentence's.
SEVERAL: dict[str, dict[str, Any]] = {
    "multi, codes": {"score": {"name": "multi", "vectors": "codes"}},
    "poly": {"score": "poly", "projection": 8},
    "poly, two towers": {"score": "poly", "towers": "two"},
    "genpoly": {"score": {"name": "genpoly", "num_passage_vectors": 4}},
}
TOKENS: dict[str, dict[str, Any]] = {
    "sum of max": {"score": "sum_of_max"},
    "sum of max, dot": {"score": "sum_of_max", "similarity": "dot"},
    "sum of max, prefixes": {"score": "sum_of_max", **VARIANTS["prefixes"]},
    "sum of max, not projected": {"score": "sum_of_max", "projection": None},
    "sum of max, two towers": {"score": "sum_of_max", "towers": "two", "projection": 16},
}


def saved(tmp_path, tiny_checkpoint, **changes) -> tuple[DualEncoder, str]:
    sides = {"query": SideConfig(max_length=24), "passage": SideConfig(max_length=24)}
    config = ModelConfig.model_validate({"checkpoint": tiny_checkpoint, **sides, **changes})
    model = DualEncoder.from_config(config, seed=1).eval()
    if config.towers == "two":
        with torch.no_grad():
            for parameter in model.tower("passage").parameters():
                parameter.mul_(1.1)
    model.save(tmp_path / "model", build_tokenizers(config))
    return model, str(tmp_path / "model")


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
def test_sentence_transformers_gives_the_same_vectors(variant, tmp_path, tiny_checkpoint):
    from sentence_transformers import SentenceTransformer

    model, folder = saved(tmp_path, tiny_checkpoint, **VARIANTS[variant])
    for side in ("query", "passage"):
        encoder = InferenceEncoder(folder, side, "float32", "cpu", token_budget=64)
        mine = encode_tokens(encoder.tower, load_tokenizer(folder, side)(None, TEXTS), 64, encoder.pad_id, side)
        other = SentenceTransformer(str(tower_folder(folder, side)), device="cpu")
        theirs = other.encode(TEXTS, prompt_name=side)
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
        of_side = other.encode_query if side == "query" else other.encode_document
        np.testing.assert_allclose(mine, of_side(TEXTS), atol=1e-5)
    assert model.dim == mine.shape[1]


@pytest.mark.invariant
@pytest.mark.parametrize("variant", TOKENS)
def test_a_program_of_late_interaction_gives_the_same_vectors(variant, tmp_path, tiny_checkpoint):
    """sentence-transformers reads the folders that PyLate writes, and its own."""
    from sentence_transformers import MultiVectorEncoder

    model, folder = saved(tmp_path, tiny_checkpoint, **TOKENS[variant])
    encoded = {}
    for side in ("query", "passage"):
        encoder = InferenceEncoder(folder, side, "float32", "cpu", token_budget=64)
        tokens = load_tokenizer(folder, side)(None, TEXTS)
        encoded[side] = encode_tokens(encoder.tower, tokens, 64, encoder.pad_id, side)
        other = MultiVectorEncoder(str(tower_folder(folder, side)), device="cpu")
        theirs = (other.encode_query if side == "query" else other.encode_document)(TEXTS, convert_to_numpy=True)
        for mine, length, them in zip(encoded[side], tokens.lengths, theirs, strict=True):
            np.testing.assert_allclose(mine[:length], them, atol=1e-5)
            assert not mine[length:].any()
    mine = model.config.score.all_pairs(torch.from_numpy(encoded["query"]), torch.from_numpy(encoded["passage"]))
    if model.config.towers == "shared":
        theirs = other.similarity(other.encode_query(TEXTS), other.encode_document(TEXTS))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_late_interaction_is_saved_as_pylate_does(tmp_path, tiny_checkpoint):
    saved(tmp_path, tiny_checkpoint, score="sum_of_max", projection=16)
    folder = tmp_path / "model"
    modules = json.loads((folder / "modules.json").read_text())
    assert [(module["path"], module["type"].rsplit(".", 1)[1]) for module in modules] == [
        ("", "Transformer"),
        ("1_Dense", "Dense"),
    ]
    assert modules[1]["type"] == "pylate.models.Dense.Dense"
    assert json.loads((folder / "1_Dense" / "config.json").read_text())["out_features"] == 16
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert (settings["query_length"], settings["document_length"]) == (24, 24)
    assert settings["do_query_expansion"] is False


def test_sentence_transformers_cuts_each_side_at_its_own_length(tmp_path, tiny_checkpoint):
    from sentence_transformers import SentenceTransformer

    lengths = {"query": SideConfig(max_length=8), "passage": SideConfig(prefix="the ", max_length=24)}
    _, folder = saved(tmp_path, tiny_checkpoint, **lengths)
    other = SentenceTransformer(folder, device="cpu")
    for side, encode in (("query", other.encode_query), ("passage", other.encode_document)):
        encoder = InferenceEncoder(folder, side, "float32", "cpu", token_budget=64)
        mine = encode_tokens(encoder.tower, load_tokenizer(folder, side)(None, TEXTS), 64, encoder.pad_id, side)
        np.testing.assert_allclose(mine, encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("variant", ["shared, mean, cosine", "two towers", "one layer"])
def test_transformers_finds_all_weights_of_the_architecture(variant, tmp_path, tiny_checkpoint):
    from transformers import AutoModel

    _, folder = saved(tmp_path, tiny_checkpoint, **VARIANTS[variant])
    # Also of a model that started from a saved one.
    again, second = read_config(folder).model_copy(update={"checkpoint": folder}), tmp_path / "again"
    DualEncoder.from_config(again).save(second, build_tokenizers(again))
    for place in (folder, str(second)):
        for side in ("query", "passage"):
            model, report = AutoModel.from_pretrained(tower_folder(place, side), output_loading_info=True)
            assert {key: keys for key, keys in report.items() if keys} == {}
            original = AutoModel.from_pretrained(tiny_checkpoint)
            assert torch.equal(model.pooler.dense.weight, original.pooler.dense.weight)


@pytest.mark.parametrize("variant", VARIANTS | SEVERAL | TOKENS)
def test_a_saved_model_loads_unchanged(variant, tmp_path, tiny_checkpoint):
    model, folder = saved(tmp_path, tiny_checkpoint, **(VARIANTS | SEVERAL | TOKENS)[variant])
    again = DualEncoder.load(folder)
    assert again.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_training_can_start_from_a_saved_model(tmp_path, tiny_checkpoint):
    model, folder = saved(tmp_path, tiny_checkpoint, projection=8)
    again = DualEncoder.from_config(model.config.model_copy(update={"checkpoint": folder, "scale": 5.0}))
    assert again.config.scale == 5.0
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with pytest.raises(ModelError, match="saved with projection=8, the config asks for None"):
        DualEncoder.from_config(model.config.model_copy(update={"checkpoint": folder, "projection": None}))
    with pytest.raises(ModelError, match="saved with codes={}, the config asks for {'query': 16}"):
        DualEncoder.from_config(model.config.model_copy(update={"checkpoint": folder, "score": Poly()}))


def test_a_start_from_a_saved_model_obeys_the_asked_similarity_and_dropout(tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint, similarity="dot", dropout=0.3)
    asked = read_config(folder).model_copy(update={"checkpoint": folder, "similarity": "cosine", "dropout": 0.0})
    model = DualEncoder.from_config(asked)
    assert model.tower("query").normalize
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}


@pytest.mark.invariant
@pytest.mark.parametrize("token_budget", [8, 64, 4096])
def test_vectors_do_not_depend_on_the_batch(token_budget, tmp_path, tiny_checkpoint):
    model, folder = saved(tmp_path, tiny_checkpoint)
    tokenizer = load_tokenizer(folder, "passage")
    together = encode_tokens(
        model.tower("passage"), tokenizer(TITLES, TEXTS), token_budget, tokenizer.pad_id, "passage"
    )
    for at in range(len(TEXTS)):
        alone = encode_tokens(
            model.tower("passage"), tokenizer([TITLES[at]], [TEXTS[at]]), 512, tokenizer.pad_id, "passage"
        )
        np.testing.assert_allclose(together[at], alone[0], atol=1e-5)


@pytest.mark.invariant
def test_groups_of_similar_length_give_the_same_vectors_and_gradients(tmp_path, tiny_checkpoint):
    results = []
    for overhead in (0, 10**9):
        model, folder = saved(tmp_path / str(overhead), tiny_checkpoint)
        tokenizer = load_tokenizer(folder, "passage")
        batch = pad_in_groups(tokenizer(TITLES, TEXTS), tokenizer.pad_id, overhead)
        assert len(batch.groups) == (1 if overhead else 4)
        query_QD, passage_PD = model(batch, batch)
        (query_QD[:2] @ passage_PD.T).square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append([passage_PD, *gradients])
    for grouped, padded in zip(*results, strict=True):
        torch.testing.assert_close(grouped, padded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("title", ["river castle mountain " * 20, "king-queen" * 10, "河" * 60])
def test_a_title_that_fills_the_input_is_cut(title: str, tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint, title="pair")
    tokenizer = load_tokenizer(folder, "passage")
    tokens = tokenizer([title, "river"], ["the old castle", "the old castle"])
    alone = tokenizer(["river"], ["the old castle"])
    assert tokens.lengths.tolist() == [24, int(alone.lengths[0])]
    assert tokens.num_truncated == 1


def test_title_and_text_become_a_pair_of_segments(tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint, title="pair")
    tokenizer = load_tokenizer(folder, "passage")
    tokens = tokenizer(["red river", ""], ["the king", "the king"])
    vocabulary = tokenizer.tokenizer.get_vocab()
    separator = vocabulary["[SEP]"]
    first = tokens.ids[: tokens.offsets[1]].tolist()
    assert [vocabulary[word] for word in ("red", "river")] == first[1:3]
    assert first[3] == separator
    assert tokens.type_starts.tolist() == [4, 2]


def test_joined_titles_are_part_of_the_text(tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint, title_separator=" of ")
    tokenizer = load_tokenizer(folder, "passage")
    assert tokenizer(["king", ""], ["river", "river"]).lengths.tolist() == [5, 3]


def test_cut_texts_are_counted(tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint)
    tokens = load_tokenizer(folder, "passage")(None, TEXTS)
    assert tokens.num_truncated == 1
    assert tokens.lengths.max() == 24


def test_the_format_is_plain_files(tmp_path, tiny_checkpoint):
    saved(tmp_path, tiny_checkpoint)
    modules = json.loads((tmp_path / "model" / "modules.json").read_text())
    assert [module["type"].rsplit(".", 1)[1] for module in modules] == ["Transformer", "Pooling", "Normalize"]
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_wrong_checkpoints_are_named(tmp_path, tiny_checkpoint):
    with pytest.raises(ModelError, match="no/such/folder does not exist"):
        DualEncoder.from_config(ModelConfig(checkpoint="./no/such/folder"))
    with pytest.raises(ConfigError, match="num_layers is 9, but .* has 2 layers"):
        DualEncoder.from_config(
            ModelConfig(checkpoint=tiny_checkpoint, num_layers=9, passage=SideConfig(max_length=24))
        )
    # Said when a config is read; of a config that comes without its checkpoint when that is loaded.
    with pytest.raises(ValidationError, match=r"passage.max_length is 160, but .* has positions for 128 tokens only"):
        ModelConfig(checkpoint=tiny_checkpoint)
    late = ModelConfig().model_copy(update={"checkpoint": tiny_checkpoint})
    with pytest.raises(ConfigError, match=r"model.passage.max_length is 160, but .* has positions for 128 tokens only"):
        DualEncoder.from_config(late)
    with pytest.raises(ModelError, match="holds no raydr model"):
        DualEncoder.load(tiny_checkpoint)


@pytest.mark.parametrize("size", [0, 4, 2000])
def test_weights_that_were_cut_off_are_named(size: int, tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"cannot read .*/model/model\.safetensors .*--again"):
        DualEncoder.load(folder)
    other = Path(shutil.copytree(tiny_checkpoint, tmp_path / "other"))
    (other / "model.safetensors").write_bytes(weights.read_bytes())
    side = SideConfig(max_length=24)
    config = ModelConfig(checkpoint=str(other), query=side, passage=side)
    with pytest.raises(ModelError, match=r"cannot load model\.checkpoint '.*/other'"):
        DualEncoder.from_config(config)
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot load the tokenizer of .*/other"):
        build_tokenizers(config)


def test_a_passage_checkpoint_that_would_not_be_used_is_refused(tmp_path, tiny_checkpoint):
    with pytest.raises(ValidationError, match="passage_checkpoint needs towers: two"):
        ModelConfig(checkpoint=tiny_checkpoint, passage_checkpoint=tiny_checkpoint, passage=SideConfig(max_length=24))
    config = saved(tmp_path, tiny_checkpoint, towers="two")[0].config
    folder = str(tmp_path / "model")
    taken = config.model_copy(update={"checkpoint": folder, "passage_checkpoint": tiny_checkpoint})
    with pytest.raises(ModelError, match="which has its passage tower with it"):
        DualEncoder.from_config(taken)
    two_checkpoints = config.model_copy(update={"passage_checkpoint": folder})
    with pytest.raises(ModelError, match="of which one tower cannot be taken"):
        DualEncoder.from_config(two_checkpoints)


def test_dropout_is_set_everywhere(tiny_checkpoint):
    config = ModelConfig(checkpoint=tiny_checkpoint, dropout=0.3, passage=SideConfig(max_length=128))
    model = DualEncoder.from_config(config).train()
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.3}
    batch = {"input_ids": torch.ones((2, 8), dtype=torch.long), "attention_mask": torch.ones((2, 8), dtype=torch.long)}
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    tower = model.tower("query")
    assert not torch.equal(tower(**batch, side="query"), tower(**batch, side="query"))


@pytest.mark.invariant
def test_bfloat16_attention_gives_the_same_vectors(tmp_path, tiny_checkpoint):
    _, folder = saved(tmp_path, tiny_checkpoint)
    tokens = load_tokenizer(folder, "passage")(TITLES, TEXTS)
    exact = InferenceEncoder(folder, "passage", "float32", "cpu", token_budget=64).encode(tokens)
    encoder = InferenceEncoder(folder, "passage", "bfloat16", "cpu", token_budget=64)
    assert encoder.tower.backbone.config._attn_implementation == "eager"
    np.testing.assert_allclose(encoder.encode(tokens), exact, atol=0.02)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "modeling_own.py"])
def test_another_file_of_weights_or_code_is_another_checkpoint(name: str, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"first")
    config = ModelConfig(checkpoint=str(tmp_path))
    first = checkpoint_fingerprint(config)
    (tmp_path / name).write_bytes(b"second")
    assert checkpoint_fingerprint(config) != first
