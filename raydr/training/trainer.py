"""The training loop: epochs, steps, dev retrieval and checkpoints, under Ray Train, torchrun or in a single process."""

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

#: Name of the seconds since the last checkpoint, whose mean over the ranks decides for all ranks.
_SINCE = "since_checkpoint"
#: Minimum of seconds between two states after a cloud's notice that it takes a node back, 30 to 120 s in advance.
NOTICE_S = 10.0


#: The trainable weights of a network by name, on the CPU.
State = dict[str, Tensor]


@dataclass(eq=False)
class Trainer:
    """Trainer of a dual encoder; the result depends on the global batch, not on the number of ranks.

    Args:
        config: settings of training.
        model: student on its device.
        batches: maker of this rank's batches.
        dtype: dtype of the forward pass.
        seed: seed of the run.
        listener: listener of steps, detections and epochs.
        wrap: function that makes a network data-parallel, if there are several ranks.
        dev: measurement after each epoch; None without measurement.
        detector: detector of mismatched pairs; None without detection.
        trusted: pairs that people have confirmed, by query id and corpus row, which are never flagged.

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
        #: ``progress.clean``, and ŷ as an array, which was converted from that list.
        self._clean: tuple[list[float], NDArray[np.float32]] | None = None
        self.best: State | None = None
        #: Sums of the steps since ``progress.sums``, on the device.
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
        """Train to the end; then the model has the weights of the epoch that ``train.keep`` chooses.

        Args:
            until: number of epochs after which to stop, with the weights at that time; None trains to the end.

        Raises:
            TrainingError: gradients are not finite; raised at the next logged step, before a later state is saved.
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
        """The learner whose network is the result of training."""
        return self.learner

    def _epoch(self) -> None:
        self._prepare_epoch()
        epoch, first_step = self.progress.epoch, self.progress.step
        self.start_epoch()
        coming = self.batches.epoch(epoch, first_step)
        for step in range(first_step, self.num_steps):
            # A timed step first waits for earlier steps on the device, and the seconds of the epoch include this time.
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
        """Return whether a step, counted in its epoch from 1, is logged; called before ``progress`` counts the step."""
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
            # Figures and norms stay on the device until they are logged, so that nothing waits for it.
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
        """Compute the gradients of a micro-batch, and add them to those of the step.

        Args:
            batch: this rank's share.
            step: number of the micro-batch since the start.
            quiet: whether ranks exchange gradients in a later micro-batch.

        Returns:
            The loss and its figures.
        """
        with without_sync(self.learner.wrapped, quiet):
            output = self.forward(self.learner, batch, step)
            loss = output.per_query_Q.mean() * batch.weight
            with self.clock.part("backward"):
                self.learner.optimization.backward(loss / self.config.accumulation_steps)
        return loss, {name: value * batch.weight for name, value in output.metrics.items()}

    def clip(self) -> Tensor:
        """Clip the gradients; return their norm before clipping."""
        return self.learner.optimization.clip()

    def take_step(self) -> None:
        self.learner.step()

    def forward(self, learner: Learner, batch: Batch, step: int, number: int = 0) -> LossOutput:
        """Compute the loss of a batch; the ``number`` of the network determines its dropout."""
        seed_step(self.seed, step, rank(), number)
        view, num_queries = self.view(learner, batch), len(batch.query_rows) - batch.num_fillers
        with self.clock.part("loss"):
            config = self.config
            return loss_in_tiles(
                view, config.loss, self.progress.epoch, num_queries, config.tile_queries, config.matryoshka_dims
            )

    def view(self, learner: Learner, batch: Batch) -> BatchView:
        """Return the encodings, also the teacher's, the signals, and the flags of the detector, for the loss."""
        view = learner.encode(batch, self.progress.global_step % self.config.loss.teacher_every == 0)
        if self.progress.clean is None:
            return view
        if self._clean is None or self._clean[0] is not self.progress.clean:
            self._clean = self.progress.clean, np.asarray(self.progress.clean, dtype=np.float32)
        clean_Q = torch.from_numpy(self._clean[1][batch.query_rows]).to(self.device)
        return replace(view, signals=(*view.signals, QuerySignal(CLEAN, clean_Q)))

    def _check_gradients(self) -> None:
        """Raise TrainingError, on every rank, if the gradients of a step since the last check are not finite.

        The optimiser has skipped such a step. The check precedes every saved state.
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
        """Return the sums of the epoch's steps, also before a resumed checkpoint, and reset the sums on the device."""
        fresh, self._sums = as_numbers(self._sums), {}
        before = self.progress.sums
        return {key: before.get(key, 0.0) + fresh.get(key, 0.0) for key in before | fresh}

    def _finish_epoch(self) -> None:
        metrics = self.over_ranks({key: value / self.num_steps for key, value in self._take_sums().items()})
        # These are sums; the others are means over micro-batches, steps and ranks.
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
        """Measure the network on dev after an epoch, keep the best weights, and decide whether training ends."""
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
        """Copy the state of the training; return its writer."""
        return with_progress(self.learner.copy(), self.progress, self.best)


def _check_dims(config: TrainConfig, model: DualEncoder) -> None:
    dims, score = config.matryoshka_dims, model.config.score.name
    if dims and score != "dual":
        raise ConfigError(f"train.matryoshka_dims is for model.score dual, and it is {score}: leave it empty")
    if dims and max(dims) > model.dim:
        raise ConfigError(f"train.matryoshka_dims has {max(dims)}, and the vectors have {model.dim} dimensions")
