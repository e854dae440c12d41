"""Training of a cross-encoder to rank positives before negatives, under Ray Train, torchrun or in a single process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.errors import TrainingError
from raydr.losses.base import Candidates, LossOutput
from raydr.models.backbone import choose_attention, choose_what_learns, merge_adapters
from raydr.models.batching import pad
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.models.precision import autocast
from raydr.models.training_config import CrossEncoderTraining
from raydr.seeding import query_rng
from raydr.training.batches import epoch_order, positive_row, random_rows, steps_per_epoch
from raydr.training.checkpoint import EpochRow, Progress, Save
from raydr.training.collectives import mean_over_ranks, num_ranks, rank, without_sync
from raydr.training.optimization import Optimization, UncheckedSteps, load_progress, seed_step, with_progress
from raydr.training.ranker_dev import RankerDev

#: Maximum of steps between two checks that gradients are finite.
_STEPS_UNCHECKED = 50


@dataclass(frozen=True)
class Lists:
    """Q queries with C passages each, the positive first.

    Args:
        query_rows: int64, shape (Q,), positions of the queries in the examples.
        passage_rows: int64, shape (Q, C), corpus rows.
        weights: float32, shape (Q, C), weights of the judges; 1 for the positive and random passages.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    weights: NDArray[np.float32]

    def candidates(self, scores_QC: Tensor) -> Candidates:
        """Return the scored candidates for a loss; a query's candidates are the passages of its list.

        Args:
            scores_QC: log-odds of relevance.
        """
        device = scores_QC.device
        is_hard_QC = torch.ones_like(scores_QC, dtype=torch.bool)
        is_hard_QC[:, 0] = False
        return Candidates(
            scores_QC=scores_QC,
            positive_Q=torch.zeros(len(self.query_rows), dtype=torch.int64, device=device),
            excluded_QC=torch.zeros_like(is_hard_QC),
            hard_QC=is_hard_QC,
            log_weight_QC=torch.from_numpy(np.log(self.weights)).to(device) if (self.weights != 1).any() else None,
        )


def draw_lists(
    examples: Examples,
    corpus: Corpus,
    query_rows: NDArray[np.int64],
    config: CrossEncoderTraining,
    seed: int,
    epoch: int,
) -> Lists:
    """Draw lists of a positive, hard negatives uniform among the candidates, and random passages.

    The draws for a query depend on (seed, epoch, query id) alone. Random passages fill a candidate list that is too
    short; known positives and dropped passages of the query are never drawn.
    """
    width = config.passages_per_query
    rows = np.empty((len(query_rows), width), dtype=np.int64)
    weights = np.ones((len(query_rows), width), dtype=np.float32)
    for line, at in enumerate(query_rows.tolist()):
        rng = query_rng(seed, epoch, examples.query_ids[at], "classifier")
        places = np.zeros(0, dtype=np.int64)
        if config.num_hard_negatives:
            places = rng.permutation(len(examples.negatives[at]))[: config.num_hard_negatives]
        hard = np.asarray(examples.negatives[at])[places]
        filled = random_rows(examples, corpus, at, width - 1 - len(hard), rng)
        rows[line] = [positive_row(examples, at, epoch, seed, "drawn"), *hard.tolist(), *filled.tolist()]
        weights[line, 1 : 1 + len(hard)] = np.asarray(examples.weights[at])[places]
    return Lists(query_rows, rows, weights)


@dataclass
class CrossEncoderTrainer:
    """Trainer of a cross-encoder; the result depends on the global batch, not on the number of ranks.

    Args:
        config: settings of training.
        seed: seed of the run.
        model: model on its device.
        tokenizer: tokenizer of the model.
        examples: queries with positives and candidates.
        corpus: passages.
        dtype: dtype of the forward pass.
        on_epoch: function called on every rank after each epoch, with a function that copies the state, for rank 0.
        on_step: function called on every rank after each step.
        wrap: function that makes the model data-parallel; None for a single process.
        dev: measurement of each epoch, the best of which becomes the model; None for the last epoch.
    """

    config: CrossEncoderTraining
    seed: int
    model: CrossEncoder
    tokenizer: PairTokenizer
    examples: Examples
    corpus: Corpus
    dtype: torch.dtype
    on_epoch: Callable[[Progress, Callable[[], Save]], None]
    on_step: Callable[[Progress], None]
    wrap: Callable[[nn.Module], nn.Module] | None = None
    dev: RankerDev | None = None

    def __post_init__(self) -> None:
        config, model = self.config, self.model
        self.device = next(model.parameters()).device
        choose_attention(model, self.device.type, self.dtype)
        choose_what_learns(model, config.optimizer, self.seed, f"{config.section}.optimizer")
        self.wrapped = self.wrap(model) if self.wrap is not None else model
        self.num_steps = steps_per_epoch(len(self.examples), config.batch_size, config.section)
        self.optimization = Optimization(model, config.optimizer, self.num_steps * config.num_epochs, self.dtype)
        self.progress = Progress()
        self._unchecked = UncheckedSteps(scaled=self.dtype == torch.float16)
        #: Trainable weights after the epoch that is best on dev.
        self.best: dict[str, Tensor] | None = None

    def resume(self, folder: Path) -> None:
        """Resume from a saved state."""
        self.progress, self.best = load_progress(folder)
        self.optimization.load(folder)

    def run(self) -> Progress:
        """Train to the end.

        Raises:
            TrainingError: the gradients are not finite.
        """
        self.model.train()
        while self.progress.epoch < self.config.num_epochs:
            epoch = self.progress.epoch
            order = epoch_order(len(self.examples), self.seed, epoch)
            steps: list[dict[str, Tensor]] = []
            for step in range(self.num_steps):
                seed_step(self.seed, epoch * self.num_steps + step, rank())
                steps.append(self._step(self._share(order, step), epoch))
                if (step + 1) % _STEPS_UNCHECKED == 0 or step + 1 == self.num_steps:
                    self._check_gradients(order, step, epoch)
                self.on_step(self.progress.changed(step=step + 1))
            metrics = {
                name: float(mean_over_ranks(torch.stack([figures[name] for figures in steps]).mean()))
                for name in steps[0]
            }
            self.progress = self.progress.changed(
                epoch=epoch + 1,
                global_step=(epoch + 1) * self.num_steps,
                history=[*self.progress.history, EpochRow(epoch=epoch, metrics=metrics)],
            )
            if self.dev is not None:
                self._validate(self.dev)
            self.on_epoch(self.progress, self._copy)
        if self.best is not None:
            self.optimization.load_trainable(self.best)
        if self.config.optimizer.lora is not None:
            merge_adapters(self.model)
        return self.progress

    def _validate(self, dev: RankerDev) -> None:
        """Measure the epoch on dev, and keep its weights if it is the best."""
        [name], value = dev.measures, dev.measure(self.model, self.dtype)
        first = self.config.loss.first_own_epoch(self.config.num_epochs)
        self.progress = self.progress.measured(value, {f"dev {name}": value}, first)
        if self.progress.best_epoch == self.progress.history[-1].epoch:
            self.best = self.optimization.trainable_state()

    def _step(self, query_rows: NDArray[np.int64], epoch: int) -> dict[str, Tensor]:
        """Take an optimiser step on this rank's share of a batch; return the loss and its figures."""
        pieces = np.split(query_rows, self.config.accumulation_steps)
        sums: dict[str, Tensor] = {}
        for number, piece in enumerate(pieces, start=1):
            with without_sync(self.wrapped, number < len(pieces)):
                output = self._forward(piece, epoch)
                loss = output.per_query_Q.mean()
                self.optimization.backward(loss / len(pieces))
            for name, value in {"loss": loss.detach(), **output.metrics}.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value / len(pieces)
        self._unchecked.add(self.optimization.clip(), sums["loss"])
        self.optimization.step()
        return sums

    def _share(self, order: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Return this rank's queries of a step, from the order of the epoch."""
        batch = order[step * self.config.batch_size : (step + 1) * self.config.batch_size]
        return np.split(batch, num_ranks())[rank()]

    def _check_gradients(self, order: NDArray[np.int64], step: int, epoch: int) -> None:
        """Raise TrainingError, on every rank, if the gradients of a step since the last check are not finite."""
        bad = self._unchecked.first_bad()
        if bad is None:
            return
        ago, loss = bad
        ids = [self.examples.query_ids[at] for at in self._share(order, step - ago)[:8]]
        raise TrainingError(
            f"the cross-encoder's gradients are not finite (loss {loss}) in epoch {epoch + 1}, "
            f"step {step - ago + 1} of {self.num_steps}; rank {rank()}'s queries: {', '.join(ids)}. Lower "
            f"{self.config.section}.optimizer.learning_rate, or use dtype float32"
        )

    def _forward(self, query_rows: NDArray[np.int64], epoch: int) -> LossOutput:
        lists = draw_lists(self.examples, self.corpus, query_rows, self.config, self.seed, epoch)
        texts = self.corpus.texts(lists.passage_rows.ravel())
        num_queries, width = lists.passage_rows.shape
        queries = [self.examples.texts[at] for at in np.repeat(query_rows, width)]
        tokens = self.tokenizer(queries, texts.titles, texts.texts)
        batch = pad(tokens, np.arange(tokens.num_rows), self.tokenizer.pad_id)
        with autocast(self.device, self.dtype):
            scores_P = self.wrapped(**{key: value.to(self.device) for key, value in batch.items()})
        return self.config.loss.compute(lists.candidates(scores_P.float().view(num_queries, width)), epoch)

    def _copy(self) -> Save:
        return with_progress(self.optimization.copy(), self.progress, self.best)
