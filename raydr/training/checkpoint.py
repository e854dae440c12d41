"""Training state on disk: weights, optimiser, progress. What is needed to go on in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from raydr.component import Config

WEIGHTS = "model.safetensors"
BEST = "best.safetensors"
TEACHER = "teacher.safetensors"
OPTIMIZER = "optimizer.pt"
PROGRESS = "progress.json"


class EpochRow(Config):
    """What one finished epoch came to."""

    epoch: int
    metrics: dict[str, float]


class Progress(Config):
    """How far training has come; every field is the same on all ranks."""

    #: Epoch in progress, from 0, and steps of it that are finished.
    epoch: int = 0
    step: int = 0
    #: Optimiser steps since the start.
    global_step: int = 0
    #: Sums of the step metrics of the epoch in progress.
    sums: dict[str, float] = {}
    history: list[EpochRow] = []
    best_epoch: int | None = None
    best_measure: float | None = None
    finished: bool = False
    #: Flags of the noise detector for the epoch in progress (True = clean), null before the first detection.
    clean: list[bool] | None = None
    #: Fit of the detector before each epoch, for the log.
    detections: list[dict[str, Any]] = []

    def changed(self, **fields: Any) -> Progress:
        return self.model_copy(update=fields)


def save_weights(model: nn.Module, path: Path) -> None:
    save_file({key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}, path)


def save_state(
    folder: Path,
    model: nn.Module,
    optimizer: AdamW,
    schedule: LambdaLR,
    progress: Progress,
    teacher: nn.Module | None,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write everything that the next step depends on."""
    save_weights(model, folder / WEIGHTS)
    if teacher is not None:
        save_weights(teacher, folder / TEACHER)
    state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(), "scaler": scaler.state_dict()}
    torch.save(state, folder / OPTIMIZER)
    (folder / PROGRESS).write_text(progress.model_dump_json(), encoding="utf-8")


def load_progress(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / PROGRESS).read_text(encoding="utf-8"))


def load_state(
    folder: Path, model: nn.Module, optimizer: AdamW, schedule: LambdaLR, scaler: torch.amp.GradScaler
) -> None:
    """Put back what :func:`save_state` wrote, teacher aside."""
    model.load_state_dict(load_file(folder / WEIGHTS))
    state = torch.load(folder / OPTIMIZER, weights_only=True, map_location="cpu")
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    scaler.load_state_dict(state["scaler"])


def load_teacher(folder: Path, teacher: nn.Module) -> None:
    teacher.load_state_dict(load_file(folder / TEACHER))
