"""Collectives that also work in a single process, gradients included.

The global batch is ordered by rank. A single worker with the whole batch therefore computes the same matrix as several
workers with slices of it.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from raydr.models.batching import widen
from raydr.training.config import Gradients


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def num_ranks_here() -> int:
    """Return the number of ranks on this node, from the variable that torchrun and Ray Train set."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks()))


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class _GatherWithGrad(torch.autograd.Function):
    """An all_gather whose backward pass sums the gradients of this rank's rows over all ranks."""

    @staticmethod
    def forward(ctx: Any, local_ND: Tensor) -> Tensor:
        gathered = [torch.empty_like(local_ND) for _ in range(num_ranks())]
        dist.all_gather(gathered, local_ND.contiguous())
        ctx.num_rows = local_ND.shape[0]
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)
        start = rank() * ctx.num_rows
        return grad[start : start + ctx.num_rows]


def gather_with_grad(local_ND: Tensor) -> Tensor:
    """Gather the rows of all ranks, N of each, as (R·N, D); gradients flow back to every rank.

    Several vectors per row, (N, M, D), are padded to the most of any rank. The loss is the mean over a rank's queries,
    and DDP averages gradients over ranks. They are thus the gradients of the mean over the global batch.
    """
    if num_ranks() == 1:
        return local_ND
    gathered: Tensor = _GatherWithGrad.apply(_equally_wide(local_ND))  # type: ignore[no-untyped-call]
    return gathered


def _equally_wide(local: Tensor) -> Tensor:
    """Pad encodings with several vectors per text to the most of any rank; other encodings stay as they are."""
    if local.ndim < 3:
        return local
    most = torch.tensor([local.shape[1]], device=local.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return widen(local, int(most))


def gather(local: Tensor) -> Tensor:
    """Gather the rows of all ranks, the same number of each, without gradients."""
    if num_ranks() == 1:
        return local
    gathered = [torch.empty_like(local) for _ in range(num_ranks())]
    dist.all_gather(gathered, local.contiguous())
    return torch.cat(gathered)


def gather_interleaved(local: Tensor) -> Tensor:
    """Gather all rows in order; rank r has every ``num_ranks()``-th row from row r on.

    Several vectors per row are padded to the most of any rank.
    """
    if num_ranks() == 1:
        return local
    local = _equally_wide(local)
    sizes = gather(torch.tensor([local.shape[0]], device=local.device)).tolist()
    padded = local.new_zeros((max(sizes), *local.shape[1:]))
    padded[: local.shape[0]] = local
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded)
    merged = local.new_empty((sum(sizes), *local.shape[1:]))
    for at, (rows, size) in enumerate(zip(gathered, sizes, strict=True)):
        merged[at :: len(sizes)] = rows[:size]
    return merged


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the element-wise mean over all ranks."""
    if num_ranks() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values)
    return values / num_ranks()


def broadcast_object(value: Any) -> Any:
    """Return rank 0's value on every rank; for small values such as a decision or a metric."""
    if num_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def without_sync(module: nn.Module, quiet: bool) -> AbstractContextManager[None]:
    """Return a context in which a module adds up gradients and, if ``quiet``, exchanges none between ranks."""
    if quiet and isinstance(module, DistributedDataParallel):
        return module.no_sync()
    return nullcontext()


def send_gradients(wrapped: nn.Module, gradients: Gradients) -> nn.Module:
    """Set the dtype in which a data-parallel module sends its gradients; other modules stay unchanged.

    Args:
        wrapped: module as a step calls it.
        gradients: dtype of the exchange. With ``bfloat16`` each worker rounds its gradients, and each addition rounds
            the sum. Weights, moments and the clipped gradients stay float32.
    """
    if gradients == "bfloat16" and isinstance(wrapped, DistributedDataParallel):
        # In a lambda, since DDP refuses the hook itself without NCCL, and gloo can add in bfloat16 too.
        wrapped.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    return wrapped
