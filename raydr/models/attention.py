"""Which of Transformers' implementations of attention a network uses."""

from __future__ import annotations

import torch
from torch import nn


def choose_attention(network: nn.Module, device: str, dtype: torch.dtype) -> None:
    """Take the implementation that is fastest for a device and an arithmetic; all give the same up to rounding.

    In bfloat16 on a CPU these are plain matrix products: PyTorch's fused kernel is slower there, its backward pass
    several times (docs/performance.md). Everywhere else the network keeps what it was loaded with.
    """
    from transformers import PreTrainedModel

    if device != "cpu" or dtype != torch.bfloat16:
        return
    for module in network.modules():
        if isinstance(module, PreTrainedModel):
            module.set_attn_implementation("eager")
