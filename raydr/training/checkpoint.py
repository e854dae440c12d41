"""The state of a training on disk: weights, optimiser and progress, to resume in the middle of an epoch.

::

    ARTEFACT.training/KEY/step-000000120/    the state after 120 optimiser steps; its progress file is written last
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydr.component import Config
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = "model.safetensors"
BEST = "best.safetensors"
TEACHER = "teacher.safetensors"
OPTIMIZER = "optimizer.pt"
PROGRESS = "progress.json"
#: Suffix of the folder of a training's states, beside its output.
STATES = ".training"

#: Function that writes a state to a folder; the state is a copy in host memory, so that a thread may call it.
Save = Callable[[Path], None]


class EpochRow(Config):
    """The figures of a finished epoch."""

    epoch: int
    metrics: dict[str, float]


class Progress(Config):
    """The progress of a training; every field is equal on all ranks."""

    epoch: int = 0
    """Epoch in progress, from 0."""

    step: int = 0
    """Number of finished steps of the epoch in progress."""

    global_step: int = 0
    """Number of optimiser steps since the start."""

    sums: dict[str, float] = {}
    """Sums of the step metrics of the epoch in progress."""

    history: list[EpochRow] = []
    best_epoch: int | None = None
    best_measure: float | None = None
    better_network: int = 0
    """Number of the network that was better on dev after the last epoch; 1 is co-teaching's second network."""

    finished: bool = False
    clean: list[float] | None = None
    """ŷ of each pair for the epoch in progress: 0 if flagged and 1 if not, or p(clean); null before the first
    detection."""

    detections: list[dict[str, Any]] = []
    """Fit of the detector before each epoch, for the log."""

    def changed(self, **fields: Any) -> Progress:
        return self.model_copy(update=fields)

    def measured(self, value: float, figures: dict[str, float], first_epoch: int = 0) -> Progress:
        """Return the progress with the dev figures of the last epoch; the first of equal epochs is the best.

        Args:
            value: value of the measure that chooses the epoch.
            figures: figures for the history.
            first_epoch: first epoch that may be the best. An earlier best epoch, of a shared warm-up, is replaced.
        """
        last = self.history[-1]
        row = EpochRow(epoch=last.epoch, metrics=last.metrics | figures)
        best: dict[str, Any] = {}
        no_best = self.best_measure is None or self.best_epoch is None or self.best_epoch < first_epoch
        if last.epoch >= first_epoch and (no_best or value > (self.best_measure or 0.0)):
            best = {"best_epoch": last.epoch, "best_measure": value}
        return self.changed(history=[*self.history[:-1], row], **best)


def frozen_weights(model: nn.Module) -> frozenset[str]:
    """Return the names of the weights that training does not change."""
    parameters = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, weights in parameters if not weights.requires_grad)


def trainable_state(model: nn.Module, frozen: frozenset[str]) -> dict[str, Tensor]:
    """Copy the weights and buffers of a network, except frozen weights, to host memory."""
    values = {name: value.detach() for name, value in model.state_dict().items() if name not in frozen}
    return {name: value.to("cpu", copy=True).contiguous() for name, value in values.items()}


def load_trainable(model: nn.Module, state: dict[str, Tensor], frozen: frozenset[str]) -> None:
    """Load the weights of :func:`trainable_state` into a network."""
    unchanged = {name: value for name, value in model.state_dict().items() if name in frozen}
    model.load_state_dict({**unchanged, **state})


def checkpoint_folder(output: Folder) -> Folder:
    """Return the folder of a training's states, beside its output."""
    return Folder(f"{output.url.rstrip('/')}{STATES}")


def state_name(global_step: int) -> str:
    """Return the name of the state after ``global_step`` optimiser steps."""
    return f"step-{global_step:09d}"


def whole_states(states: Folder) -> list[str]:
    """Return the names of the complete states, by step."""
    return [name for name in _state_names(states) if states.exists(f"{name}/{PROGRESS}")]


def drop_all_but_last(states: Folder) -> None:
    """Remove all states but the last complete one."""
    last = whole_states(states)[-1:]
    for name in _state_names(states):
        if name not in last:
            states.remove(name)


def _state_names(states: Folder) -> list[str]:
    """Return the names of all states, complete or not, by step; other files are ignored."""
    return sorted({name.split("/")[0] for name in states.files() if "/" in name})
