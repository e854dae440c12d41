"""The training loop: epochs, steps, dev retrieval, checkpoints. Runs under Ray Train, torchrun or alone."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raydr.errors import TrainingError
from raydr.losses.base import LossOutput
from raydr.models.dual_encoder import DualEncoder
from raydr.models.learning import merge_adapters
from raydr.training.batches import Batch, BatchMaker
from raydr.training.checkpoint import BEST, PEER, EpochRow, Progress, Save, load_progress, save_progress
from raydr.training.collectives import mean_over_ranks, num_ranks, rank
from raydr.training.config import TrainConfig
from raydr.training.coteaching import exchange
from raydr.training.cross_fitted import CrossFittedDetector
from raydr.training.detection import PairDetector, PairFlags, describe_detection, keep_trusted
from raydr.training.dev import DevRetrieval
from raydr.training.figures import Figures, add_figures, as_numbers, numbers_over_ranks
from raydr.training.learner import Learner
from raydr.training.optimization import seed_step
from raydr.training.scoring import BatchView
from raydr.training.step_clock import StepClock
from raydr.training.tiles import loss_in_tiles

#: Shares of a batch that co-teaching keeps: of all its pairs, and of noisy ones.
_KEPT, _KEPT_NOISE = "kept", "kept_noise"
#: Seconds since the last checkpoint; their mean over the ranks decides for all of them.
_SINCE = "since_checkpoint"


class Listener(Protocol):
    """What happens outside training. Every rank calls every method the same number of times."""

    def on_step(self, progress: Progress, num_steps: int, metrics: dict[str, float]) -> None:
        """After every optimiser step; ``metrics`` is empty except every ``log_steps``."""

    def on_detection(self, progress: Progress, flags: PairFlags) -> None:
        """After each detection of mismatched pairs."""

    def on_checkpoint(self, progress: Progress, copy: Callable[[], Save]) -> None:
        """When the state should be kept; ``copy`` takes it, here and now, and is to be called on rank 0 only."""


#: What learns of a network by name, on the CPU.
State = dict[str, Tensor]


@dataclass(frozen=True)
class Setup:
    """What the trainer works on."""

    config: TrainConfig
    model: DualEncoder
    #: Makes a network data-parallel, if there are several ranks.
    wrap: Callable[[nn.Module], nn.Module]
    batches: BatchMaker
    dev: DevRetrieval | None
    detector: PairDetector | CrossFittedDetector | None
    dtype: torch.dtype
    seed: int
    listener: Listener
    #: Pairs that people have called right, by query id and corpus row: no detector flags them.
    trusted: frozenset[tuple[str, int]] = frozenset()


class Trainer:
    """Trains a dual encoder; the result depends on the global batch and not on how many ranks share it.

    There is one learner, or two that teach each other: ``model`` is the first one's network, and in the end the one
    that was chosen.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = setup.config
        self.model = setup.model
        self.device = next(setup.model.parameters()).device
        self.num_steps = setup.batches.num_steps
        networks = [setup.model]
        if self.config.coteaching is not None:
            networks.append(copy.deepcopy(setup.model))
        total = self.num_steps * self.config.num_epochs
        self.clock = StepClock(self.device)
        self.learners = [
            Learner(network, setup.wrap(network), self.config, setup.dtype, total, self.clock) for network in networks
        ]
        self.progress = Progress()
        #: The flags of ``progress`` as they were last used, and as an array.
        self._clean: tuple[list[float], NDArray[np.float32]] | None = None
        self.best: State | None = None
        #: Sums over the steps that are not in ``progress`` yet, on the device.
        self._sums: Figures = {}
        self._kept_at = time.monotonic()

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.progress = load_progress(folder)
        for learner, place in zip(self.learners, _places(folder), strict=False):
            learner.load(place)
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
            self.learners[0].optimization.put_back(self.best)
        elif self.progress.better_network:
            self.model.load_state_dict(self.learners[self.progress.better_network].model.state_dict())
        if self.config.optimizer.lora is not None:
            merge_adapters(self.model)
        return self.progress

    def _epoch(self) -> None:
        self._prepare_epoch()
        epoch, first_step = self.progress.epoch, self.progress.step
        for learner in self.learners:
            learner.model.train()
        coming = self.setup.batches.epoch(epoch, first_step)
        for step in range(first_step, self.num_steps):
            self.clock.start(self._is_logged(step + 1))
            started = time.perf_counter()
            with self.clock.part("data"):
                batches = [batch.to(self.device) for batch in next(coming)]
            metrics = self._step(batches)
            metrics["seconds"] = time.perf_counter() - started
            self._after_step(step + 1, metrics)
        self._finish_epoch()

    def _is_logged(self, step: int) -> bool:
        """Whether the metrics of the epoch's ``step``-th step are told; from 1, and asked before it is counted."""
        return (self.progress.global_step + 1) % self.config.log_steps == 0 or step == self.num_steps

    def _prepare_epoch(self) -> None:
        """Teacher and noise flags for the epoch, unless a checkpoint has brought them."""
        loss, epoch = self.config.loss, self.progress.epoch
        warm = epoch >= loss.num_warmup_epochs
        if loss.needs_teacher and warm and self.learners[0].teacher is None:
            self.learners[0].start_teacher()
        detector = self.setup.detector
        if detector is None or not warm or self.progress.step:
            return
        if detector.once and self.progress.clean is not None:
            return
        examples = self.setup.batches.examples
        flags = detector.detect(self.model, epoch, self.setup.dtype)
        flags = keep_trusted(flags, self.setup.trusted, examples, epoch, self.setup.seed, self.config.positive)
        found = describe_detection(flags, epoch, examples.is_noise)
        trust = flags.trust_N(detector.config.weights).tolist()
        self.progress = self.progress.changed(clean=trust, detections=[*self.progress.detections, found])
        self.setup.listener.on_detection(self.progress, flags)

    def _step(self, batches: list[Batch]) -> Figures:
        sums: Figures = {}
        for at, batch in enumerate(batches):
            with ExitStack() as quietly:
                for learner in self.learners:
                    quietly.enter_context(learner.without_sync(at < len(batches) - 1))
                outputs = [
                    self._forward(learner, number, batch, self.progress.global_step * len(batches) + at)
                    for number, learner in enumerate(self.learners)
                ]
                losses, metrics = self._losses(outputs, batch)
                with self.clock.part("backward"):
                    for learner, loss in zip(self.learners, losses, strict=True):
                        learner.backward(loss / len(batches), quiet=at < len(batches) - 1)
            # Nothing waits for the device here: figures stay on it until somebody is told.
            values: Figures = {"loss": losses[0], "filled": float(batch.num_filled), **metrics}
            sums = add_figures(sums, values, 1 / len(batches))
        # After DDP's reduction the norms are the same on every rank, so that all of them stop or none.
        with self.clock.part("optimizer"):
            clipped = [learner.optimization.clip() for learner in self.learners]
            finite = all(bool(torch.isfinite(norm)) for norm, _ in clipped)
            if not finite:
                mean_loss = float(mean_over_ranks(torch.as_tensor(sums["loss"])))
                if not math.isfinite(mean_loss) or not all(usable for _, usable in clipped):
                    raise self._not_finite(batches, mean_loss)
            for learner in self.learners:
                learner.step()
        sums["grad_norm"] = clipped[0][0].double() if finite else 0.0
        if self.setup.dtype == torch.float16:
            sums["skipped_steps"] = float(not finite)
        return sums

    def _forward(self, learner: Learner, number: int, batch: Batch, step: int) -> LossOutput:
        seed_step(self.setup.seed, step, rank(), number)
        view, num_queries = self.view(learner, batch), len(batch.query_rows) - batch.num_fillers
        with self.clock.part("loss"):
            return loss_in_tiles(view, self.config.loss, self.progress.epoch, num_queries, self.config.tile_queries)

    def view(self, learner: Learner, batch: Batch) -> BatchView:
        """What the loss works on: encodings, the teacher's too, and the flags of the noise detector."""
        view = learner.encode(batch, self.progress.global_step % self.config.loss.teacher_every == 0)
        if self.progress.clean is None:
            return view
        if self._clean is None or self._clean[0] is not self.progress.clean:
            self._clean = self.progress.clean, np.asarray(self.progress.clean, dtype=np.float32)
        clean_Q = torch.from_numpy(self._clean[1][batch.query_rows]).to(self.device)
        return replace(view, clean_Q=clean_Q)

    def _losses(self, outputs: list[LossOutput], batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The scalar that each learner descends, and the metrics of the first."""
        if self.config.coteaching is None:
            metrics = {name: value * batch.weight for name, value in outputs[0].metrics.items()}
            return [outputs[0].per_query_Q.mean() * batch.weight], metrics
        keep_share = self.config.coteaching.keep_share(self.progress.epoch, self._share_flagged())
        losses, masks = exchange((outputs[0].per_query_Q, outputs[1].per_query_Q), keep_share)
        metrics = outputs[0].metrics | {"keep_share": torch.tensor(keep_share)}
        if self.setup.batches.examples.is_noise.any():
            kept = masks[0].cpu().numpy()
            is_noise = self.setup.batches.examples.is_noise[batch.query_rows[kept]]
            metrics |= {_KEPT: torch.tensor(kept.mean()), _KEPT_NOISE: torch.tensor(is_noise.sum() / len(kept))}
        return list(losses), metrics

    def _share_flagged(self) -> float | None:
        return self.progress.detections[-1]["share_flagged"] if self.progress.detections else None

    def _not_finite(self, batches: list[Batch], loss: float) -> TrainingError:
        ids = [self.setup.batches.examples.query_ids[at] for batch in batches for at in batch.query_rows]
        return TrainingError(
            f"the gradients are not finite (loss {loss}) in epoch {self.progress.epoch + 1}, "
            f"step {self.progress.step + 1} of {self.num_steps}; rank {rank()}'s queries: {', '.join(ids[:8])}"
            f"{', ...' if len(ids) > 8 else ''}. The last checkpoint is kept. Lower the learning rate or "
            "model.scale, use dtype float32, or look at these queries"
        )

    def _after_step(self, step: int, metrics: Figures) -> None:
        self._sums = add_figures(self._sums, metrics)
        self.progress = self.progress.changed(step=step, global_step=self.progress.global_step + 1)
        logged, due = {}, False
        if self.clock.timed:
            told = as_numbers(metrics) | self.clock.metrics() | {_SINCE: time.monotonic() - self._kept_at}
            logged = _with_noise_share(numbers_over_ranks(told, self.device))
            due = logged.pop(_SINCE) >= 60 * (self.config.checkpoint_minutes or math.inf)
            logged["learning_rate"] = self.learners[0].optimization.learning_rate
            logged["pairs_per_second"] = self.config.batch_size / logged["seconds"]
        self.setup.listener.on_step(self.progress, self.num_steps, logged)
        every = self.config.checkpoint_steps
        if (due or (every and step % every == 0)) and step < self.num_steps:
            self._kept_at = time.monotonic()
            self.progress = self.progress.changed(sums=numbers_over_ranks(self._take_sums(), self.device))
            self.setup.listener.on_checkpoint(self.progress, self._copy)

    def _take_sums(self) -> dict[str, float]:
        """The sums of the epoch's steps so far, those of a checkpoint that was gone on from among them."""
        fresh, self._sums = as_numbers(self._sums), {}
        before = self.progress.sums
        return {key: before.get(key, 0.0) + fresh.get(key, 0.0) for key in before | fresh}

    def _finish_epoch(self) -> None:
        metrics = numbers_over_ranks(
            {key: value / self.num_steps for key, value in self._take_sums().items()}, self.device
        )
        metrics = _with_noise_share(metrics)
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
        if self.setup.dev is not None:
            self._validate(self.setup.dev)
        self._kept_at = time.monotonic()
        self.setup.listener.on_checkpoint(self.progress, self._copy)

    def _validate(self, dev: DevRetrieval) -> None:
        """Measure the networks on dev after an epoch, and see whether training has come to its end."""
        name, progress = f"dev {self.config.dev.measure}", self.progress
        values = [dev.measure(learner.model, self.setup.dtype) for learner in self.learners]
        better = int(np.argmax(values))
        found = {name: values[better]}
        if len(values) > 1:
            found[f"{name}, the other network"] = values[1 - better]
        progress = progress.measured(values[better], found)
        epoch, best_epoch = progress.history[-1].epoch, progress.best_epoch
        if best_epoch == epoch and self.config.keep == "best":
            self.best = self.learners[better].optimization.learnt()
        patience = self.config.dev.patience
        waited = patience is not None and best_epoch is not None and epoch - best_epoch >= patience
        self.progress = progress.changed(better_network=better, finished=progress.finished or waited)

    def _copy(self) -> Save:
        learners = [learner.copy() for learner in self.learners]
        progress, best = self.progress, self.best

        def save(folder: Path) -> None:
            for learner, place in zip(learners, _places(folder), strict=False):
                learner(place)
            save_progress(folder, progress)
            if best is not None:
                save_file(best, folder / BEST)

        return save


def _places(folder: Path) -> tuple[Path, Path]:
    """Where the first and the second learner's state lie."""
    return folder, folder / PEER


def _with_noise_share(metrics: dict[str, float]) -> dict[str, float]:
    """Shares of the batch, which can be averaged, as the share of noise among the pairs that were kept."""
    if _KEPT not in metrics:
        return metrics
    share = metrics[_KEPT_NOISE] / metrics[_KEPT] if metrics[_KEPT] else 0.0
    return {key: value for key, value in metrics.items() if key not in (_KEPT, _KEPT_NOISE)} | {
        "noise_among_kept": share
    }
