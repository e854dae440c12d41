"""The parts of a network that learn: all of it, its upper layers, or low-rank adapters beside its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from raydr.errors import ConfigError
from raydr.models.backbone import freeze_layers
from raydr.models.training_config import LoraConfig, OptimizerConfig


def choose_what_learns(network: nn.Module, config: OptimizerConfig, seed: int, setting: str) -> None:
    """Freeze layers and add adapters as the optimiser's settings say; before the optimiser and DDP see the network.

    Args:
        network: that will be trained, on its device.
        config: the optimiser's.
        seed: of the adapters' first weights, equal on every rank and device.
        setting: its key in the config.

    Raises:
        ConfigError: nothing would learn, peft is not installed, or a layer is named that is not there.
    """
    freeze_layers(network, config.frozen_layers, f"{setting}.frozen_layers")
    if config.lora is None:
        return
    from transformers import PreTrainedModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for encoder in _encoders(network):
            _add_adapters(encoder, config.lora, f"{setting}.lora")
    # A language model's words are no head of its own: they stay as they are.
    for module in network.modules():
        words = module.get_output_embeddings() if isinstance(module, PreTrainedModel) else None
        if words is not None:
            words.requires_grad_(False)


def num_learning(network: nn.Module) -> int:
    """Count the numbers that training changes."""
    return sum(weights.numel() for weights in network.parameters() if weights.requires_grad)


def _encoders(network: nn.Module) -> Iterator[Any]:
    """Return the Hugging Face encoders of a network, without the heads of a classifier."""
    from transformers import PreTrainedModel

    inside: set[nn.Module] = set()
    for module in network.modules():
        if isinstance(module, PreTrainedModel) and module not in inside:
            inside.update(module.modules())
            yield module.base_model


def _add_adapters(encoder: Any, config: LoraConfig, setting: str) -> None:
    """Put an adapter beside each target's weights, W + alpha/rank · B·A, and freeze all others.

    A is drawn and B is 0, so that the network gives what it gave before.

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
    """Add all adapters of a network to their weights, which restores the loaded architecture."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for encoder in _encoders(network):
        del encoder.peft_config
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BaseTunerLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
