"""The training loop: epochs, steps, dev retrieval, checkpoints. Runs under Ray Train, torchrun or alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raydr.errors import ConfigError, TrainingError
from raydr.losses.base import CLEAN, LossOutput
from raydr.models.backbone import merge_adapters
from raydr.models.dual_encoder import DualEncoder
from raydr.training.batches import Batch, BatchMaker
from raydr.training.checkpoint import EpochRow, Progress, Save
from raydr.training.collectives import num_ranks, rank, without_sync
from raydr.training.config import TrainConfig
from raydr.training.detection import CrossFittedDetector, PairDetector, describe_detection, keep_trusted
from raydr.training.dev import DevRetrieval
from raydr.training.learner import Learner
from raydr.training.metrics import Figures, StepClock, add_figures, as_numbers, numbers_over_ranks
from raydr.training.optimization import UncheckedSteps, load_progress, seed_step, with_progress
from raydr.training.reports import Listener
from raydr.training.scoring import BatchView, loss_in_tiles
from raydr.training.signals import QuerySignal

#: Seconds since the last checkpoint; their mean over the ranks decides for all of them.
_SINCE = "since_checkpoint"
#: Seconds between two states while a node of the group is about to be taken back: clouds say so 30 to 120 s before.
NOTICE_S = 10.0


#: The trainable weights of a network by name, on the CPU.
State = dict[str, Tensor]


@dataclass(eq=False)
class Trainer:
    """Trains a dual encoder; the result depends on the global batch and not on how many ranks share it.

    Args:
        config: of the training.
        model: the student, on its device.
        batches: of this rank.
        dtype: arithmetic of the forward pass.
        seed: of the run.
        listener: is called after steps, detections and epochs.
        wrap: makes a network data-parallel, where there are several ranks.
        dev: measures the network after each epoch; None if nothing does.
        detector: flags mismatched pairs; None if nothing does.
        trusted: pairs that people have confirmed, by query id and corpus row: no detector flags them.

    Raises:
        ConfigError: ``train.matryoshka_dims`` do not fit the model.
    """

    config: TrainConfig
    model: DualEncoder
    batches: BatchMaker
    dtype: torch.dtype
    seed: int
    listener: Listener
    wrap: Callable[[nn.Module], nn.Module]
    dev: DevRetrieval | None = None
    detector: PairDetector | CrossFittedDetector | None = None
    trusted: frozenset[tuple[str, int]] = frozenset()

    def __post_init__(self) -> None:
        self.device = self.model.device
        self.num_steps = self.batches.num_steps
        self.clock = StepClock(self.device)
        _check_dims(self.config, self.model)
        self.learner = self.learner_of(self.model)
        self.progress = Progress()
        #: ŷ of ``progress.clean`` as an array, and the list that it was made of.
        self._clean: tuple[list[float], NDArray[np.float32]] | None = None
        self.best: State | None = None
        #: Sums over the steps that are not in ``progress`` yet, on the device.
        self._sums: Figures = {}
        self._unchecked = UncheckedSteps(scaled=self.dtype == torch.float16)
        self._kept_at = time.monotonic()

    def learner_of(self, network: DualEncoder) -> Learner:
        """Make a network's learner, with an optimiser for the whole training."""
        total = self.num_steps * self.config.num_epochs
        return Learner(network, self.wrap(network), self.config, self.dtype, total, self.clock)

    def resume(self, folder: Path) -> None:
        """Resume from a checkpoint."""
        self.progress, self.best = load_progress(folder)
        self.learner.load(folder)

    def run(self, until: int | None = None) -> Progress:
        """Train to the end; afterwards the model holds the state that ``train.keep`` names.

        Args:
            until: epochs after which training pauses, with the model as it is then; never if None.

        Raises:
            TrainingError: gradients are not finite; raised at the next logged step, and no later state is kept.
        """
        while not self.progress.finished and self.progress.epoch != until:
            self._epoch()
        if until is not None:
            return self.progress
        if self.config.keep == "best" and self.best is not None:
            self.learner.optimization.load_trainable(self.best)
        elif self.chosen is not self.learner:
            self.model.load_state_dict(self.chosen.model.state_dict())
        if self.config.optimizer.lora is not None:
            merge_adapters(self.model)
        return self.progress

    @property
    def chosen(self) -> Learner:
        """The learner whose network is the result of training so far."""
        return self.learner

    def _epoch(self) -> None:
        self._prepare_epoch()
        epoch, first_step = self.progress.epoch, self.progress.step
        self.start_epoch()
        coming = self.batches.epoch(epoch, first_step)
        for step in range(first_step, self.num_steps):
            # The device may still be at steps before: a timed step waits for them, and an epoch's seconds have it all.
            started = time.perf_counter()
            self.clock.start(self._is_logged(step + 1))
            with self.clock.part("data"):
                batches = [batch.to(self.device) for batch in next(coming)]
            metrics = self._step(batches)
            metrics["seconds"] = time.perf_counter() - started
            self._after_step(step + 1, metrics)
        self._finish_epoch()

    def start_epoch(self) -> None:
        self.model.train()

    def _is_logged(self, step: int) -> bool:
        """Return whether the epoch's ``step``-th step, from 1, is logged; called before the step is counted."""
        return (self.progress.global_step + 1) % self.config.log_steps == 0 or step == self.num_steps

    def _prepare_epoch(self) -> None:
        """Start the teacher and flag pairs for the epoch, unless a checkpoint holds the flags."""
        loss, epoch = self.config.loss, self.progress.epoch
        warm = epoch >= loss.num_warmup_epochs
        if loss.needs_teacher and warm and self.learner.teacher is None:
            self.learner.start_teacher()
        detector = self.detector
        if detector is None or not warm or self.progress.step:
            return
        if detector.once and self.progress.clean is not None:
            return
        examples = self.batches.examples
        flags = detector.detect(self.model, epoch, self.dtype)
        flags = keep_trusted(flags, self.trusted, examples, epoch, self.seed, self.config.positive)
        row = describe_detection(flags, epoch, examples.is_noise)
        trust = flags.trust_N(detector.config.weights).tolist()
        self.progress = self.progress.changed(clean=trust, detections=[*self.progress.detections, row])
        self.listener.on_detection(self.progress, flags)

    def _step(self, batches: list[Batch]) -> Figures:
        sums: Figures = {}
        for at, batch in enumerate(batches):
            step = self.progress.global_step * len(batches) + at
            loss, metrics = self.learn(batch, step, quiet=at < len(batches) - 1)
            # Nothing waits for the device here: figures and norms stay on it until they are logged.
            values: Figures = {"loss": loss, "filled": float(batch.num_filled), **metrics}
            sums = add_figures(sums, values, 1 / len(batches))
        with self.clock.part("optimizer"):
            norm = self.clip()
            self.take_step()
        self._unchecked.add(norm, torch.as_tensor(sums["loss"]))
        finite = torch.isfinite(norm)
        sums["grad_norm"] = norm.double().where(finite, 0.0)
        if self.dtype == torch.float16:
            sums["skipped_steps"] = (~finite).double()
        return sums

    def learn(self, batch: Batch, step: int, quiet: bool) -> tuple[Tensor, Figures]:
        """Add the gradients of a micro-batch.

        Args:
            batch: this rank's share.
            step: number of the micro-batch since the start.
            quiet: gradients are exchanged between ranks later.

        Returns:
            Its loss, and the loss's figures.
        """
        with without_sync(self.learner.wrapped, quiet):
            output = self.forward(self.learner, batch, step)
            loss = output.per_query_Q.mean() * batch.weight
            with self.clock.part("backward"):
                self.learner.optimization.backward(loss / self.config.accumulation_steps)
        return loss, {name: value * batch.weight for name, value in output.metrics.items()}

    def clip(self) -> Tensor:
        """Clip the gradients; return their norm."""
        return self.learner.optimization.clip()

    def take_step(self) -> None:
        self.learner.step()

    def forward(self, learner: Learner, batch: Batch, step: int, number: int = 0) -> LossOutput:
        """Compute the loss of a batch; ``number`` is that of the network, which draws its own dropout."""
        seed_step(self.seed, step, rank(), number)
        view, num_queries = self.view(learner, batch), len(batch.query_rows) - batch.num_fillers
        with self.clock.part("loss"):
            config = self.config
            return loss_in_tiles(
                view, config.loss, self.progress.epoch, num_queries, config.tile_queries, config.matryoshka_dims
            )

    def view(self, learner: Learner, batch: Batch) -> BatchView:
        """Return what the loss reads: encodings, the teacher's too, signals, and the flags of the noise detector."""
        view = learner.encode(batch, self.progress.global_step % self.config.loss.teacher_every == 0)
        if self.progress.clean is None:
            return view
        if self._clean is None or self._clean[0] is not self.progress.clean:
            self._clean = self.progress.clean, np.asarray(self.progress.clean, dtype=np.float32)
        clean_Q = torch.from_numpy(self._clean[1][batch.query_rows]).to(self.device)
        return replace(view, signals=(*view.signals, QuerySignal(CLEAN, clean_Q)))

    def _check_gradients(self) -> None:
        """Raise TrainingError, on every rank, if the gradients of a step since the last check are not finite.

        The optimiser has left such a step out. This comes before anything is kept.
        """
        bad = self._unchecked.first_bad()
        if bad is None:
            return
        (ago, loss), epoch = bad, self.progress.epoch
        step = self.progress.step - ago
        batches = next(self.batches.epoch(epoch, step - 1))
        ids = [self.batches.examples.query_ids[at] for batch in batches for at in batch.query_rows]
        raise TrainingError(
            f"the gradients are not finite (loss {loss}) in epoch {epoch + 1}, "
            f"step {step} of {self.num_steps}; rank {rank()}'s queries: {', '.join(ids[:8])}"
            f"{', ...' if len(ids) > 8 else ''}. The last checkpoint is kept. Lower the learning rate or "
            "model.scale, use dtype float32, or look at these queries"
        )

    def _after_step(self, step: int, metrics: Figures) -> None:
        self._sums = add_figures(self._sums, metrics)
        self.progress = self.progress.changed(step=step, global_step=self.progress.global_step + 1)
        every = self.config.checkpoint_steps
        logged, due = {}, every is not None and step % every == 0
        if self.clock.timed or due:
            self._check_gradients()
        if self.clock.timed:
            own = as_numbers(metrics) | self.clock.metrics() | {_SINCE: time.monotonic() - self._kept_at}
            logged = self.over_ranks(own)
            since = logged.pop(_SINCE)
            due |= since >= 60 * (self.config.checkpoint_minutes or math.inf)
            due |= since >= NOTICE_S and self.listener.has_notice()
            logged["learning_rate"] = self.learner.optimization.learning_rate
            logged["pairs_per_second"] = self.config.batch_size / logged["seconds"]
        self.listener.on_step(self.progress, self.num_steps, logged)
        if due and step < self.num_steps:
            self._kept_at = time.monotonic()
            self.progress = self.progress.changed(sums=numbers_over_ranks(self._take_sums(), self.device))
            self.listener.on_checkpoint(self.progress, self.copy)

    def _take_sums(self) -> dict[str, float]:
        """Take the sums of the epoch's steps so far, with those of the checkpoint that was resumed."""
        fresh, self._sums = as_numbers(self._sums), {}
        before = self.progress.sums
        return {key: before.get(key, 0.0) + fresh.get(key, 0.0) for key in before | fresh}

    def _finish_epoch(self) -> None:
        metrics = self.over_ranks({key: value / self.num_steps for key, value in self._take_sums().items()})
        # Sums, where the others are means over micro-batches, steps and ranks.
        metrics["filled"] = metrics.get("filled", 0.0) * self.num_steps * self.config.accumulation_steps * num_ranks()
        if "skipped_steps" in metrics:
            metrics["skipped_steps"] *= self.num_steps
            metrics["grad_norm"] *= self.num_steps / max(1.0, self.num_steps - metrics["skipped_steps"])
        progress = self.progress
        self.progress = progress.changed(
            epoch=progress.epoch + 1,
            step=0,
            sums={},
            history=[*progress.history, EpochRow(epoch=progress.epoch, metrics=metrics)],
            finished=progress.epoch + 1 >= self.config.num_epochs,
        )
        if self.dev is not None:
            self._validate(self.dev)
        self._kept_at = time.monotonic()
        self.listener.on_checkpoint(self.progress, self.copy)

    def _validate(self, dev: DevRetrieval) -> None:
        """Measure the network on dev after an epoch, and decide whether training ends."""
        value, figures = self.measure(dev)
        progress = self.progress.measured(value, figures, self.config.loss.first_own_epoch(self.config.num_epochs))
        epoch, best_epoch = progress.history[-1].epoch, progress.best_epoch
        if best_epoch == epoch and self.config.keep == "best":
            self.best = self.chosen.optimization.trainable_state()
        patience = self.config.dev.patience
        waited = patience is not None and best_epoch is not None and epoch - best_epoch >= patience
        self.progress = progress.changed(finished=progress.finished or waited)

    def measure(self, dev: DevRetrieval) -> tuple[float, dict[str, float]]:
        """Return the dev measure that chooses the epoch, and the figures for the history."""
        value = dev.measure(self.model, self.dtype)
        return value, {f"dev {self.config.dev.measure}": value}

    def over_ranks(self, figures: dict[str, float]) -> dict[str, float]:
        """Return the means over the ranks."""
        return numbers_over_ranks(figures, self.device)

    def copy(self) -> Save:
        """Copy everything that the next step depends on."""
        return with_progress(self.learner.copy(), self.progress, self.best)


def _check_dims(config: TrainConfig, model: DualEncoder) -> None:
    dims, score = config.matryoshka_dims, model.config.score.name
    if dims and score != "dual":
        raise ConfigError(f"train.matryoshka_dims is for model.score dual, and it is {score}: leave it empty")
    if dims and max(dims) > model.dim:
        raise ConfigError(f"train.matryoshka_dims has {max(dims)}, and the vectors have {model.dim} dimensions")
