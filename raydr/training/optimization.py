"""AdamW, its schedule, and the random state of a step."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from raydr.seeding import stable_hash64
from raydr.training.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> AdamW:
    """AdamW without weight decay on biases and normalisation weights."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )


def build_schedule(optimizer: AdamW, config: OptimizerConfig, num_steps: int) -> LambdaLR:
    """Linear warm-up, then linear or cosine decay to zero, or constant."""
    warmup = math.ceil(config.warmup_share * num_steps)
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, warmup, num_steps, config.schedule))


def learning_rate_factor(step: int, warmup: int, num_steps: int, schedule: str) -> float:
    """The learning rate's factor at a step.

    >>> [round(learning_rate_factor(step, 2, 6, "linear"), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    if schedule == "linear":
        return max(0.0, 1.0 - progress)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return 1.0


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed dropout for one step, so that a resumed run draws what an uninterrupted one does."""
    torch.manual_seed(stable_hash64("dropout", seed, step, rank) % 2**63)
