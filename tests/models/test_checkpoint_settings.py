"""What a checkpoint brings: settings, and vectors as sentence-transformers gives them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, ModelError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.checkpoint_settings import hub_file, replaced
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.inference import encode_tokens

TEXTS = ["the red river flows", "king", "a very long text about the old castle on the mountain " * 6, "alpha beta"]


def sentence_transformer(
    folder: Path,
    checkpoint: str,
    *,
    pooling: dict[str, Any] | None = None,
    dense: dict[str, Any] | list[dict[str, Any]] | None = None,
    normalize: bool = False,
    **changes: Any,
) -> str:
    """A folder as sentence-transformers writes it; ``changes`` go into its two config files."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(3)
    transformer = Transformer(checkpoint)
    modules: list[Any] = [transformer, Pooling(32, **(pooling or {}))]
    width = 32
    for layer in [dense] if isinstance(dense, dict) else dense or []:
        modules.append(Dense(width, **layer))
        width = layer["out_features"]
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    for file, keys in {
        "config_sentence_transformers.json": ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"),
        "sentence_bert_config.json": (
            "max_seq_length",
            "do_lower_case",
            "tokenizer_args",
            "processing_kwargs",
            "modality_config",
            "new_key",
        ),
    }.items():
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | {key: changes[key] for key in keys if key in changes}))
    return str(folder)


def vectors(config: ModelConfig) -> dict[str, np.ndarray]:
    model, tokenizers = DualEncoder.from_config(config).eval(), build_tokenizers(config)
    return {
        "query": encode_tokens(model.tower("query"), tokenizers["query"](None, TEXTS), 64, 0, "query"),
        "passage": encode_tokens(model.tower("passage"), tokenizers["passage"](None, TEXTS), 64, 0, "passage"),
    }


BROUGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "E5": (
        {"normalize": True, "prompts": {"query": "query: ", "passage": "passage: "}, "max_seq_length": 24},
        {"pooling": "mean", "similarity": "cosine", "prefixes": ("query: ", "passage: "), "lengths": (24, 24)},
    ),
    "BGE": (
        {"pooling": {"pooling_mode": "cls"}, "normalize": True, "prompts": {"query": "find "}, "max_seq_length": 24},
        {"pooling": "cls", "similarity": "cosine", "prefixes": ("find ", ""), "lengths": (24, 24)},
    ),
    "last token": (
        {"pooling": {"pooling_mode": "lasttoken"}, "normalize": True, "prompts": {"query": "Instruct: find\nQuery:"}},
        {"pooling": "last", "similarity": "cosine", "prefixes": ("Instruct: find\nQuery:", "")},
    ),
    "dot": (
        {"pooling": {"pooling_mode": "cls"}, "similarity_fn_name": "dot"},
        {"pooling": "cls", "similarity": "dot", "prefixes": ("", ""), "lengths": (128, 128)},
    ),
    "dense": (
        {"dense": {"out_features": 8, "activation_function": torch.nn.Identity()}, "similarity_fn_name": "dot"},
        {"pooling": "mean", "similarity": "dot", "projection": 8},
    ),
    "dense without bias": (
        {"dense": {"out_features": 8, "bias": False, "activation_function": None}, "similarity_fn_name": "dot"},
        {"projection": 8},
    ),
    "EmbeddingGemma": (
        {
            "dense": [
                {"out_features": 64, "activation_function": None},
                {"out_features": 24, "bias": False, "activation_function": torch.nn.Identity()},
            ],
            "normalize": True,
        },
        {"projection": 24, "similarity": "cosine"},
    ),
    "LaBSE": (
        {"pooling": {"pooling_mode": "cls"}, "dense": {"out_features": 32}, "normalize": True},
        {"projection": 32, "activation": "tanh", "similarity": "cosine"},
    ),
    "two layers, Tanh behind the last": (
        {
            "dense": [{"out_features": 64, "activation_function": None}, {"out_features": 8}],
            "similarity_fn_name": "dot",
        },
        {"projection": 8, "activation": "tanh"},
    ),
    "more tokens than positions": ({"max_seq_length": 514, "similarity_fn_name": "dot"}, {"lengths": (128, 128)}),
    "prompt of both sides": (
        {"similarity_fn_name": "dot", "prompts": {"all": "x "}, "default_prompt_name": "all"},
        {"prefixes": ("x ", "x ")},
    ),
}


@pytest.mark.invariant
@pytest.mark.parametrize("name", BROUGHT)
def test_a_sentence_transformers_folder_gives_its_own_vectors(name: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    from sentence_transformers import SentenceTransformer

    made, expected = BROUGHT[name]
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, **made)
    config = ModelConfig(checkpoint=folder)
    settings = {
        "pooling": config.pooling,
        "similarity": config.similarity,
        "projection": config.projection,
        "activation": config.activation,
        "prefixes": (config.query.prefix, config.passage.prefix),
        "lengths": (config.query.max_length, config.passage.max_length),
    }
    assert {key: settings[key] for key in expected} == expected
    assert replaced(config.model_dump()) == ""
    assert config.is_retriever
    mine, theirs = vectors(config), SentenceTransformer(folder, device="cpu")
    prompts = theirs.prompts
    of_query = theirs.encode_query(TEXTS) if prompts["query"] else theirs.encode(TEXTS)
    of_passage = theirs.encode(TEXTS, prompt_name="passage" if prompts.get("passage") else None)
    np.testing.assert_allclose(mine["query"], of_query, atol=1e-5)
    np.testing.assert_allclose(mine["passage"], of_passage, atol=1e-5)
    DualEncoder.from_config(config).save(tmp_path / "saved", build_tokenizers(config))
    reopened = ModelConfig(checkpoint=str(tmp_path / "saved"))
    assert reopened.activation == config.activation
    np.testing.assert_allclose(vectors(reopened)["query"], mine["query"], atol=1e-6)
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(saved.encode_query(TEXTS), mine["query"], atol=1e-5)


def test_the_config_takes_the_place_of_what_is_brought_and_says_so(tmp_path: Path, tiny_checkpoint: str) -> None:
    made = {"pooling": {"pooling_mode": "cls"}, "prompts": {"query": "find "}, "similarity_fn_name": "dot"}
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, max_seq_length=24, **made)
    raw = {"checkpoint": folder, "pooling": "mean", "query": {"prefix": "q: "}, "passage": {"max_length": 16}}
    config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "x"}}, "model": raw}).model
    assert (config.pooling, config.similarity) == ("mean", "dot")
    assert not config.is_retriever
    assert config.query == SideConfig(prefix="q: ", max_length=24)
    assert config.passage == SideConfig(prefix="", max_length=16)
    message = replaced(config.model_dump())
    assert message.startswith(f"the section model takes the place of what {folder} brings: ")
    for change in ("pooling 'mean' (not 'cls')", "query.prefix 'q: ' (not 'find ')", "passage.max_length 16 (not 24)"):
        assert change in message
    assert "similarity" not in message
    # What was resolved stays so, also where the folder is gone.
    shutil.rmtree(folder)
    assert ModelConfig.model_validate(config.model_dump()) == config


def test_a_raydr_model_brings_its_settings(tmp_path: Path, tiny_checkpoint: str) -> None:
    side = {"prefix": "p: ", "max_length": 24}
    config = ModelConfig.model_validate(
        {"checkpoint": tiny_checkpoint, "pooling": "cls", "similarity": "dot", "projection": 8, "scale": 5}
        | {"title": "pair", "query": side, "passage": side}
    )
    DualEncoder.from_config(config).save(tmp_path / "model", build_tokenizers(config))
    again = ModelConfig(checkpoint=str(tmp_path / "model"))
    assert again == config.model_copy(update={"checkpoint": str(tmp_path / "model")})
    cosine = ModelConfig(checkpoint=str(tmp_path / "model"), similarity="cosine")
    assert (cosine.similarity, cosine.pooling) == ("cosine", "cls")
    assert replaced(cosine.model_dump()).endswith(": similarity 'cosine' (not 'dot')")


@pytest.mark.parametrize(
    ("made", "message", "instead"),
    [
        (
            {"pooling": {"pooling_mode": "max"}},
            r"pools by max, and raydr by mean, cls, last: set model\.pooling",
            "pooling",
        ),
        ({"pooling": {"include_prompt": False}}, r"leaves the prompt out of pooling", "pooling"),
        ({"similarity_fn_name": "euclidean"}, r"compares by euclidean, and raydr by cosine or dot", "similarity"),
        (
            {"dense": {"out_features": 8, "activation_function": torch.nn.ReLU()}},
            r"has a Dense layer with the activation ReLU",
            "projection",
        ),
        (
            {"dense": [{"out_features": 8}, {"out_features": 8, "activation_function": None}]},
            r"has a Dense layer with the activation Tanh before another",
            "projection",
        ),
        (
            {"dense": {"out_features": 8, "activation_function": None, "module_output_name": "other"}},
            r"has a Dense layer with module_output_name other",
            "projection",
        ),
        ({"normalize": True, "similarity_fn_name": "manhattan"}, r"compares by manhattan", "similarity"),
        (
            {"normalize": True, "similarity_fn_name": "dot", "truncate_dim": 8},
            r"keeps 8 dimensions of vectors of length 1 \(truncate_dim\) and compares them by dot",
            "similarity",
        ),
        ({"tokenizer_args": {"model_max_length": 9}}, r"sets tokenizer_args\.model_max_length in", "pooling"),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, r"sets processing_kwargs in", "pooling"),
        ({"new_key": "x"}, r"sets new_key in sentence_bert_config\.json, which raydr does not obey", "pooling"),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            r"takes pooler_output of forward \(modality_config\)",
            "pooling",
        ),
    ],
)
def test_what_cannot_be_done_as_the_checkpoint_asks_is_refused(
    made: dict[str, Any], message: str, instead: str, tmp_path: Path, tiny_checkpoint: str
) -> None:
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, **made)
    with pytest.raises(ValidationError, match=rf"checkpoint {folder} {message}"):
        ModelConfig(checkpoint=folder)
    values: dict[str, Any] = {"pooling": "mean", "similarity": "dot", "projection": None}
    config = ModelConfig.model_validate({"checkpoint": folder, instead: values[instead]})
    assert f"model.{instead}, since {folder}" in replaced(config.model_dump())


def test_modules_that_raydr_has_not_are_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, normalize=True)
    modules = json.loads(Path(folder, "modules.json").read_text())
    modules.insert(2, {"idx": 9, "name": "9", "path": "9_LayerNorm", "type": "sentence_transformers.models.LayerNorm"})
    Path(folder, "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValidationError, match=r"by Transformer → Pooling → LayerNorm → Normalize, and raydr by"):
        ModelConfig(checkpoint=folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_latent": True}, r"sets pooling_mode_latent for its Pooling"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, r"is a SparseEncoder \(model_type\)"),
    ],
)
def test_keys_of_other_models_are_refused(
    file: str, change: dict[str, Any], message: str, tmp_path: Path, tiny_checkpoint: str
) -> None:
    folder = Path(sentence_transformer(tmp_path / "st", tiny_checkpoint))
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | change))
    with pytest.raises(ValidationError, match=message):
        ModelConfig(checkpoint=str(folder))
    assert ModelConfig(checkpoint=str(folder), pooling="mean").pooling == "mean"


def test_the_linear_layer_of_a_colbert_is_not_left_out_without_a_word(tmp_path: Path, tiny_checkpoint: str) -> None:
    """ColBERT's own files have no modules.json: their linear layer is a weight beside those of BERT."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "colbert")
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(shape | {"architectures": ["HF_ColBERT"]}))
    with pytest.raises(ValidationError, match=r"is a ColBERT, whose linear layer .* set model\.projection"):
        ModelConfig.model_validate({"checkpoint": str(folder), "score": "sum_of_max", "passage": {"max_length": 32}})
    config = ModelConfig.model_validate({"checkpoint": str(folder), "projection": None, "passage": {"max_length": 32}})
    assert "model.projection, since" in replaced(config.model_dump())


DENSE_FILES: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "integers": ({"linear.weight": torch.ones(8, 32, dtype=torch.int8)}, r"weight is stored as int8"),
    "NaN": ({"linear.weight": torch.full((8, 32), torch.nan)}, r"weight has values that are NaN"),
    "another width": ({"linear.weight": torch.ones(8, 16)}, r"weight has the shape \(8, 16\) in .* and \(8, 32\)"),
    "other names": ({"module.linear.weight": torch.ones(8, 32)}, r"holds module\.linear\.weight; expected"),
}


@pytest.mark.invariant
@pytest.mark.parametrize("case", DENSE_FILES)
def test_the_weights_of_a_dense_layer_are_checked(case: str, tmp_path: Path, tiny_checkpoint: str) -> None:
    tensors, message = DENSE_FILES[case]
    dense = {"out_features": 8, "activation_function": None}
    folder = Path(sentence_transformer(tmp_path / "st", tiny_checkpoint, dense=dense))
    save_file(tensors, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelError, match=rf"the Dense layer of model\.checkpoint {folder} in 2_Dense: .*{message}"):
        DualEncoder.from_config(ModelConfig(checkpoint=str(folder)))


def test_a_module_of_another_package_is_not_taken_for_its_namesake(tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint)
    modules = json.loads(Path(folder, "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    Path(folder, "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValidationError, match=r"by custom_st\.Transformer → Pooling, and raydr by"):
        ModelConfig(checkpoint=folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", {"idx": 0}),
        ("modules.json", ["x"]),
        ("config_sentence_transformers.json", ["x"]),
        ("config_sentence_transformers.json", {"prompts": "query: "}),
        ("config_sentence_transformers.json", {"truncate_dim": 8.5}),
        ("config_sentence_transformers.json", {"truncate_dim": "8"}),
        ("config_sentence_transformers.json", {"truncate_dim": True}),
        ("sentence_bert_config.json", {"max_seq_length": "128"}),
        ("sentence_bert_config.json", {"modality_config": 3}),
        ("1_Pooling/config.json", 3),
    ],
)
def test_files_of_another_shape_are_named(file: str, content: Any, tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint)
    Path(folder, file).write_text(json.dumps(content))
    with pytest.raises(ValidationError, match=rf"checkpoint {folder}: its files for sentence-transformers are damaged"):
        ModelConfig(checkpoint=folder)


def test_lower_case_by_the_tokenizer_itself_is_no_reason_to_refuse(tmp_path: Path, tiny_checkpoint: str) -> None:
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, do_lower_case=True)
    assert ModelConfig(checkpoint=folder).pooling == "mean"
    tokenizer = json.loads(Path(folder, "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValidationError, match="converts texts to lower case"):
        ModelConfig(checkpoint=folder)


@pytest.mark.invariant
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("projection", [16, None])
def test_the_first_dimensions_of_a_vector(
    normalize: bool, projection: int | None, tmp_path: Path, tiny_checkpoint: str
) -> None:
    from sentence_transformers import SentenceTransformer

    dense = {"out_features": projection, "activation_function": None} if projection else None
    similarity = "cosine" if normalize else "dot"
    made = {"dense": dense, "normalize": normalize, "similarity_fn_name": similarity, "max_seq_length": 24}
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, truncate_dim=8, **made)
    config = ModelConfig(checkpoint=folder)
    assert config.truncate_dim == 8
    theirs = SentenceTransformer(folder, device="cpu")
    expected = theirs.encode(TEXTS, normalize_embeddings=normalize)
    mine = vectors(config)["query"]
    assert mine.shape == expected.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(mine, expected, atol=1e-5)
    np.testing.assert_allclose(mine @ mine.T, theirs.similarity(expected, expected), atol=1e-5)
    # A saved model has all that it learnt, and says how much of it is used; that may be changed.
    DualEncoder.from_config(config).save(tmp_path / "saved", build_tokenizers(config))
    saved = str(tmp_path / "saved")
    opened = SentenceTransformer(saved, device="cpu")
    np.testing.assert_allclose(opened.encode(TEXTS, normalize_embeddings=normalize), mine, atol=1e-5)
    np.testing.assert_array_equal(vectors(ModelConfig(checkpoint=saved))["query"], mine)
    whole = vectors(ModelConfig(checkpoint=saved, truncate_dim=None))["query"]
    assert whole.shape == (len(TEXTS), projection or 32)
    np.testing.assert_allclose(whole, vectors(ModelConfig(checkpoint=folder, truncate_dim=None))["query"], atol=1e-5)
    # More than there are is all of them, as there.
    assert vectors(ModelConfig(checkpoint=folder, truncate_dim=500))["query"].shape == whole.shape


def test_vectors_of_tokens_are_not_truncated(tiny_checkpoint: str) -> None:
    short = {"max_length": 64}
    raw = {"checkpoint": tiny_checkpoint, "truncate_dim": 8, "score": "sum_of_max", "query": short, "passage": short}
    with pytest.raises(ValidationError, match="truncate_dim: score sum_of_max reads the vectors of all tokens"):
        ModelConfig.model_validate(raw)


def test_two_towers_take_each_their_own(tmp_path: Path, tiny_checkpoint: str) -> None:
    prompts = {"query": "q: ", "passage": "p: "}
    query_folder = sentence_transformer(tmp_path / "one", tiny_checkpoint, prompts=prompts, max_seq_length=24)
    other = sentence_transformer(tmp_path / "other", tiny_checkpoint, prompts=prompts, max_seq_length=48)
    config = ModelConfig(checkpoint=query_folder, passage_checkpoint=other, towers="two")
    assert (config.query, config.passage) == (
        SideConfig(prefix="q: ", max_length=24),
        SideConfig(prefix="p: ", max_length=48),
    )
    cls = sentence_transformer(tmp_path / "cls", tiny_checkpoint, pooling={"pooling_mode": "cls"})
    with pytest.raises(ValidationError, match=r"brings pooling 'mean', and passage_checkpoint .* 'cls'"):
        ModelConfig(checkpoint=query_folder, passage_checkpoint=cls, towers="two")


def test_a_name_on_the_hub_brings_what_was_kept_of_it(
    tmp_path: Path, tiny_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = Path(sentence_transformer(tmp_path / "st", tiny_checkpoint, pooling={"pooling_mode": "cls"}))

    def metadata(url: str, **settings: Any) -> None:
        name, _, file = url.rpartition("/resolve/main/")
        if name.endswith("somebody/far-away"):
            raise ConnectionError("away")
        if not (folder / file).exists():
            raise huggingface_hub.errors.EntryNotFoundError(file)

    kept: list[str] = []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(folder / file))
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda name, file: str(folder / file) if file in kept else None,
    )
    assert ModelConfig(checkpoint="somebody/something").pooling == "cls"
    assert ModelConfig(checkpoint="somebody/far-away").pooling == "mean"
    # Weights that were kept without what belongs to them.
    kept.append("config.json")
    hub_file.cache_clear()
    config = ModelConfig(checkpoint="somebody/far-away", passage=SideConfig(max_length=64))
    assert config.pooling == "mean"
    assert "far-away cannot be reached now, so that it is not known whether" in replaced(config.model_dump())
    kept += ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
    hub_file.cache_clear()
    assert ModelConfig(checkpoint="somebody/far-away").pooling == "cls"
    hub_file.cache_clear()


def test_a_checkpoint_in_a_store_is_that_of_the_folder(tmp_path: Path, tiny_checkpoint: str) -> None:
    dense = {"out_features": 8, "activation_function": None}
    made: dict[str, Any] = {"prompts": {"query": "find "}, "pooling": {"pooling_mode": "cls"}, "dense": dense}
    folder = sentence_transformer(tmp_path / "st", tiny_checkpoint, similarity_fn_name="dot", **made)
    store, url = fsspec.filesystem("memory"), f"memory://{tmp_path.name}/st"
    store.put(f"{folder}/", url, recursive=True)
    here, there = ModelConfig(checkpoint=folder), ModelConfig(checkpoint=url)
    assert there.model_dump(exclude={"checkpoint"}) == here.model_dump(exclude={"checkpoint"})
    assert there.is_retriever
    assert checkpoint_fingerprint(there) == checkpoint_fingerprint(here)
    np.testing.assert_array_equal(vectors(there)["query"], vectors(here)["query"])
    DualEncoder.from_config(here).save(tmp_path / "saved", build_tokenizers(here))
    store.put(f"{tmp_path}/saved/", f"{url}-saved", recursive=True)
    saved = ModelConfig(checkpoint=f"{url}-saved")
    assert (saved.pooling, saved.projection) == ("cls", 8)
    np.testing.assert_array_equal(vectors(saved)["passage"], vectors(here)["passage"])
    with pytest.raises(ModelError, match="the checkpoint memory://nothing does not exist"):
        vectors(ModelConfig(checkpoint="memory://nothing"))


def test_the_settings_of_a_checkpoint_whose_store_is_away_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that submits a job may not reach the bucket of the cluster."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    config = ModelConfig(checkpoint="s3://away/bert")
    assert "s3://away/bert cannot be reached now" in replaced(config.model_dump())
    with pytest.raises(ArtifactError, match="cannot reach s3://away/bert"):
        vectors(config)
