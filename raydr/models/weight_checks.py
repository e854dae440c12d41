"""Checks of loaded weights against the files of their checkpoint.

Transformers warns of weights that are missing or left over, converts integers to floats and reads NaN; the network then
gives other vectors. Here each is an error that names the weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from raydr.errors import ModelError

#: Names of weights in a message.
_NAMED = 3
#: Types of weights that are the numbers themselves; others need a scale, which is kept elsewhere.
_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: Names of weight files, one of which a checkpoint has, in Transformers' order.
_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def check_adapters(network: Any, what: str) -> None:
    """Refuse a network with adapters from the checkpoint: a saved copy of it would not open.

    Raises:
        ModelError: it has some.
    """
    if getattr(network, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"{what} has adapters beside its weights (adapter_config.json): merge them (PEFT's merge_and_unload), and "
            "save the whole model"
        )


def check_weights(network: nn.Module, info: Mapping[str, Any], what: str, is_new: Callable[[str], bool]) -> None:
    """Compare a network's weights with those of its files, by name and shape.

    Args:
        network: as loaded.
        info: ``missing_keys``, ``unexpected_keys`` and ``mismatched_keys``, as Transformers reports them.
        what: the checkpoint, for messages.
        is_new: whether a weight may be missing, by its name.

    Raises:
        ModelError: a weight is missing or has another shape. Or the files have weights that would be left out: of a
            further layer, or beside those of a layer, as LoRA's and the scales of quantised weights are.
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
    """Refuse weights whose stored numbers are not their values, such as those of int8, or that are stored twice.

    Args:
        network: as loaded from ``source``; if its config names a quantisation, Transformers has undone it.
        source: a folder or a name on the hub.
        what: the checkpoint, for messages.

    Raises:
        ModelError: names the weight.
    """
    from transformers.modeling_utils import load_state_dict
    from transformers.utils import cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    if getattr(network.config, "quantization_config", None) is not None:
        return
    files = (
        # As for the load itself: a hub that is away now does not matter where the files are kept.
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
    # With the module's name: buffers of masks are called ``bias`` too.
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
        ModelError: names the weight and its type.
    """
    if not isinstance(value, Tensor) or value.dtype not in _PLAIN:
        kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        raise ModelError(
            f"{what}: {key} is stored as {kind} in {file}, and without its scale these are no weights. Save the model "
            "in float32, float16 or bfloat16"
        )


def check_values(network: nn.Module, what: str) -> None:
    """Refuse NaN and infinities, which would become vectors.

    Raises:
        ModelError: names the weights.
    """
    bad = [
        key for key, value in network.named_parameters() if value.dtype in _PLAIN and not torch.isfinite(value).all()
    ]
    if bad:
        raise ModelError(
            f"{what}: {_first(bad)}{_and_others(len(bad), _NAMED)} has values that are NaN or infinite: its training "
            "diverged or its file is damaged. Take an earlier state of it"
        )


def _inside(network: nn.Module, keys: Iterable[str]) -> Iterator[str]:
    """Yield the names that belong to a layer of the network, or to a further layer of its kind.

    Heads and buffers of other classes (``cls.``, ``position_ids``) are none of these.
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
