"""Training a cross-encoder to tell positives from negatives. Runs under Ray Train, torchrun or alone."""

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
from raydr.models.attention import choose_attention
from raydr.models.batching import pad
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.noise.judge_models import ClassifierConfig
from raydr.seeding import query_rng
from raydr.training.batches import epoch_order, positive_row, steps_per_epoch
from raydr.training.checkpoint import EpochRow, Progress, load_progress, save_progress
from raydr.training.collectives import mean_over_ranks, num_ranks, rank
from raydr.training.optimization import Optimization, seed_step
from raydr.training.random_passages import random_rows


@dataclass(frozen=True)
class LabelledPairs:
    """Queries with passages: the first of each query's is its positive, the others are negatives.

    Args:
        query_rows: positions of the queries in the examples, one a pair.
        passage_rows: corpus rows, one a pair.
        labels: float32, 1 for positives.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    labels: NDArray[np.float32]


def draw_pairs(
    examples: Examples, corpus: Corpus, query_rows: NDArray[np.int64], config: ClassifierConfig, seed: int, epoch: int
) -> LabelledPairs:
    """Each query with a positive, hard negatives drawn evenly from its candidates, and random passages.

    What is drawn for a query depends on (seed, epoch, query id) alone. A candidate list that is too short is filled up
    with random passages, none of them a known positive or dropped for the query.
    """
    width = 1 + config.num_hard_negatives + config.num_random_negatives
    rows = np.empty((len(query_rows), width), dtype=np.int64)
    for line, at in enumerate(query_rows.tolist()):
        rng = query_rng(seed, epoch, examples.query_ids[at], "classifier")
        hard = np.zeros(0, dtype=np.int64)
        if config.num_hard_negatives:
            hard = rng.permutation(np.asarray(examples.negatives[at]))[: config.num_hard_negatives]
        filled = random_rows(examples, corpus, at, width - 1 - len(hard), rng)
        rows[line] = [positive_row(examples, at, epoch, seed, "drawn"), *hard.tolist(), *filled.tolist()]
    labels = np.zeros(rows.shape, dtype=np.float32)
    labels[:, 0] = 1.0
    return LabelledPairs(np.repeat(query_rows, width), rows.ravel(), labels.ravel())


class CrossEncoderTrainer:
    """Binary cross-entropy over labelled pairs; the result depends on the global batch, not on how many ranks share it.

    Args:
        config: settings of training.
        seed: the run's seed.
        model: on its device.
        tokenizer: of the model.
        examples: queries with positives and candidates.
        corpus: the passages.
        dtype: arithmetic of the forward pass.
        on_epoch: called on every rank after each epoch; ``save`` writes the state and is for rank 0 only.
        wrap: makes the model data-parallel; None for a single process.
    """

    def __init__(
        self,
        config: ClassifierConfig,
        seed: int,
        model: CrossEncoder,
        tokenizer: PairTokenizer,
        examples: Examples,
        corpus: Corpus,
        dtype: torch.dtype,
        on_epoch: Callable[[Progress, Callable[[Path], None]], None],
        wrap: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        self.config = config
        self.seed = seed
        choose_attention(model, next(model.parameters()).device.type, dtype)
        self.model = model
        self.wrapped = wrap(model) if wrap is not None else model
        self.tokenizer = tokenizer
        self.examples = examples
        self.corpus = corpus
        self.dtype = dtype
        self.on_epoch = on_epoch
        self.device = next(model.parameters()).device
        self.num_steps = steps_per_epoch(len(examples), config.batch_size)
        self.optimization = Optimization(model, config.optimizer, self.num_steps * config.num_epochs, dtype)
        self.progress = Progress()

    def resume(self, folder: Path) -> None:
        """Go on from what ``save`` wrote."""
        self.progress = load_progress(folder)
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
            losses: list[Tensor] = []
            for step in range(self.num_steps):
                batch = order[step * self.config.batch_size : (step + 1) * self.config.batch_size]
                seed_step(self.seed, epoch * self.num_steps + step, rank())
                losses.append(self._step(np.split(batch, num_ranks())[rank()], epoch))
            loss = float(mean_over_ranks(torch.stack(losses).mean()))
            history = [*self.progress.history, EpochRow(epoch=epoch, metrics={"loss": loss})]
            self.progress = self.progress.changed(
                epoch=epoch + 1, global_step=(epoch + 1) * self.num_steps, history=history
            )
            self.on_epoch(self.progress, self._save)
        return self.progress

    def _step(self, query_rows: NDArray[np.int64], epoch: int) -> Tensor:
        pairs = draw_pairs(self.examples, self.corpus, query_rows, self.config, self.seed, epoch)
        texts = self.corpus.texts(pairs.passage_rows)
        tokens = self.tokenizer([self.examples.texts[at] for at in pairs.query_rows], texts.titles, texts.texts)
        batch = pad(tokens, np.arange(tokens.num_rows), self.tokenizer.pad_id)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            log_odds_P = self.wrapped(**{key: value.to(self.device) for key, value in batch.items()})
        labels_P = torch.from_numpy(pairs.labels).to(self.device)
        loss: Tensor = nn.functional.binary_cross_entropy_with_logits(log_odds_P.float(), labels_P)
        self.optimization.backward(loss)
        _, usable = self.optimization.clip()
        if not usable:
            ids = [self.examples.query_ids[at] for at in query_rows[:8]]
            raise TrainingError(
                f"the classifier's gradients are not finite (loss {float(loss)}) in epoch {epoch + 1}; rank {rank()}'s "
                f"queries: {', '.join(ids)}. Lower judge.classifier.optimizer.learning_rate, or use dtype float32"
            )
        self.optimization.step()
        return loss.detach()

    def _save(self, folder: Path) -> None:
        self.optimization.save(folder)
        save_progress(folder, self.progress)
