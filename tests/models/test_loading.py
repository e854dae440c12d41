"""Every weight of a network comes from the files, or they are refused; encoder-decoders give their encoder's states."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from models.test_architectures import checkpoint
from models.test_checkpoint_settings import TEXTS, sentence_transformer, vectors
from raydr.errors import ModelError
from raydr.models.config import CrossEncoderConfig, ModelConfig
from raydr.models.cross_encoder import CrossEncoder
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tower
from raydr.models.weight_checks import check_types

WEIGHTS = "model.safetensors"


def renamed(source: str, folder: Path, rename: Callable[[str], str | None]) -> str:
    """A copy of a checkpoint in which weights have other names, or are gone."""
    shutil.copytree(source, folder)
    weights = load_file(folder / WEIGHTS)
    named = {rename(key): value for key, value in weights.items()}
    save_file({key: value for key, value in named.items() if key}, folder / WEIGHTS, metadata={"format": "pt"})
    return str(folder)


def short(checkpoint: str, **settings: Any) -> ModelConfig:
    """A config with as many tokens as the tiny checkpoints have positions for."""
    length = {"max_length": 64}
    return ModelConfig.model_validate({"checkpoint": checkpoint, "query": length, "passage": length, **settings})


def ranker_config(checkpoint: str) -> CrossEncoderConfig:
    return CrossEncoderConfig(checkpoint=checkpoint, max_length=64)


def with_prefix(prefix: str) -> Callable[[str], str]:
    return lambda key: prefix + key


@pytest.mark.invariant
@pytest.mark.parametrize("prefix", ["encoder.", "module.", "module.bert.", "bert.", "_orig_mod.", "0.auto_model."])
def test_a_prefix_that_all_names_share_is_left_out(prefix: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    other = renamed(tiny_checkpoint, tmp_path / "other", with_prefix(prefix))
    mine, expected = vectors(short(other)), vectors(short(tiny_checkpoint))
    for side in mine:
        np.testing.assert_array_equal(mine[side], expected[side])
    # What is saved has the names of the class.
    config = short(other)
    DualEncoder.from_config(config).save(tmp_path / "saved", build_tokenizers(config))
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "saved" / WEIGHTS)


WRONG: dict[str, tuple[Callable[[str], str | None], str]] = {
    "other names": (lambda key: key.replace("attention.self", "attn"), r"lacks 12 weights.*attention\.self\.key\.bias"),
    "a layer is gone": (lambda key: None if "layer.1." in key else key, r"lacks 16 weights.*layer\.1\."),
    "one weight is gone": (lambda key: None if "word_embeddings" in key else key, r"lacks 1 weights.*word_embeddings"),
    "two encoders": (lambda key: ("a." if "layer" in key else "b.") + key, r"lacks \d+ weights.*Its files have others"),
}


@pytest.mark.invariant
@pytest.mark.parametrize("case", WRONG)
def test_weights_that_are_not_there_are_named(case: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    rename, message = WRONG[case]
    other = renamed(tiny_checkpoint, tmp_path / "other", rename)
    with pytest.raises(ModelError, match=rf"model\.checkpoint '{other}' {message}"):
        DualEncoder.from_config(short(other))
    two = short(tiny_checkpoint, passage_checkpoint=other, towers="two")
    with pytest.raises(ModelError, match=rf"model\.checkpoint '{other}' {message}"):
        DualEncoder.from_config(two)
    # The head of a ranker is new, what is below it is not.
    with pytest.raises(ModelError, match=r"cross-encoder .* lacks"):
        CrossEncoder.from_config(ranker_config(other))


def stored(source: str, folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> str:
    """A copy of a checkpoint with other tensors in its file."""
    shutil.copytree(source, folder)
    weights = change({key: value.clone() for key, value in load_file(folder / WEIGHTS).items()})
    save_file({key: value.clone() for key, value in weights.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    return str(folder)


QUERY = "encoder.layer.0.attention.self.query.weight"
Weights = dict[str, torch.Tensor]
OTHER_TENSORS: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "integers": (lambda own: own | {QUERY: own[QUERY].to(torch.int8)}, rf"{QUERY} is stored as int8 in .*{WEIGHTS}"),
    "booleans": (lambda own: own | {QUERY: own[QUERY] > 0}, rf"{QUERY} is stored as bool"),
    "float8": (lambda own: own | {QUERY: own[QUERY].to(torch.float8_e4m3fn)}, r"is stored as float8_e4m3fn"),
    "NaN": (lambda own: own | {QUERY: own[QUERY] * torch.nan}, rf"{QUERY} has values that are NaN"),
    "infinity": (lambda own: own | {QUERY: own[QUERY] + torch.inf}, rf"{QUERY} has values that are NaN or infinite"),
    "LoRA": (lambda own: own | {f"{QUERY[:-6]}lora_A": torch.ones(4, 32)}, r"query\.lora_A in its files would be left"),
    "scales": (lambda own: own | {f"bert.{QUERY}_scale": torch.ones(1)}, r"query\.weight_scale in its files would be"),
    "a further layer": (
        lambda own: own | {key.replace("layer.1.", "layer.2."): value for key, value in own.items()},
        r"encoder\.layer\.2\..* \(13 others too\) would be left out.*set num_layers",
    ),
    "another width": (
        lambda own: own | {QUERY: own[QUERY][:16]},
        rf"{QUERY} has the shape \(16, 32\) in its files and \(32, 32\) by its config\.json",
    ),
    "twice": (lambda own: own | {f"bert.{QUERY}": own[QUERY] + 1}, rf"has {QUERY} twice, with and without 'bert\.'"),
}


@pytest.mark.invariant
@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_a_file_whose_numbers_are_no_weights_is_refused(case: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    change, message = OTHER_TENSORS[case]
    other = stored(tiny_checkpoint, tmp_path / "other", change)
    with pytest.raises(ModelError, match=rf"model\.checkpoint '{other}'.*{message}"):
        DualEncoder.from_config(short(other))
    with pytest.raises(ModelError, match=message if case != "twice" else "twice"):
        CrossEncoder.from_config(ranker_config(other))


@pytest.mark.invariant
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_other_widths_and_leftovers_of_other_classes_are_taken(
    dtype: torch.dtype, tmp_path: Path, tiny_checkpoint: str
) -> None:
    leftovers = {"embeddings.position_ids": torch.arange(128)[None], "cls.predictions.bias": torch.zeros(9)}
    other = stored(
        tiny_checkpoint, tmp_path / "other", lambda own: {key: own[key].to(dtype) for key in own} | leftovers
    )
    np.testing.assert_allclose(vectors(short(other))["query"], vectors(short(tiny_checkpoint))["query"], atol=0.01)


@pytest.mark.parametrize("whole", [True, False])
def test_adapters_beside_the_weights_are_refused(whole: bool, tmp_path: Path, tiny_checkpoint: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "adapted"))
    get_peft_model(AutoModel.from_pretrained(folder), LoraConfig(target_modules=["query"])).save_pretrained(folder)
    if not whole:
        (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"adapters (beside its weights|alone).*merge_and_unload"):
        DualEncoder.from_config(short(str(folder)))


@pytest.mark.parametrize("name", ["GPTNeoX", "GPT2", "GPTNeo"])
def test_buffers_of_masks_that_are_called_bias_are_no_weights(name: str, tmp_path: Path) -> None:
    """Older checkpoints of these keep the causal mask of each layer, as booleans or bytes."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 60}
    own = {"GPT2": {"n_embd": 32, "n_layer": 1, "n_head": 2}, "GPTNeo": {"num_layers": 1, "num_heads": 2}}
    own["GPTNeo"]["attention_types"] = [[["global"], 1]]
    config = getattr(transformers, f"{name}Config")(**{**sizes, **own.get(name, {})})
    model = getattr(transformers, f"{name}Model")(config)
    model.save_pretrained(tmp_path)
    place = {"GPTNeoX": "layers.0.attention", "GPT2": "h.0.attn", "GPTNeo": "h.0.attn.attention"}[name]
    mask = {f"{place}.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8), f"{place}.masked_bias": torch.tensor(-1e9)}
    weights = load_file(tmp_path / WEIGHTS) | mask
    save_file({key: value.clone() for key, value in weights.items()}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    check_types(model, str(tmp_path), "it")
    weights[f"{place}.bias"], projection = mask[f"{place}.bias"], next(key for key in weights if key.endswith("weight"))
    weights[projection] = weights[projection].to(torch.int8)
    save_file({key: value.clone() for key, value in weights.items()}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"it: {projection} is stored as int8"):
        check_types(model, str(tmp_path), "it")


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "pointer"))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
    # That of another program's weights may stay.
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_text(pointer)
    DualEncoder.from_config(short(str(folder)))
    (folder / WEIGHTS).write_text(pointer)
    with pytest.raises(ModelError, match=rf"{folder / WEIGHTS} is a pointer of Git LFS"):
        DualEncoder.from_config(short(str(folder)))


def test_a_pooler_may_be_missing(tmp_path: Path, tiny_checkpoint: str) -> None:
    other = renamed(tiny_checkpoint, tmp_path / "other", lambda key: None if "pooler" in key else key)
    config = short(other)
    model = DualEncoder.from_config(config)
    model.save(tmp_path / "saved", build_tokenizers(config))
    assert not any("pooler" in key for key in load_file(tmp_path / "saved" / WEIGHTS))


def test_a_saved_model_is_whole_or_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    config = short(tiny_checkpoint, projection=8)
    DualEncoder.from_config(config).save(tmp_path / "saved", build_tokenizers(config))
    gone = renamed(str(tmp_path / "saved"), tmp_path / "gone", lambda key: None if "layer.0." in key else key)
    with pytest.raises(ModelError, match=rf"the saved model {gone} lacks 16 weights"):
        load_tower(gone, "query")
    dense = tmp_path / "saved" / "2_Dense" / WEIGHTS
    save_file({"linear.other": torch.zeros(8, 32)}, dense)
    with pytest.raises(ModelError, match=rf"{dense} holds other; expected weight, bias"):
        load_tower(tmp_path / "saved", "query")


def trained_ranker(folder: Path, tiny_checkpoint: str, num_labels: int = 1) -> str:
    from transformers import AutoModelForSequenceClassification

    shutil.copytree(tiny_checkpoint, folder)
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(tiny_checkpoint, num_labels=num_labels).save_pretrained(folder)
    return str(folder)


def test_a_ranker_has_its_head_from_the_file(tmp_path: Path, tiny_checkpoint: str) -> None:
    ranker = trained_ranker(tmp_path / "ranker", tiny_checkpoint)
    ddp = renamed(ranker, tmp_path / "ddp", with_prefix("module."))
    first, second = (
        CrossEncoder.from_config(ranker_config(checkpoint), seed=seed, must_be_trained=True).state_dict()
        for seed, checkpoint in enumerate((ranker, ddp))
    )
    assert all(torch.equal(first[key], second[key]) for key in first)
    headless = renamed(ranker, tmp_path / "headless", lambda key: None if "classifier" in key else key)
    with pytest.raises(ModelError, match=r"lacks 2 weights.*classifier\.bias"):
        CrossEncoder.from_config(ranker_config(headless))


def test_a_ranker_whose_classes_are_the_other_way_round_is_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    ranker = Path(trained_ranker(tmp_path / "ranker", tiny_checkpoint, num_labels=2))
    CrossEncoder.from_config(ranker_config(str(ranker)))
    _with(id2label={"0": "Relevant", "1": "Irrelevant"})(ranker)
    with pytest.raises(ModelError, match=r"has 'Relevant' as its first class \(id2label\)"):
        CrossEncoder.from_config(ranker_config(str(ranker)))


def test_a_ranker_with_a_prompt_is_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    ranker = trained_ranker(tmp_path / "ranker", tiny_checkpoint)
    file = Path(ranker, "config_sentence_transformers.json")
    file.write_text(json.dumps({"prompts": {"ask": "Rank: "}, "default_prompt_name": None}))
    CrossEncoder.from_config(ranker_config(ranker))
    file.write_text(json.dumps({"prompts": {"ask": "Rank: "}, "default_prompt_name": "ask"}))
    with pytest.raises(ModelError, match=r"puts the prompt 'Rank: ' before each pair \(default_prompt_name\)"):
        CrossEncoder.from_config(ranker_config(ranker))
    for content in ('["ask"]', "{", '{"prompts": ["ask"]}'):
        file.write_text(content)
        with pytest.raises(ModelError, match=r"cannot load the cross-encoder"):
            CrossEncoder.from_config(ranker_config(ranker))


def test_dprs_passage_encoder_is_loaded(tmp_path: Path, tiny_checkpoint: str) -> None:
    from transformers import BertConfig, DPRConfig, DPRContextEncoder

    shutil.copytree(tiny_checkpoint, tmp_path / "dpr")
    shape = BertConfig.from_pretrained(tiny_checkpoint).to_dict()
    shape = {key: value for key, value in shape.items() if key not in ("model_type", "architectures", "pooler_fc_size")}
    DPRContextEncoder(DPRConfig(**shape)).save_pretrained(tmp_path / "dpr")
    saved = load_file(tmp_path / "dpr" / WEIGHTS)
    tower = DualEncoder.from_config(short(str(tmp_path / "dpr"), pooling="cls")).tower("passage")
    for key, value in tower.backbone.state_dict().items():
        assert torch.equal(value, saved[f"ctx_encoder.bert_model.{key}"]), key


def _t5(common: dict[str, Any], name: str = "T5") -> Any:
    import transformers

    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": common["vocab_size"]}
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**shape, pad_token_id=0))


def _mt5(common: dict[str, Any]) -> Any:
    return _t5(common, "MT5")


def _t5_encoder(common: dict[str, Any]) -> Any:
    import transformers

    return transformers.T5EncoderModel(_t5(common).config)


def _bart_like(name: str) -> Callable[[dict[str, Any]], Any]:
    def build(common: dict[str, Any]) -> Any:
        import transformers

        sides = {f"{side}_{key}": value for side in ("encoder", "decoder")
                 for key, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 64}.items()}  # fmt: skip
        shape = {"vocab_size": common["vocab_size"], "d_model": 32, "max_position_embeddings": 128, "pad_token_id": 0}
        extra = {"decoder_start_token_id": 0} if name == "Marian" else {}
        return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**shape, **sides, **extra))

    return build


ENCODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "T5": _t5,
    "sentence-t5": _t5_encoder,
    "mT5": _mt5,
    "BART": _bart_like("Bart"),
    "mBART": _bart_like("MBart"),
    "Marian": _bart_like("Marian"),
    "Pegasus": _bart_like("Pegasus"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_the_encoder_of_an_encoder_decoder_is_taken(name: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    from sentence_transformers import SentenceTransformer

    plain = checkpoint(tmp_path / "plain", tiny_checkpoint, ENCODERS[name])
    config = short(plain)
    model = DualEncoder.from_config(config)
    # Shared tensors are saved once, after a step too.
    texts = build_tokenizers(config)["query"](None, TEXTS)
    mine = vectors(config)["query"]
    # These are the encoder's states, as the whole network has them.
    ids = torch.from_numpy(texts.ids[texts.offsets[0] : texts.offsets[1]].astype(np.int64))[None]
    import transformers

    whole = transformers.AutoModel.from_pretrained(plain).eval()
    encoder = whole if name == "sentence-t5" and not hasattr(whole, "decoder") else whole.get_encoder()
    expected = encoder(input_ids=ids).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(mine[0], torch.nn.functional.normalize(expected, dim=0).detach(), atol=1e-5)
    model.save(tmp_path / "saved", build_tokenizers(config))
    again = vectors(short(str(tmp_path / "saved")))["query"]
    np.testing.assert_array_equal(again, mine)
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, mine, atol=1e-5)


@pytest.mark.parametrize("name", ["T5", "sentence-t5", "mT5", "Marian"])
def test_a_sentence_transformers_folder_of_it_gives_its_own_vectors(
    name: str, tmp_path: Path, tiny_checkpoint: str
) -> None:
    from sentence_transformers import SentenceTransformer

    plain = checkpoint(tmp_path / "plain", tiny_checkpoint, ENCODERS[name])
    dense = {"out_features": 8, "bias": False, "activation_function": torch.nn.Identity()}
    folder = sentence_transformer(tmp_path / "st", plain, dense=dense, normalize=True, max_seq_length=64)
    theirs = SentenceTransformer(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors(short(folder))["query"], theirs, atol=1e-5)


def test_vectors_of_a_decoder_are_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    plain = checkpoint(tmp_path / "plain", tiny_checkpoint, ENCODERS["BART"])
    folder = sentence_transformer(tmp_path / "st", plain, normalize=True, max_seq_length=64)
    with pytest.raises(ValueError, match=r"the states of its decoder.*set model\.pooling"):
        ModelConfig(checkpoint=folder)
    mine = vectors(short(folder, pooling="mean"))["query"]
    np.testing.assert_allclose(mine, vectors(short(plain))["query"], atol=1e-5)


def test_damaged_weights_end_in_one_line(tmp_path: Path, tiny_checkpoint: str) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "cut")
    whole = (tmp_path / "cut" / WEIGHTS).read_bytes()
    for content in (b"", whole[:100], whole[: len(whole) // 2], b"\xff" * 64):
        (tmp_path / "cut" / WEIGHTS).write_bytes(content)
        for load in (
            lambda: DualEncoder.from_config(short(str(tmp_path / "cut"))),
            lambda: CrossEncoder.from_config(ranker_config(str(tmp_path / "cut"))),
        ):
            with pytest.raises(ModelError, match=r"^cannot load .*cut'"):
                load()
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    (tmp_path / "cut" / WEIGHTS).write_bytes(whole)
    (tmp_path / "cut" / "config.json").write_text(json.dumps(config | {"hidden_size": "many"}))
    with pytest.raises(ModelError, match=r"^cannot load model\.checkpoint"):
        DualEncoder.from_config(short(str(tmp_path / "cut")))


def _link_to_zeros(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("/dev/zero")


def _pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"a": Path("x")}, folder / "pytorch_model.bin")


def _with(**settings: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))

    return change


def _with_file(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "a link to zeros": _link_to_zeros,
    "a pipe": _pipe,
    "pickled objects": _pickled,
    "no heads": _with(num_attention_heads=0),
    "negative layers": _with(num_hidden_layers=-3),
    "too many layers": _with(num_hidden_layers=10**9),
    "a width that is a word": _with(hidden_size="many"),
    "a boolean": _with(num_hidden_layers=True),
    "another vocabulary": _with(vocab_size=10),
    "a kind that there is not": _with(model_type="nothing"),
    "a list as config": _with_file("config.json", b"[1]"),
    "depth": _with_file("config.json", b"[" * 100_000),
    "a broken tokenizer": _with_file("tokenizer.json", b"{"),
    "a key of the tokenizer": _with_file("tokenizer_config.json", b'{"add_special_tokens": false}'),
    "a tokenizer of junk": _with_file("tokenizer.json", b"\xff\xfe\x00"),
    "a list as raydr.json": _with_file("raydr.json", b"[3]"),
    "junk as raydr.json": _with_file("raydr.json", b"\xff"),
    "depth in raydr.json": _with_file("raydr.json", b'{"a":' * 50_000),
    "types in raydr.json": _with_file("raydr.json", b'{"pooling": 3}'),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_that_means_harm_is_refused(case: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "hostile"))
    HOSTILE[case](folder)
    with pytest.raises((ModelError, ValidationError)) as refused:
        config = short(str(folder))
        DualEncoder.from_config(config)
        build_tokenizers(config)
    # A setting of a wrong type is named as one of the config.
    assert ("pooling" if case == "types in raydr.json" else "hostile") in str(refused.value)


def test_a_tokenizer_of_another_model_is_named(tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "other"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["river"] = 9000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    tokenize = build_tokenizers(short(str(folder)))["query"]
    tokenize(None, ["the city"])
    with pytest.raises(ModelError, match=r"has the id 9000 for 'river', and the model has embeddings of \d+ tokens"):
        tokenize(None, ["the river"])
