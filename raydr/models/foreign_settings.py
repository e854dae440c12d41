"""The files of sentence-transformers and PyLate beside a checkpoint's weights, as settings of the section ``model``.

- ``modules.json`` and the files that it names: how hidden states become a vector;
- ``config_sentence_transformers.json``: prompts, similarity, and number of kept dimensions;
- ``sentence_bert_config.json``: how texts become tokens.

A key that raydr cannot follow is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Names of the prompts of a side, in the order of ``encode_query`` and ``encode_document`` of sentence-transformers.
_PROMPTS = {"query": ("query",), "passage": ("document", "passage", "corpus")}
#: raydr's pooling by sentence-transformers' names.
_POOLING = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_OLD_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING_KEYS = ("pooling_mode", "word_embedding_dimension", "embedding_dimension", "include_prompt")
#: Sequences of modules that compute a vector as raydr does; it joins linear layers into one.
_CHAIN = re.compile(r"Transformer → Pooling( → Dense)*( → Normalize)?")
_DENSE_MODEL = "SentenceTransformer"
#: Names of the Transformer module's file; old models have the architecture in it.
_TRANSFORMER_FILES = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
#: Architectures that learn positions from 0, and those that learn positions from after the padding's.
#: :func:`raydr.models.backbone.check_length` checks other architectures once they are loaded.
_FROM_0 = ("albert", "bert", "distilbert", "electra", "ernie")
_BEHIND_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")
#: Maximum of tokens of a text in raydr.
_LONGEST = 8192
#: Encoder-decoders of which sentence-transformers opens the encoder alone.
ENCODERS_ALONE = ("blenderbot", "blenderbot-small", "m2m_100", "marian", "pegasus", "pegasus_x", "prophetnet")
_ENCODER_CLASSES = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "t5gemma")
#: Keys of ``sentence_bert_config.json`` that raydr follows, or that change no vector.
_TEXT_KEYS = frozenset((
    "max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name", "unpad_inputs",
    "query_length", "document_length", "query_expansion", "backend",
))  # fmt: skip
#: Keys of its sections that change no vector.
_LOADING_KEYS = frozenset((
    "attn_implementation", "dtype", "torch_dtype", "device_map", "trust_remote_code", "use_fast", "padding_side",
    "add_pooling_layer", "cache_dir", "revision", "token", "local_files_only", "use_cache", "subfolder",
))  # fmt: skip
_SECTIONS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")

Read = Callable[[str], Any]


@dataclass
class CheckpointSettings:
    """The settings that a checkpoint holds beside its weights.

    Args:
        settings: settings of the section ``model``, by dotted key.
        refused: problems of the checkpoint, by the setting of raydr that avoids them.
        dense: folder below the checkpoint, and width, of each linear layer after pooling, in order.
        unknown: whether the settings could not be read, since the hub cannot be reached.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    dense: list[tuple[str, int]] = field(default_factory=list)
    unknown: bool = False


def read_modules(read: Read, modules: Any, checkpoint: CheckpointSettings) -> None:
    """Add the settings in ``modules.json`` and the files beside it to ``checkpoint``.

    Args:
        read: function from a path below the checkpoint to the content of a JSON file; None if the file is missing.
        modules: content of ``modules.json``.
        checkpoint: settings to complete.

    Raises:
        ValueError: a file has another structure than sentence-transformers writes.
    """
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError("modules.json holds no list of modules")
    kinds = [_kind(str(module.get("type", ""))) for module in modules]
    paths = [str(module.get("path") or "") for module in modules]
    _read_transformer(read, checkpoint)
    # Dropout acts in training alone, by a setting of raydr.
    if not _CHAIN.fullmatch(" → ".join(kind for kind in kinds if kind != "Dropout")) or paths[0]:
        checkpoint.refused["pooling"] = (
            f"makes its vectors by {' → '.join(kinds)}, and raydr by Transformer → Pooling, optionally with Dense and "
            "Normalize after it: set model.pooling to make them in raydr's way"
        )
    else:
        folders = list(zip(kinds, paths, strict=True))
        _read_pooling(_section(read, f"{dict(folders)['Pooling']}/config.json"), checkpoint)
        for folder in (path for kind, path in folders if kind == "Dense"):
            _read_dense(_section(read, f"{folder}/config.json"), folder, checkpoint)
        if "Normalize" in kinds:
            checkpoint.settings["similarity"] = "cosine"
    config = _section(read, "config_sentence_transformers.json")
    if (kind := config.get("model_type", _DENSE_MODEL)) != _DENSE_MODEL:
        checkpoint.refused.setdefault(
            "pooling",
            f"is a {kind} (model_type), and a {_DENSE_MODEL} is expected: set model.pooling to take its encoder",
        )
    _read_vectors(config, checkpoint)


def _kind(module: str) -> str:
    """Return the class name of a module of sentence-transformers or PyLate; of other modules the whole path."""
    package, _, name = module.rpartition(".")
    return name if package.partition(".")[0] in ("sentence_transformers", "pylate") else module


def _section(read: Read, file: str) -> dict[str, Any]:
    """Read a file that holds an object; empty if the file is missing.

    Raises:
        ValueError: the file holds no object.
    """
    content = read(file)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds a {type(content).__name__} where an object is expected")
    return content


def _whole_number(config: Mapping[str, Any], key: str) -> int | None:
    """Read a whole number from 1; None if the key is not set.

    Raises:
        ValueError: the value is no such number.
    """
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} is {value!r} where a whole number from 1 is expected")
    return value


def positions_of(backbone: Mapping[str, Any]) -> int | None:
    """Return the maximum of tokens that an encoder reads, by its ``config.json``; None if unlimited or unknown.

    >>> positions_of({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})
    512
    """
    if backbone.get("position_embedding_type", "absolute") != "absolute":
        return None
    kind, positions = backbone.get("model_type"), backbone.get("max_position_embeddings")
    if kind not in (*_FROM_0, *_BEHIND_PADDING) or not isinstance(positions, int):
        return None
    return positions - (int(backbone.get("pad_token_id") or 0) + 1 if kind in _BEHIND_PADDING else 0)


def _read_transformer(read: Read, checkpoint: CheckpointSettings) -> None:
    config = next((section for name in _TRANSFORMER_FILES if (section := _section(read, name))), {})
    tokenizer, backbone = _section(read, "tokenizer_config.json"), _section(read, "config.json")
    longest = _whole_number(config, "max_seq_length") or min(
        (
            int(most)
            for most in (tokenizer.get("model_max_length"), backbone.get("max_position_embeddings"))
            if isinstance(most, int | float) and 0 < most < 1e9
        ),
        default=None,
    )
    for side, key in (("query", "query_length"), ("passage", "document_length")):
        length = _whole_number(config, key) or longest
        if length:
            # RoBERTa's own positions, of which some are the padding's, are often written as the length.
            checkpoint.settings[f"{side}.max_length"] = min(length, positions_of(backbone) or length, _LONGEST)
    task = config.get("transformer_task", "feature-extraction")
    if task != "feature-extraction" or config.get("query_expansion"):
        checkpoint.refused["pooling"] = f"is made for {task}, with queries of its own kind: set model.pooling"
    elif problem := _other_states(config, backbone) or _other_texts(config):
        checkpoint.refused["pooling"] = f"{problem}: set model.pooling to make vectors in raydr's way"
    if config.get("do_lower_case") and not _lowers(read, tokenizer):
        checkpoint.refused["query.prefix"] = (
            "converts texts to lower case before its tokenizer, which raydr does not: set model.query.prefix and "
            "model.passage.prefix to use it without"
        )


def _other_states(config: Mapping[str, Any], backbone: Mapping[str, Any]) -> str:
    """Return how the pooled states differ from those of the encoder's last layer; empty if they are the same."""
    text = (config.get("modality_config") or {}).get("text") or {}
    method, output = text.get("method", "forward"), text.get("method_output_name", "last_hidden_state")
    kind = backbone.get("model_type")
    is_half = backbone.get("is_encoder_decoder") and kind not in (*ENCODERS_ALONE, *_ENCODER_CLASSES)
    if is_half and (method, output) == ("forward", "last_hidden_state"):
        return f"makes its vectors from the states of its decoder ({kind}), and raydr from those of its encoder"
    if (method, output) != ("forward", "encoder_last_hidden_state" if is_half else "last_hidden_state"):
        return f"takes {output} of {method} (modality_config), and raydr the last hidden states"
    if (name := config.get("module_output_name", "token_embeddings")) != "token_embeddings":
        return f"has module_output_name {name}, and raydr pools the vectors of tokens"
    return ""


def _other_texts(config: Mapping[str, Any]) -> str:
    """Return a line on the keys that change texts or layers and that raydr cannot follow; empty without such keys."""
    keys = [key for key, value in config.items() if value and key not in (*_TEXT_KEYS, *_SECTIONS)]
    for section in _SECTIONS:
        own = config.get(section) or {}
        keys += [f"{section}.{key}" for key, value in own.items() if value is not None and key not in _LOADING_KEYS]
    return f"sets {', '.join(keys)} in {_TRANSFORMER_FILES[0]}, which raydr does not obey" if keys else ""


def _lowers(read: Read, tokenizer: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer converts texts to lower case."""
    if tokenizer.get("do_lower_case"):
        return True
    normalizer = _section(read, "tokenizer.json").get("normalizer") or {}
    return any(
        part.get("type") == "Lowercase" or (part.get("type") == "BertNormalizer" and part.get("lowercase"))
        for part in [normalizer, *(normalizer.get("normalizers") or [])]
    )


def _read_pooling(config: Mapping[str, Any], checkpoint: CheckpointSettings) -> None:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    unknown = [key for key, value in config.items() if value and key not in (*_POOLING_KEYS, *_OLD_POOLING)]
    if unknown:
        checkpoint.refused["pooling"] = (
            f"sets {', '.join(unknown)} for its Pooling, which raydr does not obey: set model.pooling"
        )
    elif not config.get("include_prompt", True):
        checkpoint.refused["pooling"] = "leaves the prompt out of pooling, which raydr does not: set model.pooling"
    elif len(modes) == 1 and modes[0] in _POOLING:
        checkpoint.settings["pooling"] = _POOLING[modes[0]]
    else:
        known = ", ".join(_POOLING.values())
        checkpoint.refused["pooling"] = (
            f"pools by {', '.join(modes)}, and raydr by {known}: set model.pooling to take one of these"
        )


def _read_dense(config: Mapping[str, Any], folder: str, checkpoint: CheckpointSettings) -> None:
    names = [
        f"{key} {config[key]}"
        for key in ("module_input_name", "module_output_name")
        if config.get(key) not in (None, "sentence_embedding")
    ]
    if names:
        checkpoint.refused["projection"] = f"has a Dense layer with {', '.join(names)}: set model.projection"
        return
    activation = str(config.get("activation_function", "")).rpartition(".")[2] or "Tanh"
    if config.get("use_residual"):
        problem = "a residual"
    elif activation not in ("Identity", "Tanh"):
        problem = f"the activation {activation}"
    else:
        problem = "the activation Tanh before another Dense layer" if "activation" in checkpoint.settings else ""
    if problem:
        checkpoint.settings.pop("activation", None)
        checkpoint.refused["projection"] = (
            f"has a Dense layer with {problem}, and raydr has linear layers, perhaps with Tanh behind the last: set "
            "model.projection, null to leave it out"
        )
    elif (width := _whole_number(config, "out_features")) is None:
        raise ValueError(f"{folder}/config.json has no out_features")
    else:
        checkpoint.settings |= {"projection": width} | ({"activation": "tanh"} if activation == "Tanh" else {})
        checkpoint.dense.append((folder, width))


def _read_vectors(config: Mapping[str, Any], checkpoint: CheckpointSettings) -> None:
    """Read similarity, truncation and prompts."""
    dim, normalized = _whole_number(config, "truncate_dim"), "similarity" in checkpoint.settings
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in ("cosine", "dot"):
        checkpoint.refused["similarity"] = f"compares by {similarity}, and raydr by cosine or dot: set model.similarity"
    elif dim is not None and normalized and similarity == "dot":
        checkpoint.refused["similarity"] = (
            f"keeps {dim} dimensions of vectors of length 1 (truncate_dim) and compares them by dot, and raydr "
            "normalises after truncation: set model.similarity"
        )
    else:
        checkpoint.settings["similarity"] = "cosine" if normalized else similarity
    if dim is not None:
        checkpoint.settings["truncate_dim"] = dim
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ValueError("prompts of config_sentence_transformers.json is no object")
    name = config.get("default_prompt_name") or ""
    if name and name not in prompts:
        checkpoint.refused["query.prefix"] = (
            f"names {name} as default_prompt_name and has no such prompt: set model.query.prefix and "
            "model.passage.prefix"
        )
    for side, names in _PROMPTS.items():
        own = [prompts[role] or "" for role in names if role in prompts]
        # A model trained with the prompt "passage" may be saved with an empty "document" beside it.
        checkpoint.settings[f"{side}.prefix"] = next(filter(None, own), "" if own else prompts.get(name) or "")
