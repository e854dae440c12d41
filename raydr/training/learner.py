"""A network with its optimiser: what scores a batch and takes a step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raydr.models.dual_encoder import DualEncoder
from raydr.models.precision import autocast
from raydr.training.batches import Batch
from raydr.training.checkpoint import TEACHER, Save, load_trainable, trainable_state
from raydr.training.collectives import without_sync
from raydr.training.config import TrainConfig
from raydr.training.gradient_cache import CachedEncoding
from raydr.training.metrics import StepClock
from raydr.training.optimization import Optimization
from raydr.training.scoring import BatchView, Encodings
from raydr.training.teacher import Teacher


@dataclass
class Learner:
    """A dual encoder in training, with its optimisation and its teacher, if it has a teacher.

    Args:
        model: the network, on its device.
        wrapped: the network as a step calls it, in DDP if there are several ranks.
        config: loss, optimiser, teacher.
        dtype: arithmetic of the forward pass.
        num_steps: optimiser steps of the whole training.
        clock: measures the parts of a step.
    """

    model: DualEncoder
    wrapped: nn.Module
    config: TrainConfig
    dtype: torch.dtype
    num_steps: int
    clock: StepClock

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.optimization = Optimization(self.model, self.config.optimizer, self.num_steps, self.dtype)
        self.teacher: Teacher | None = None
        #: The batch that gradient caching encodes again, between a forward and its backward pass.
        self.cached: CachedEncoding | None = None

    def start_teacher(self) -> Teacher:
        """Make the teacher, a copy of the network as it is now."""
        momentum = self.config.teacher.momentum_of(self.num_steps / self.config.num_epochs)
        self.teacher = Teacher(self.model, momentum)
        return self.teacher

    def without_sync(self, quiet: bool) -> AbstractContextManager[None]:
        """Add up gradients inside the block and, if ``quiet``, exchange none between ranks."""
        return without_sync(self.wrapped, quiet)

    def encode(self, batch: Batch, ask_teacher: bool = True) -> BatchView:
        """Encode this rank's queries and all candidates, by the network and, if ``ask_teacher``, by its teacher."""
        with autocast(self.device, self.dtype):
            with self.clock.part("forward"):
                if self.config.cache_tokens is None:
                    query_QD, passage_PD = self.wrapped(batch.queries, batch.passages)
                else:
                    self.cached = CachedEncoding(self.model, batch.queries, batch.passages)
                    query_QD, passage_PD = self.cached.query_QD, self.cached.passage_PD
            with self.clock.part("teacher"):
                taught = self.teacher.encode(batch) if self.teacher is not None and ask_teacher else None
        with self.clock.part("exchange"):
            mine = Encodings.gathered(query_QD, passage_PD, self.model.config)
            return BatchView.gathered(mine, batch, self.config.in_batch_negatives, taught)

    def backward(self, loss: Tensor, quiet: bool) -> None:
        """Add the gradients of a loss on the last batch.

        Args:
            loss: a scalar.
            quiet: add up only; gradients are exchanged between ranks later.
        """
        self.optimization.backward(loss)
        if self.cached is None:
            return
        pieces = self.cached.pieces()
        for at, piece in enumerate(pieces):
            with self.without_sync(quiet or at < len(pieces) - 1), autocast(self.device, self.dtype):
                vectors, gradients = piece.encode(self.wrapped)
                torch.autograd.backward(vectors, gradients)
        self.cached = None

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
            load_trainable(self.start_teacher().model, load_file(folder / TEACHER), self.optimization.frozen)
