"""Training batches whose content depends on (seed, epoch, step), not on the number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.errors import ConfigError, DataError
from raydr.models.batching import PaddedGroups, move, pad_in_groups
from raydr.models.config import Side
from raydr.models.tokens import TextTokenizer, Tokens
from raydr.negatives.samplers.base import CandidateList
from raydr.seeding import query_rng, stable_hash64
from raydr.training.config import TrainConfig
from raydr.training.signals import BatchSignal, DrawnBatch, Signal

#: Cost of a further pass of the encoder, in tokens, by kind of device: it takes a few milliseconds to start the
#: kernels (docs/performance.md).
GROUP_OVERHEAD = {"cpu": 64, "cuda": 4096}

#: Content hash of an empty place, which is a candidate of no query.
ABSENT = 0


@dataclass(frozen=True)
class Batch:
    """A rank's share of a global (micro-)batch: queries, and the same number of passages for each query.

    Args:
        query_rows: positions of the queries in the examples; fillers come last and repeat a query.
        queries: tokens of the queries.
        passages: tokens of the passages, ordered by query: its positive, then its negatives.
        passage_hash_P: int64, content hash of each passage; ``ABSENT`` in empty places.
        forbidden_QF: int64, content hashes of passages that are no negatives of each query; the last hash is repeated
            as padding.
        num_filled: number of negatives drawn at random from the corpus because a candidate list was too short.
        signals: signals of the queries and passages.
        num_fillers: number of queries at the end that only make the shares of all ranks equally large. They have no
            loss, and their passages are excluded for all queries.
        weight: factor of the mean over this share's queries, so that the mean over ranks is that over the global batch.
    """

    query_rows: NDArray[np.int64]
    queries: PaddedGroups
    passages: PaddedGroups
    passage_hash_P: Tensor
    forbidden_QF: Tensor
    num_filled: int
    signals: tuple[BatchSignal, ...] = ()
    num_fillers: int = 0
    weight: float = 1.0

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        tensors: dict[str, Any] = {
            name: move(tensor, device) for name, tensor in vars(self).items() if isinstance(tensor, Tensor)
        }
        queries, passages = self.queries.to(device), self.passages.to(device)
        signals = tuple(signal.to(device) for signal in self.signals)
        return replace(self, queries=queries, passages=passages, signals=signals, **tensors)


def epoch_order(num_examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the examples in an epoch."""
    return np.random.default_rng(stable_hash64("order", seed, epoch)).permutation(num_examples)


def steps_per_epoch(num_examples: int, batch_size: int, section: str = "train") -> int:
    """Return the number of whole batches in an epoch, which leaves out the remaining examples.

    Args:
        num_examples: number of queries with a positive.
        batch_size: value of the setting ``SECTION.batch_size``.
        section: section of the setting, for messages.

    Raises:
        ConfigError: there are fewer examples than ``batch_size``.
    """
    if num_examples < batch_size:
        raise ConfigError(
            f"{section}.batch_size is {batch_size}, but there are only {num_examples} training queries with a positive"
        )
    return num_examples // batch_size


@dataclass
class BatchMaker:
    """Maker of the batches of a rank.

    Args:
        examples: training queries.
        corpus: passages.
        tokenizers: tokenizers by side.
        config: settings of training.
        seed: seed of the run.
        rank, num_ranks: number of this rank, and number of ranks, which determine its share of each batch.
        group_overhead: cost of a further pass of the encoder in tokens, see :data:`GROUP_OVERHEAD`.
        signals: signals of the examples.
    """

    examples: Examples
    corpus: Corpus
    tokenizers: dict[Side, TextTokenizer]
    config: TrainConfig
    seed: int
    rank: int
    num_ranks: int
    group_overhead: int = GROUP_OVERHEAD["cpu"]
    signals: Sequence[Signal] = ()

    def __post_init__(self) -> None:
        self.num_steps = steps_per_epoch(len(self.examples), self.config.batch_size)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[list[Batch]]:
        """Yield the micro-batches of each step of an epoch; a thread makes those of the next step ahead."""
        order = epoch_order(len(self.examples), self.seed, epoch)
        with ThreadPoolExecutor(max_workers=1) as ahead:
            pending = ahead.submit(self._step, order, epoch, first_step) if first_step < self.num_steps else None
            for step in range(first_step, self.num_steps):
                assert pending is not None
                batches = pending.result()
                if step + 1 < self.num_steps:
                    pending = ahead.submit(self._step, order, epoch, step + 1)
                yield batches

    def _step(self, order: NDArray[np.int64], epoch: int, step: int) -> list[Batch]:
        size = self.config.batch_size
        batch = order[step * size : (step + 1) * size]
        micro = np.split(batch, self.config.accumulation_steps)
        return [self._share(rows, epoch) for rows in micro]

    def _share(self, query_rows: NDArray[np.int64], epoch: int) -> Batch:
        """Make this rank's share of a micro-batch; ranks with a query less than others add a filler."""
        shares = np.array_split(query_rows, self.num_ranks)
        mine = shares[self.rank]
        batch = self.make(mine, epoch, len(shares[0]) - len(mine))
        return replace(batch, weight=len(mine) * self.num_ranks / len(query_rows))

    def make(self, query_rows: NDArray[np.int64], epoch: int, num_fillers: int = 0) -> Batch:
        """Make a batch of queries with passages drawn for an epoch, and of ``num_fillers`` fillers."""
        num_queries = len(query_rows)
        query_rows = np.concatenate([query_rows, query_rows[:1].repeat(num_fillers)])
        draws = [self._draw(int(at), epoch) for at in query_rows]
        drawn = DrawnBatch(
            query_rows=query_rows,
            passage_rows=np.stack([draw.rows for draw in draws]),
            is_listed=np.stack([draw.is_listed for draw in draws]),
            log_draw_prob=np.stack([draw.log_probs for draw in draws]),
        )
        rows = drawn.passage_rows.ravel()
        hashes = self.corpus.content_hashes(rows).view(np.int64).copy()
        hashes[np.concatenate([draw.absent for draw in draws])] = ABSENT
        hashes[num_queries * self.config.passages_per_query :] = ABSENT
        texts = self.corpus.texts(rows)
        query_tokens = self.tokenizers["query"](None, [self.examples.texts[at] for at in query_rows])
        passage_tokens = self.tokenizers["passage"](texts.titles, texts.texts)
        forbidden = [np.asarray(self.examples.forbidden[int(at)], dtype=np.int64) for at in query_rows]
        width = max(len(hashes) for hashes in forbidden)
        padded = np.stack([np.pad(hashes, (0, width - len(hashes)), mode="edge") for hashes in forbidden])
        signals = [signal.of(drawn) for signal in self.signals]
        return Batch(
            query_rows=query_rows,
            queries=self._pad(query_tokens, "query"),
            passages=self._pad(passage_tokens, "passage"),
            passage_hash_P=torch.from_numpy(hashes),
            forbidden_QF=torch.from_numpy(padded),
            num_filled=sum(draw.num_missing for draw in draws[:num_queries]),
            signals=tuple(signal for signal in signals if signal is not None),
            num_fillers=num_fillers,
        )

    def _pad(self, tokens: Tokens, side: Side) -> PaddedGroups:
        return pad_in_groups(tokens, self.tokenizers[side].pad_id, self.group_overhead, self.config.cache_tokens)

    def _draw(self, at: int, epoch: int) -> _Draw:
        examples, num = self.examples, self.config.num_hard_negatives
        # Empty places hold the positive, since every place is encoded.
        rows = np.full(1 + num, positive_row(examples, at, epoch, self.seed, self.config.positive), dtype=np.int64)
        absent, is_listed = np.zeros(1 + num, np.bool_), np.zeros(1 + num, np.bool_)
        is_listed[0] = True
        log_probs = np.full(1 + num, np.nan, np.float32)
        if not num:
            return _Draw(rows, absent, is_listed, log_probs, num_missing=0)
        rng = query_rng(self.seed, epoch, examples.query_ids[at], "negatives")
        positive_score = float(examples.positive_scores[at])
        known = CandidateList(examples.scores[at], None if np.isnan(positive_score) else positive_score)
        drawn = self.config.sampler.sample(known, num, rng)
        end, last = 1 + len(drawn.indices), 1 + num - drawn.num_absent
        is_listed[1:end] = True
        rows[1:end] = examples.negatives[at][drawn.indices]
        rows[end:last] = random_rows(examples, self.corpus, at, last - end, rng)
        absent[last:] = True
        log_probs[end:] = -np.log(len(examples.pool(at)))
        if drawn.log_draw_prob is not None:
            log_probs[1:end] = drawn.log_draw_prob
        return _Draw(rows, absent, is_listed, log_probs, drawn.num_missing)


@dataclass(frozen=True)
class _Draw:
    """The G passages of a query, the positive first.

    Args:
        rows: rows of the passages in the corpus.
        absent: whether each place is empty.
        is_listed: as in :class:`~raydr.training.signals.DrawnBatch`.
        log_probs: log-probabilities of the draws; NaN if unknown.
        num_missing: number of negatives that the candidate list lacked.
    """

    rows: NDArray[np.int64]
    absent: NDArray[np.bool_]
    is_listed: NDArray[np.bool_]
    log_probs: NDArray[np.float32]
    num_missing: int


def positive_row(examples: Examples, at: int, epoch: int, seed: int, rule: str) -> int:
    """Return the corpus row of a query's positive in an epoch: its first, or a drawn positive, by ``rule``."""
    positives = examples.positives[at]
    if rule == "first" or len(positives) == 1:
        return int(positives[0])
    return int(positives[query_rng(seed, epoch, examples.query_ids[at], "positive").integers(len(positives))])


#: Maximum of draws for a passage, after which the pool counts as empty.
_DRAWS = 1000


def random_rows(examples: Examples, corpus: Corpus, at: int, num: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw corpus rows uniformly, with replacement, without known positives and dropped passages of the query.

    Raises:
        DataError: the corpus, or the query's partition, has hardly any other passages.
    """
    rows, pool = np.zeros(0, dtype=np.int64), examples.pool(at)
    forbidden = np.asarray(examples.forbidden[at], dtype=np.int64)
    for _ in range(_DRAWS):
        if len(rows) == num:
            return rows
        drawn = pool.rows(rng.integers(max(1, len(pool)), size=num - len(rows)))
        allowed = ~np.isin(corpus.content_hashes(drawn).view(np.int64), forbidden)
        rows = np.concatenate([rows, drawn[allowed]])
    partition = f" of partition {examples.partitions[at]!r}" if len(pool) < len(corpus) else ""
    raise DataError(
        f"query {examples.query_ids[at]}: {num} random negatives are needed, and nearly all of the {len(pool)} "
        f"passages{partition} are its positives or were dropped for it; take a larger corpus, or a judge that drops "
        "fewer" + (", or set partition.negatives to split or all" if partition else "")
    )
