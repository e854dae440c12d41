"""Checks of loaded weights against the files of their checkpoint.

Transformers only warns of missing and surplus weights, and accepts integers and NaN; the network's vectors are then
wrong. Here each of these is an error that names the weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from raydr.errors import ModelError

#: Maximum of names in a message.
_NAMED = 3
#: Types whose numbers are the weights themselves; numbers of other types have a scale besides.
_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: Names of weight files in the order of Transformers, which reads the first that exists.
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def check_adapters(network: Any, what: str) -> None:
    """Refuse a network with adapters from the checkpoint, since a saved copy could not be opened.

    Raises:
        ModelError: the network has adapters.
    """
    if getattr(network, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"{what} has adapters beside its weights (adapter_config.json): merge them (PEFT's merge_and_unload), and "
            "save the whole model"
        )


def check_weights(network: nn.Module, info: Mapping[str, Any], what: str, is_new: Callable[[str], bool]) -> None:
    """Compare a network's weights with those of its files, by name and shape.

    Args:
        network: loaded network.
        info: ``missing_keys``, ``unexpected_keys`` and ``mismatched_keys``, as Transformers reports them.
        what: name of the checkpoint, for messages.
        is_new: function from a weight's name to whether the weight may be missing.

    Raises:
        ModelError: a weight is missing or has another shape, or the files hold surplus weights. These belong to a
            further layer, or to a layer besides its weights, such as LoRA's or the scales of a quantisation.
    """
    if mismatched := sorted(info["mismatched_keys"]):
        key, stored, expected = mismatched[0]
        raise ModelError(
            f"{what}: {key} has the shape {tuple(stored)} in its files and {tuple(expected)} by its config.json"
            f"{_and_others(len(mismatched))}. The two belong to different models: fetch or save both again"
        )
    others = info["unexpected_keys"]
    if missing := sorted(key for key in info["missing_keys"] if not is_new(key)):
        text = f"{what} lacks {len(missing)} weights of its architecture: {_first(missing)}"
        if others:
            text += f". Its files have others, such as {_first(others)}"
        raise ModelError(f"{text}. Save it with the names that its class has (save_pretrained)")
    if left_over := list(_inside(network, others)):
        raise ModelError(
            f"{what}: {_first(left_over)} in its files{_and_others(len(left_over), _NAMED)} would be left out, since "
            "the architecture of its config.json has no such weights. Give the config.json that it was saved with; "
            "merge adapters first, and undo a quantisation. For fewer layers, set num_layers"
        )


def check_types(network: Any, source: str, what: str) -> None:
    """Refuse weights whose stored numbers are not their values, such as int8, and weights that are stored twice.

    Args:
        network: network loaded from ``source``; Transformers has undone a quantisation that its config names.
        source: folder or name on the hub.
        what: name of the checkpoint, for messages.

    Raises:
        ModelError: a weight has such a type, or is stored twice.
    """
    from transformers.modeling_utils import load_state_dict
    from transformers.utils import cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    if getattr(network.config, "quantization_config", None) is not None:
        return
    files = (
        # As in the load itself, cached files suffice if the hub cannot be reached.
        cached_file(
            source, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        for name in _FILES
    )
    file = next(filter(None, files), None)
    if file is None:
        return
    paths = get_checkpoint_shard_files(source, file)[0] if file.endswith(".json") else [file]
    start = f"{network.base_model_prefix}."
    own = {key.removeprefix(start) for key in network.state_dict()}
    # With the module's name, since buffers of masks are named ``bias`` too.
    weights, seen = {_last_two(key) for key, _ in network.named_parameters()}, set[str]()
    for path in paths:
        for key, value in load_state_dict(path, map_location="meta").items():
            if _last_two(key) in weights:
                check_type(key, value, path, what)
            name = key.removeprefix(start)
            if name in own and name in seen:
                raise ModelError(f"{what} has {name} twice, with and without {start!r} in front: keep one of them")
            seen.add(name)


def check_type(key: str, value: Any, file: str, what: str) -> None:
    """Refuse a weight whose stored numbers are not its values.

    Raises:
        ModelError: the weight has such a type.
    """
    if not isinstance(value, Tensor) or value.dtype not in _PLAIN:
        kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        raise ModelError(
            f"{what}: {key} is stored as {kind} in {file}, and without its scale these are no weights. Save the model "
            "in float32, float16 or bfloat16"
        )


def check_values(network: nn.Module, what: str) -> None:
    """Refuse weights with NaN or infinite values.

    Raises:
        ModelError: a weight has such a value.
    """
    bad = [
        key for key, value in network.named_parameters() if value.dtype in _PLAIN and not torch.isfinite(value).all()
    ]
    if bad:
        raise ModelError(
            f"{what}: {_first(bad)}{_and_others(len(bad), _NAMED)} has values that are NaN or infinite: its training "
            "diverged or its file is damaged. Use an earlier state of the model"
        )


def _inside(network: nn.Module, keys: Iterable[str]) -> Iterator[str]:
    """Yield the names of weights that belong to a layer of the network, or to a further layer of its kind.

    Heads and buffers of other classes (``cls.``, ``position_ids``) do not belong to such a layer.
    """
    start = f"{getattr(network, 'base_model_prefix', '')}."
    holders = {name.removeprefix(start) for name, module in network.named_modules() if name and module._parameters}
    kinds = {_any_layer(name.removeprefix(start)) for name in network.state_dict()}
    for key in sorted(keys):
        words = key.removeprefix(start).split(".")
        above = {".".join(words[:num]) for num in range(1, len(words))}
        if above & holders or _any_layer(".".join(words)) in kinds:
            yield key


def _last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _any_layer(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)


def _first(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_NAMED]) + (", …" if len(ordered) > _NAMED else "")


def _and_others(number: int, named: int = 1) -> str:
    return f" ({number - named} others too)" if number > named else ""
