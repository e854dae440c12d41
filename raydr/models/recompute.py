"""Activation checkpointing: keep only the inputs of each layer, and compute the rest again in the backward pass."""

from __future__ import annotations

from torch import nn

from raydr.errors import ConfigError


def recompute_activations(network: nn.Module) -> None:
    """Make the layers of every backbone in a network forget their activations while it trains.

    Gradients are the same: dropout draws the same masks again. A layer costs a second forward pass.

    Raises:
        ConfigError: a backbone cannot do it.
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
