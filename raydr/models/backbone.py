"""Changes to a loaded Hugging Face encoder: layers, dropout, attention, and the weights that training changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from raydr.errors import ConfigError
from raydr.models.config import CrossEncoderConfig, ModelConfig
from raydr.models.training_config import LoraConfig, OptimizerConfig


def without_pooler(backbone: Any) -> Any:
    """Remove the pooler and return the encoder: a pooler's weights would get no gradient and break DDP."""
    if getattr(backbone, "pooler", None) is not None:
        # Some architectures call it always.
        backbone.pooler = nn.Identity()
    return backbone


def shape_backbone(backbone: Any, config: ModelConfig | CrossEncoderConfig, name: str, section: str = "model") -> None:
    """Cut a backbone to ``num_layers`` and set its dropout.

    Args:
        backbone: encoder, or a model that contains an encoder.
        config: settings of the model.
        name: name of the checkpoint, for messages.
        section: section of the settings, for messages.

    Raises:
        ConfigError: the backbone has fewer layers than ``num_layers``.
    """
    _keep_layers(backbone, config.num_layers, f"{section}.num_layers", name)
    if config.dropout is None:
        return
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.dropout
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"):
        if hasattr(backbone.config, field):
            setattr(backbone.config, field, config.dropout)
    for module in backbone.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = config.dropout


def _keep_layers(backbone: Any, num_layers: int | None, setting: str, name: str) -> None:
    if num_layers is None:
        return
    available = int(backbone.config.num_hidden_layers)
    if num_layers > available:
        raise ConfigError(f"{setting} is {num_layers}, but {name} has {available} layers")
    holder, lists = _layers(backbone, setting, name)
    for attribute, layers in lists.items():
        setattr(holder, attribute, layers[:num_layers])
    backbone.config.num_hidden_layers = num_layers
    # Transformers requires a kind for each layer.
    for field in ("layer_types", "mlp_layer_types"):
        kinds = getattr(backbone.config, field, None)
        if kinds is not None:
            setattr(backbone.config, field, list(kinds)[:num_layers])


def _layers(backbone: Any, setting: str, name: str) -> tuple[nn.Module, dict[str, nn.ModuleList]]:
    """Return the module that holds a backbone's layers, and its lists of layers (some architectures have two).

    Raises:
        ConfigError: the backbone has no such list.
    """
    available = int(backbone.config.num_hidden_layers)
    for module in backbone.modules():
        lists = {
            attribute: child
            for attribute, child in module.named_children()
            if isinstance(child, nn.ModuleList) and len(child) == available
        }
        if lists:
            return module, lists
    raise ConfigError(f"{setting}: found no list of {available} layers in {name}; leave it unset")


def freeze_layers(network: nn.Module, num_layers: int | None, setting: str) -> None:
    """Freeze the embeddings and the first layers of every backbone in a network.

    Frozen weights have neither gradients nor moments of the optimiser.

    Args:
        network: network to train.
        num_layers: number of layers to freeze; 0 freezes the embeddings alone, None nothing.
        setting: key of ``num_layers`` in the config.

    Raises:
        ConfigError: no layer of a backbone would remain.
    """
    from transformers import PreTrainedModel

    if num_layers is None:
        return
    for backbone in network.modules():
        if not isinstance(backbone, PreTrainedModel):
            continue
        name = type(backbone).__name__
        holder, lists = _layers(backbone, setting, name)
        available = int(backbone.config.num_hidden_layers)
        if num_layers >= available:
            raise ConfigError(f"{setting} is {num_layers}, and {name} has {available} layers: none would learn")
        words = backbone.get_input_embeddings()
        below = [
            child
            for child in backbone.children()
            if any(module is words for module in child.modules())
            and all(module is not holder for module in child.modules())
        ]
        for frozen in (words, *below, *(layers[:num_layers] for layers in lists.values())):
            frozen.requires_grad_(False)


def choose_attention(network: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Choose the fastest attention for a device and a dtype; all are equal up to rounding.

    In bfloat16 on a CPU this is plain matrix products: PyTorch's fused kernel is slower, its backward pass several
    times (docs/performance.md). Otherwise the network keeps its attention.
    """
    from transformers import PreTrainedModel

    if device != "cpu" or dtype != torch.bfloat16:
        return
    for module in network.modules():
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")


def check_length(backbone: nn.Module, max_length: int, setting: str, name: str) -> None:
    """Refuse a maximum length beyond the backbone's learnt positions, before a text of that length fails.

    Rotary and relative positions are unlimited.

    Args:
        backbone: loaded model.
        max_length: maximum of tokens of a text.
        setting: key of ``max_length`` in the config.
        name: name of the checkpoint, for messages.

    Raises:
        ConfigError: the backbone has fewer positions than ``max_length``.
    """
    for path, module in backbone.named_modules():
        if not path.endswith(("position_embeddings", "embed_positions")) or not isinstance(module, nn.Embedding):
            continue
        # RoBERTa and its relatives count from after the padding's position, BART from an offset.
        first = getattr(module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1)
        positions = module.num_embeddings - first
        if max_length > positions:
            raise ConfigError(f"{setting} is {max_length}, but {name} has positions for {positions} tokens only")


def recompute_activations(network: nn.Module) -> None:
    """Recompute the activations of every backbone's layers in the backward pass.

    Gradients stay the same: dropout draws the same masks again. Each layer costs a second forward pass.

    Raises:
        ConfigError: a backbone does not support gradient checkpointing.
    """
    from transformers import PreTrainedModel

    for module in network.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        if not module.supports_gradient_checkpointing:
            raise ConfigError(
                f"train.recompute_activations: {type(module).__name__} cannot do that; set it to false, or use "
                "train.cache_tokens"
            )
        module.activation_checkpointing_enable({"use_reentrant": False})


def choose_what_learns(network: nn.Module, config: OptimizerConfig, seed: int, setting: str) -> None:
    """Freeze layers and add adapters by the optimiser's settings; call it before making the optimiser and DDP.

    Args:
        network: network to train, on its device.
        config: settings of the optimiser.
        seed: seed of the adapters' initial weights, equal on every rank and device.
        setting: key of ``config`` in the config.

    Raises:
        ConfigError: nothing would learn, peft is not installed, or a target of the adapters does not exist.
    """
    freeze_layers(network, config.frozen_layers, f"{setting}.frozen_layers")
    if config.lora is None:
        return
    from transformers import PreTrainedModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for encoder in _encoders(network):
            _add_adapters(encoder, config.lora, f"{setting}.lora")
    # A language model's output embeddings are no new head: they stay frozen.
    for module in network.modules():
        words = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
        if words is not None:
            words.requires_grad_(False)


def num_learning(network: nn.Module) -> int:
    """Return the number of weights that training changes, each element counted."""
    return sum(weights.numel() for weights in network.parameters() if weights.requires_grad)


def _encoders(network: nn.Module) -> Iterator[Any]:
    """Yield the Hugging Face encoders of a network, without a classifier's head."""
    from transformers import PreTrainedModel

    inside: set[nn.Module] = set()
    for module in network.modules():
        if isinstance(module, PreTrainedModel) and module not in inside:
            inside.update(module.modules())
            yield module.base_model


def _add_adapters(encoder: Any, config: LoraConfig, setting: str) -> None:
    """Put an adapter beside each target's weights, W + alpha/rank · B·A, and freeze all others.

    A is drawn and B is 0, so that the outputs of the network do not change.

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (ICLR 2022).
    """
    from transformers.pytorch_utils import Conv1D

    try:
        import peft
    except ImportError:
        raise ConfigError(
            f"{setting} needs the package peft, which is not installed: pip install peft, or raydr with the extra lora"
        ) from None
    linear = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    targets = set(linear)
    if config.targets != "all-linear":
        matches = {target: {name for name in linear if f".{name}".endswith(f".{target}")} for target in config.targets}
        for target, names in matches.items():
            if not names:
                layers = sorted({name.rpartition(".")[2] for name in linear})
                raise ConfigError(
                    f"{setting}.targets: {type(encoder).__name__} has no linear layer {target!r}; it has "
                    f"{', '.join(layers)}"
                )
        targets = set().union(*matches.values())
    learning = sorted(name for name in targets if linear[name].weight.requires_grad)
    if not learning:
        raise ConfigError(f"{setting}: all layers of {type(encoder).__name__} that it names are frozen")
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=learning,
        fan_in_fan_out=isinstance(linear[learning[0]], Conv1D),
    )
    peft.inject_adapter_in_model(adapters, encoder)


def merge_adapters(network: nn.Module) -> None:
    """Add all adapters of a network to the weights beside them, which restores the loaded architecture."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for encoder in _encoders(network):
        del encoder.peft_config
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BaseTunerLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
