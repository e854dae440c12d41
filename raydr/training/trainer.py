"""The training loop: epochs, steps, dev retrieval, checkpoints. Runs under Ray Train, torchrun or alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raydr.errors import TrainingError
from raydr.losses.base import Candidates
from raydr.models.dual_encoder import DualEncoder
from raydr.training.batches import Batch, BatchMaker
from raydr.training.checkpoint import (
    BEST,
    TEACHER,
    EpochRow,
    Progress,
    load_progress,
    load_state,
    load_teacher,
    save_state,
)
from raydr.training.collectives import mean_over_ranks, rank
from raydr.training.config import TrainConfig
from raydr.training.detection import PairDetector, PairFlags, describe_detection
from raydr.training.dev import DevRetrieval
from raydr.training.optimization import build_optimizer, build_schedule, seed_step
from raydr.training.scoring import score_candidates
from raydr.training.teacher import Teacher


class Listener(Protocol):
    """What happens outside training. Every rank calls every method the same number of times."""

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """After every optimiser step; ``metrics`` is empty except every ``log_steps``."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """After each detection of mismatched pairs."""

    def on_checkpoint(self, progress: Progress, save: Callable[[Path], None]) -> None:
        """When the state should be kept; ``save`` writes it into a folder and is to be called on rank 0 only."""


@dataclass(frozen=True)
class Setup:
    """What the trainer works on."""

    config: TrainConfig
    model: DualEncoder
    #: The model as the optimiser step calls it: wrapped in DDP if there are several ranks.
    wrapped: nn.Module
    batches: BatchMaker
    dev: DevRetrieval | None
    detector: PairDetector | None
    dtype: torch.dtype
    seed: int
    listener: Listener


class Trainer:
    """Trains a dual encoder; the result depends on the global batch and not on how many ranks share it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.model = setup.model
        self.device = next(setup.model.parameters()).device
        self.num_steps = setup.batches.num_steps
        self.optimizer = build_optimizer(setup.model, self.config.optimizer)
        total = self.num_steps * self.config.num_epochs
        self.schedule = build_schedule(self.optimizer, self.config.optimizer, total)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=setup.dtype == torch.float16)
        self.teacher: Teacher | None = None
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.progress = load_progress(folder)
        load_state(folder, self.model, self.optimizer, self.schedule, self.scaler)
        if (folder / TEACHER).exists():
            self.teacher = Teacher(self.model, self.config.teacher.momentum)
            load_teacher(folder, self.teacher.model)
        if (folder / BEST).exists():
            self.best = load_file(folder / BEST)

    def run(self) -> Progress:
        """Train to the end; afterwards the model holds the state that ``keep`` asks for.

        Raises:
            TrainingError: the loss is not finite; the last checkpoint stays as it is.
        """
        while not self.progress.finished:
            self._epoch()
        if self.config.keep == "best" and self.best is not None:
            self.model.load_state_dict(self.best)
        return self.progress

    def _epoch(self) -> None:
        self._prepare_epoch()
        epoch, first_step = self.progress.epoch, self.progress.step
        self.model.train()
        for step, batches in enumerate(self.setup.batches.epoch(epoch, first_step), start=first_step):
            started = time.perf_counter()
            metrics = self._step([batch.to(self.device) for batch in batches])
            metrics["seconds"] = time.perf_counter() - started
            self._after_step(step + 1, metrics)
        self._finish_epoch()

    def _prepare_epoch(self) -> None:
        """Teacher and noise flags for the epoch, unless a checkpoint has brought them."""
        warm = self.progress.epoch >= self.config.loss.num_warmup_epochs
        if self._teacher_is_on() and self.teacher is None:
            self.teacher = Teacher(self.model, self.config.teacher.momentum)
        detector = self.setup.detector
        if detector is None or not warm or self.progress.step:
            return
        if detector.config.repeat == "once" and self.progress.clean is not None:
            return
        flags = detector.detect(self.model, self.progress.epoch, self.setup.dtype, self.model.config.scale)
        found = describe_detection(flags, self.progress.epoch, self.setup.batches.examples.is_noise)
        self.progress = self.progress.changed(clean=flags.clean.tolist(), detections=[*self.progress.detections, found])
        self.setup.listener.on_detection(self.progress, flags)

    def _teacher_is_on(self) -> bool:
        loss = self.config.loss
        return loss.needs_teacher and self.progress.epoch >= loss.num_warmup_epochs

    def _step(self, batches: list[Batch]) -> dict[str, float]:
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for at, batch in enumerate(batches):
            seed_step(self.setup.seed, self.progress.global_step * len(batches) + at, rank())
            last = at == len(batches) - 1
            wrapped = self.setup.wrapped
            quiet = isinstance(wrapped, DistributedDataParallel) and not last
            with wrapped.no_sync() if quiet else nullcontext():  # type: ignore[operator]
                with torch.autocast(
                    self.device.type, dtype=self.setup.dtype, enabled=self.setup.dtype != torch.float32
                ):
                    query_QD, passage_PD = wrapped(batch.queries, batch.passages)
                candidates = self._candidates(query_QD, passage_PD, batch)
                output = self.config.loss.compute(candidates, self.progress.epoch)
                loss = output.per_query_Q.mean()
                self.scaler.scale(loss / len(batches)).backward()  # type: ignore[no-untyped-call]
            values = {"loss": loss.detach(), "filled": torch.tensor(float(batch.num_filled)), **output.metrics}
            for key, value in values.items():
                sums[key] = sums.get(key, torch.zeros(())) + value.float().cpu() / len(batches)
        self.scaler.unscale_(self.optimizer)
        limit = self.config.optimizer.clip_norm
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), float("inf") if limit is None else limit)
        # After DDP's reduction the norm is the same on every rank, so that all of them stop or none.
        if not torch.isfinite(norm) and not self.scaler.is_enabled():
            raise self._not_finite(batches, float(sums["loss"]))
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        if self.teacher is not None:
            self.teacher.follow(self.model)
        return {**{key: float(value) for key, value in sums.items()}, "grad_norm": float(norm)}

    def _candidates(self, query_QD: Tensor, passage_PD: Tensor, batch: Batch) -> Candidates:
        scale, in_batch = self.model.config.scale, self.config.in_batch_negatives
        candidates = score_candidates(query_QD, passage_PD, batch, scale, in_batch)
        if self.teacher is not None:
            with torch.autocast(self.device.type, dtype=self.setup.dtype, enabled=self.setup.dtype != torch.float32):
                taught = self.teacher.score(batch, scale, in_batch)
            candidates = replace(candidates, teacher_scores_QC=taught.scores_QC)
        if self.progress.clean is not None:
            clean_Q = torch.from_numpy(np.asarray(self.progress.clean)[batch.query_rows]).to(self.device)
            candidates = replace(candidates, clean_Q=clean_Q)
        return candidates

    def _not_finite(self, batches: list[Batch], loss: float) -> TrainingError:
        ids = [self.setup.batches.examples.query_ids[at] for batch in batches for at in batch.query_rows]
        return TrainingError(
            f"the gradients are not finite (loss {loss}) in epoch {self.progress.epoch + 1}, "
            f"step {self.progress.step + 1} of {self.num_steps}; rank {rank()}'s queries: {', '.join(ids[:8])}"
            f"{', ...' if len(ids) > 8 else ''}. The last checkpoint is kept. Lower the learning rate or "
            "model.scale, use dtype float32, or look at these queries"
        )

    def _after_step(self, step: int, metrics: dict[str, float]) -> None:
        sums = {key: self.progress.sums.get(key, 0.0) + value for key, value in metrics.items()}
        self.progress = self.progress.changed(step=step, global_step=self.progress.global_step + 1, sums=sums)
        logged = {}
        if self.progress.global_step % self.config.log_steps == 0 or step == self.num_steps:
            logged = _mean_over_ranks(metrics, self.device)
            logged["learning_rate"] = float(self.schedule.get_last_lr()[0])
            logged["pairs_per_second"] = self.config.batch_size / logged["seconds"]
        self.setup.listener.on_step(self.progress, self.num_steps, logged)
        every = self.config.checkpoint_steps
        if every and step % every == 0 and step < self.num_steps:
            self.progress = self.progress.changed(sums=_mean_over_ranks(self.progress.sums, self.device))
            self.setup.listener.on_checkpoint(self.progress, self._save)

    def _finish_epoch(self) -> None:
        metrics = _mean_over_ranks(
            {key: value / self.num_steps for key, value in self.progress.sums.items()}, self.device
        )
        metrics["filled"] = metrics.get("filled", 0.0) * self.num_steps
        measure = None
        if self.setup.dev is not None:
            metrics.update(self.setup.dev.measure(self.model, self.setup.dtype))
            measure = metrics[f"dev {self.config.dev.measure}"]
        progress = self.progress
        history = [*progress.history, EpochRow(epoch=progress.epoch, metrics=metrics)]
        best_epoch, best_measure = progress.best_epoch, progress.best_measure
        if measure is not None and (best_measure is None or measure > best_measure):
            best_epoch, best_measure = progress.epoch, measure
            if self.config.keep == "best":
                self.best = {key: value.detach().cpu().clone() for key, value in self.model.state_dict().items()}
        patience = self.config.dev.patience
        tired = patience is not None and best_epoch is not None and progress.epoch - best_epoch >= patience
        self.progress = progress.changed(
            epoch=progress.epoch + 1,
            step=0,
            sums={},
            history=history,
            best_epoch=best_epoch,
            best_measure=best_measure,
            finished=tired or progress.epoch + 1 >= self.config.num_epochs,
        )
        self.setup.listener.on_checkpoint(self.progress, self._save)

    def _save(self, folder: Path) -> None:
        teacher = self.teacher.model if self.teacher is not None else None
        save_state(folder, self.model, self.optimizer, self.schedule, self.progress, teacher, self.scaler)
        if self.best is not None:
            save_file(self.best, folder / BEST)


def _mean_over_ranks(metrics: dict[str, float], device: torch.device) -> dict[str, float]:
    keys = sorted(metrics)
    values = mean_over_ranks(torch.tensor([metrics[key] for key in keys], dtype=torch.float64, device=device))
    return dict(zip(keys, values.tolist(), strict=True))
