"""A tower on disk, in the layout of sentence-transformers, or of PyLate if every token has a vector.

A vector per text: Transformer, Pooling, Dense (with a projection), Normalize (if the similarity is cosine).
A vector per token: Transformer and Dense in PyLate's layout, and PyLate normalises; sentence-transformers opens it with
``MultiVectorEncoder``. Towers with other vectors have the first layout, and their learnt codes in
``codes.safetensors``. Other programs then read the pooled vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from raydr.errors import ModelError, first_line
from raydr.models.config import SIDES, ModelConfig, Side
from raydr.models.loading import load_head, named_weights, saved_prefix
from raydr.models.tokens import TextTokenizer
from raydr.models.tower import Tower

CODES_FILE = "codes.safetensors"
_SHAPE_FILE = "sentence_bert_config.json"


def save_tower(place: Path, tower: Tower, config: ModelConfig, tokenizer: TextTokenizer, side: Side) -> None:
    """Write weights, tokenizer and the files by which other programs open them.

    Args:
        place: folder to write.
        tower: encoder to save.
        config: config of the model.
        tokenizer: tokenizer of the side.
        side: side of the texts; any side for a shared tower.
    """
    place.mkdir(parents=True, exist_ok=True)
    tower.backbone.config.save_pretrained(place)  # type: ignore[union-attr, operator]
    prefix = saved_prefix(tower.backbone)
    weights = {f"{prefix}{key}": value for key, value in named_weights(tower.backbone).items()}
    _save(place / "model.safetensors", {**weights, **tower.unused})
    tokenizer.tokenizer.save_pretrained(place)
    if codes := _codes(tower):
        _save(place / CODES_FILE, codes)
    lengths = {name: config.side(name).max_length for name in (SIDES if config.towers == "shared" else (side,))}
    shape: dict[str, Any] = {"max_seq_length": max(lengths.values()), "do_lower_case": False}
    if prefix:
        # Other programs open the whole model, whose last states would be the decoder's.
        output = {"method": "forward", "method_output_name": "encoder_last_hidden_state"}
        shape |= {"modality_config": {"text": output}, "module_output_name": "token_embeddings"}
    if config.vectors(side).kind == "tokens":
        _write(place / _SHAPE_FILE, shape)
        _describe_tokens(place, tower, config)
    else:
        if len(lengths) > 1:
            # The maximal lengths of encode_query and encode_document.
            shape |= {"query_length": lengths["query"], "document_length": lengths["passage"]}
        _write(place / _SHAPE_FILE, shape)
        _describe_pooled(place, tower, config, side)


def require_whole(file: Path) -> None:
    """Refuse a file of weights that is missing or incomplete.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        with safe_open(file, framework="pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read {file} ({first_line(error)}): it is damaged or was not copied whole. Copy the model again, "
            "or make it again with --again"
        ) from None


def load_heads(tower: Tower, place: Path) -> None:
    """Load the projection and the codes of a saved tower.

    Raises:
        ModelError: a file is damaged, or its weights do not fit the tower.
    """
    heads: dict[Path, nn.Module] = {}
    if tower.projection is not None:
        heads[next(place.glob("[12]_Dense"), place / "2_Dense") / "model.safetensors"] = tower.projection
    if codes := _codes(tower):
        heads[place / CODES_FILE] = nn.ParameterDict(dict(codes))
    for file, head in heads.items():
        require_whole(file)
        load_head(str(file), head, f"the saved model {place}")


def _codes(tower: Tower) -> dict[Side, nn.Parameter]:
    """Return the learnt codes by side; sides without codes are left out."""
    codes_by_side = {side: tower.reduction(side).codes for side in SIDES if side in tower.reductions}
    return {side: codes for side, codes in codes_by_side.items() if codes is not None}


def _describe_pooled(place: Path, tower: Tower, config: ModelConfig, side: Side) -> None:
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    _write(
        place / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": _hidden(tower),
            "pooling_mode_cls_token": config.pooling == "cls",
            "pooling_mode_mean_tokens": config.pooling == "mean",
            "pooling_mode_lasttoken": config.pooling == "last",
            "include_prompt": True,
        },
    )
    if tower.projection is not None:
        modules.append(("2_Dense", "sentence_transformers.models.Dense"))
        activation = "activation.Tanh" if tower.activation == "tanh" else "linear.Identity"
        _save_dense(place / "2_Dense", tower.projection.weight, tower.projection.bias, activation)
    if tower.normalize:
        modules.append((f"{len(modules)}_Normalize", "sentence_transformers.models.Normalize"))
        (place / modules[-1][0]).mkdir(exist_ok=True)
    _write_modules(place, modules)
    _write(
        place / "config_sentence_transformers.json",
        {
            "prompts": {
                "query": config.query.prefix,
                # encode_document prefers this name.
                "document": config.passage.prefix,
                "passage": config.passage.prefix,
            },
            "default_prompt_name": side if config.towers == "two" and config.side(side).prefix else None,
            "similarity_fn_name": config.similarity,
            **({"truncate_dim": tower.dim} if config.truncate_dim is not None else {}),
        },
    )


def _describe_tokens(place: Path, tower: Tower, config: ModelConfig) -> None:
    """Write PyLate's layout, or for ``similarity: dot``, since PyLate normalises, that of sentence-transformers."""
    # Without a linear layer PyLate would draw a random layer.
    weight, bias = torch.eye(tower.dim), torch.zeros(tower.dim)
    if tower.projection is not None:
        weight, bias = tower.projection.weight.data, tower.projection.bias.data
    settings: dict[str, Any] = {
        "prompts": {"query": config.query.prefix, "document": config.passage.prefix},
        "similarity_fn_name": "MaxSim" if tower.normalize else "maxsim",
    }
    if tower.normalize:
        modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
        settings |= {
            "model_type": "ColBERT", "query_prefix": "", "document_prefix": "",
            "query_length": config.query.max_length, "document_length": config.passage.max_length,
            "attend_to_expansion_tokens": False, "do_query_expansion": False, "skiplist_words": [],
        }  # fmt: skip
        _save_dense(place / "1_Dense", weight, bias)
    else:
        kinds = "sentence_transformers.base.modules.dense.Dense", "sentence_transformers.multi_vector_encoder.modules"
        modules = [
            ("", "sentence_transformers.models.Transformer"), ("1_Dense", kinds[0]),
            ("2_MultiVectorMask", f"{kinds[1]}.multi_vector_mask.MultiVectorMask"),
        ]  # fmt: skip
        settings |= {"model_type": "MultiVectorEncoder"}
        _save_dense(place / "1_Dense", weight, bias, module_input_name="token_embeddings")
        _write(place / "2_MultiVectorMask" / "config.json", {"skiplist_words": []})
    _write_modules(place, modules)
    _write(place / "config_sentence_transformers.json", settings)


def _save_dense(place: Path, weight: Tensor, bias: Tensor, activation: str = "linear.Identity", **more: Any) -> None:
    _write(
        place / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": f"torch.nn.modules.{activation}",
            **more,
        },
    )
    _save(place / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})


def _hidden(tower: Tower) -> int:
    return int(tower.backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]


def _save(path: Path, weights: Mapping[Any, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {key: value.detach().float().cpu().contiguous() for key, value in weights.items()}
    save_file(plain, path, metadata={"format": "pt"})


def _write_modules(place: Path, modules: list[tuple[str, str]]) -> None:
    _write(
        place / "modules.json",
        [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(modules)],
    )


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
