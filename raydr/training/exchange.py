"""How the gradients of a step travel between the workers of a training."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from raydr.training.config import Gradients

#: How modules are made data-parallel: the buckets that are sent are the gradients themselves, not copies of them.
DDP_SETTINGS: dict[str, Any] = {"gradient_as_bucket_view": True}


def send_gradients(wrapped: nn.Module, gradients: Gradients) -> nn.Module:
    """Let a data-parallel module send its gradients in a type; a module that is alone sends none.

    Args:
        wrapped: the module as a step calls it.
        gradients: ``bfloat16``: each worker rounds its share, divided by the number of workers, and the sum is rounded
            again after each addition; weights, moments and what is clipped stay float32.
    """
    if gradients == "bfloat16" and isinstance(wrapped, DistributedDataParallel):
        # Under no name: DDP lets PyTorch's hook by its own work with NCCL only, and gloo adds in bfloat16 as well.
        wrapped.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    return wrapped
