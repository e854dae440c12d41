"""Optimiser steps: loss scaling, clipping, AdamW and its schedule; and the random state of a step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from raydr.models.training_config import OptimizerConfig
from raydr.seeding import stable_hash64
from raydr.training.checkpoint import (
    BEST,
    OPTIMIZER,
    PROGRESS,
    WEIGHTS,
    Progress,
    Save,
    frozen_weights,
    load_trainable,
    trainable_state,
)
from raydr.training.collectives import mean_over_ranks


class Optimization:
    """The optimiser of a network, with its schedule and loss scaling."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, num_steps: int, dtype: torch.dtype) -> None:
        """
        Args:
            model: network on its device.
            config: settings of the optimiser.
            num_steps: number of steps of the whole training.
            dtype: dtype of the forward pass; float16 scales the loss.
        """
        self.model = model
        #: Names of the weights that training does not change; states leave them out.
        self.frozen = frozen_weights(model)
        self.config = config
        self.clip_norm = float("inf") if config.clip_norm is None else config.clip_norm
        # Biases and normalisation weights do not decay.
        decayed, plain = (
            [weights for weights in model.parameters() if weights.requires_grad and (weights.ndim >= 2) == decays]
            for decays in (True, False)
        )
        self.optimizer = AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        warmup = math.ceil(config.warmup_share * num_steps)
        self.schedule = LambdaLR(
            self.optimizer, lambda step: learning_rate_factor(step, warmup, num_steps, config.schedule)
        )
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.schedule.get_last_lr()[0])

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, and add them to those of the step."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def clip(self) -> Tensor:
        """Clip the gradients; return their norm before clipping, on the device."""
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        if not self.scaler.is_enabled():
            # As in the scaler: if this is 1, AdamW's kernel changes nothing, and nothing waits for the device.
            self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
        return norm

    def step(self) -> None:
        """Take the step, unless a gradient is not finite, and clear the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def trainable_state(self) -> dict[str, Tensor]:
        """Copy the trainable weights to host memory."""
        return trainable_state(self.model, self.frozen)

    def load_trainable(self, state: dict[str, Tensor]) -> None:
        """Load the weights of :meth:`trainable_state` into the network."""
        load_trainable(self.model, state, self.frozen)

    def copy(self) -> Save:
        """Copy the trainable weights, and the states of optimiser, schedule and scaler; return their writer."""
        weights = self.trainable_state()
        state = _on_host(
            {
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
        )

        def save(folder: Path) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(weights, folder / WEIGHTS)
            torch.save(state, folder / OPTIMIZER)

        return save

    def load(self, folder: Path) -> None:
        """Load the state of :meth:`copy`; learning rate and weight decay stay those of this training."""
        self.load_trainable(load_file(folder / WEIGHTS))
        state = torch.load(folder / OPTIMIZER, weights_only=True, map_location="cpu")
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        rate = self.config.learning_rate
        self.schedule.base_lrs = [rate] * len(self.optimizer.param_groups)
        for group, factor, decays in zip(
            self.optimizer.param_groups, self.schedule.lr_lambdas, (True, False), strict=True
        ):
            group |= {
                "initial_lr": rate,
                "lr": rate * factor(self.schedule.last_epoch),
                "weight_decay": self.config.weight_decay if decays else 0.0,
            }

    def save_moments(self, folder: Path) -> None:
        """Write AdamW's moments, for another training that starts from this network."""
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"state": self.optimizer.state_dict()["state"]}, folder / OPTIMIZER)

    def load_moments(self, folder: Path) -> None:
        """Load the moments of :meth:`save_moments`; learning rate and schedule stay those of this training."""
        saved = torch.load(folder / OPTIMIZER, weights_only=True, map_location="cpu")
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})


def with_progress(own: Save, progress: Progress, best: dict[str, Tensor] | None) -> Save:
    """Return the writer of a state with its progress, and with the trainable weights after the best epoch, if any."""

    def save(folder: Path) -> None:
        own(folder)
        if best is not None:
            save_file(best, folder / BEST)
        (folder / PROGRESS).write_text(progress.model_dump_json(), encoding="utf-8")

    return save


def load_progress(folder: Path) -> tuple[Progress, dict[str, Tensor] | None]:
    """Read the progress and the best epoch's weights of a state that :func:`with_progress` wrote."""
    progress = Progress.model_validate_json((folder / PROGRESS).read_text(encoding="utf-8"))
    return progress, load_file(folder / BEST) if (folder / BEST).exists() else None


class UncheckedSteps:
    """Steps whose gradients are checked later, since a check waits for the device.

    Args:
        scaled: whether the loss is scaled, as in float16. A step with a finite loss whose norm overflows is then left
            out, and the scale becomes smaller.
    """

    def __init__(self, scaled: bool) -> None:
        self.scaled = scaled
        self._norms: list[Tensor] = []
        self._losses: list[Tensor] = []

    def add(self, norm: Tensor, loss: Tensor) -> None:
        """Add a step: the norm of its gradients, equal on all ranks, and this rank's loss."""
        self._norms.append(norm.detach())
        self._losses.append(loss.detach())

    def first_bad(self) -> tuple[int, float] | None:
        """Return the first step since the last check whose gradients are not finite; all ranks call it.

        Gradients that only the loss scaling of float16 made infinite do not count.

        Returns:
            The number of later steps, and the loss of the step, averaged over ranks; None if all are finite.
        """
        norms, losses = torch.stack(self._norms).tolist(), self._losses
        self._norms, self._losses = [], []
        if all(map(math.isfinite, norms)):
            return None
        means = mean_over_ranks(torch.stack(losses)).tolist()
        for at, (norm, loss) in enumerate(zip(norms, means, strict=True)):
            if not math.isfinite(norm) and not (self.scaled and math.isfinite(loss)):
                return len(norms) - 1 - at, loss
        return None


def _on_host(value: Any) -> Any:
    """Copy tensors in nested dicts and lists to host memory; other values stay as they are."""
    if isinstance(value, dict):
        return {key: _on_host(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_on_host(entry) for entry in value]
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def learning_rate_factor(step: int, warmup: int, num_steps: int, schedule: str) -> float:
    """Return the factor of the learning rate at a step.

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


def seed_step(seed: int, step: int, rank: int, network: int = 0) -> None:
    """Seed dropout for a step of a network, so that a resumed training equals an uninterrupted training."""
    torch.manual_seed(stable_hash64("dropout", seed, step, rank, network) % 2**63)
