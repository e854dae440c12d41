"""A network in training with its optimiser, and its EMA teacher."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raydr.models.dual_encoder import DualEncoder
from raydr.models.precision import autocast
from raydr.training.batches import Batch
from raydr.training.checkpoint import TEACHER, Save, load_trainable, trainable_state
from raydr.training.config import TrainConfig
from raydr.training.metrics import StepClock
from raydr.training.optimization import Optimization
from raydr.training.scoring import BatchView, Encodings


class Teacher:
    """An exponential moving average of the student: θ* ← α·θ* + (1−α)·θ after every optimiser step.

    Students are equal on all ranks after a step, and so are teachers without communication. The teacher shares frozen
    weights with the student; a copy in half precision has its own.

    Source: Zhang et al. (EMNLP Findings 2023).

    Args:
        student: network in training.
        momentum: α.
        half: dtype of a copy that encodes the texts, while the average stays in float32. On a GPU this takes half the
            time of autocast, which casts in each layer. None encodes by the average itself.
    """

    def __init__(self, student: DualEncoder, momentum: float, half: torch.dtype | None = None) -> None:
        frozen = {id(weights): weights for weights in student.parameters() if not weights.requires_grad}
        self.model = copy.deepcopy(student, frozen).eval().requires_grad_(False)
        self.momentum = momentum
        self.copy = None if half is None else copy.deepcopy(self.model).ready(half)

    @torch.no_grad()
    def update(self, student: DualEncoder) -> None:
        """Average the student's weights after a step."""
        both = zip(self.model.parameters(), student.parameters(), strict=True)
        learning = [(own.detach(), other.detach()) for own, other in both if other.requires_grad]
        mine, theirs = [list(tensors) for tensors in zip(*learning, strict=True)]
        torch._foreach_lerp_(mine, theirs, 1.0 - self.momentum)
        for buffer, source in zip(self.model.buffers(), student.buffers(), strict=True):
            buffer.copy_(source)
        self._renew_copy()

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], frozen: frozenset[str]) -> None:
        """Load a saved average."""
        load_trainable(self.model, state, frozen)
        self._renew_copy()

    def _renew_copy(self) -> None:
        if self.copy is not None:
            own, exact = (
                [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
                for model in (self.copy, self.model)
            )
            torch._foreach_copy_(own, exact)

    @torch.no_grad()
    def encode(self, batch: Batch) -> Encodings:
        """Encode a batch by the teacher; without a copy in half precision, by the autocast around the call."""
        if self.copy is None:
            query_QD, passage_PD = self.model(batch.queries, batch.passages)
        else:
            with torch.autocast(self.copy.device.type, enabled=False):
                query_QD, passage_PD = self.copy(batch.queries, batch.passages)
        return Encodings.gathered(query_QD, passage_PD, self.model.config)


@dataclass
class Learner:
    """A dual encoder in training, with its optimisation and optionally its teacher.

    Args:
        model: network on its device.
        wrapped: network as a step calls it, in DDP with several ranks.
        config: settings of training.
        dtype: dtype of the forward pass.
        num_steps: number of optimiser steps of the whole training.
        clock: clock of the parts of a step.
    """

    model: DualEncoder
    wrapped: nn.Module
    config: TrainConfig
    dtype: torch.dtype
    num_steps: int
    clock: StepClock

    def __post_init__(self) -> None:
        self.device = self.model.device
        self.optimization = Optimization(self.model, self.config.optimizer, self.num_steps, self.dtype)
        self.teacher: Teacher | None = None

    def start_teacher(self) -> Teacher:
        """Make the teacher, a copy of the network in its present state."""
        momentum = self.config.teacher.momentum_of(self.num_steps / self.config.num_epochs)
        in_half = self.device.type == "cuda" and self.dtype != torch.float32
        self.teacher = Teacher(self.model, momentum, self.dtype if in_half else None)
        return self.teacher

    def encode(self, batch: Batch, ask_teacher: bool = True) -> BatchView:
        """Encode this rank's share, by the network and, if ``ask_teacher``, by its teacher; gather all candidates."""
        with autocast(self.device, self.dtype):
            with self.clock.part("forward"):
                cached = self.config.cache_tokens is not None
                query_QD, passage_PD = self.wrapped(batch.queries, batch.passages, cached)
            with self.clock.part("teacher"):
                taught = self.teacher.encode(batch) if self.teacher is not None and ask_teacher else None
        with self.clock.part("exchange"):
            mine = Encodings.gathered(query_QD, passage_PD, self.model.config)
            return BatchView.gathered(mine, batch, self.config.in_batch_negatives, taught)

    def step(self) -> None:
        """Take a step with the gradients, and update the teacher."""
        self.optimization.step()
        if self.teacher is not None:
            self.teacher.update(self.model)

    def copy(self) -> Save:
        """Copy everything that the next step depends on."""
        own = self.optimization.copy()
        taught = None if self.teacher is None else trainable_state(self.teacher.model, self.optimization.frozen)

        def save(folder: Path) -> None:
            own(folder)
            if taught is not None:
                save_file(taught, folder / TEACHER)

        return save

    def load(self, folder: Path) -> None:
        """Load the state of :meth:`copy`."""
        self.optimization.load(folder)
        if (folder / TEACHER).exists():
            self.start_teacher().load(load_file(folder / TEACHER), self.optimization.frozen)
