"""Detection of mismatched training pairs, with the retriever in training or by cross-fitted margins."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.corpus import Corpus
from raydr.data.examples import Examples
from raydr.errors import ConfigError
from raydr.models.config import ModelConfig, Side
from raydr.models.dual_encoder import DualEncoder
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import encode_tokens
from raydr.models.precision import evaluating
from raydr.models.tokens import TextTokenizer
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.base import Detection
from raydr.noise.margins import Margins, PairMargins, npc_margins, random_pair_margins
from raydr.seeding import query_rng
from raydr.training.batches import positive_row
from raydr.training.collectives import broadcast_object, gather_interleaved, num_ranks, rank
from raydr.training.config import TrainConfig
from raydr.training.sections import PairDetectionConfig

#: Numbers of the random passages' vectors that are gathered at a time: 32 MiB.
_GATHERED_FLOATS = 1 << 23
#: Passages drawn besides where all that were drawn must not count.
_MORE_RANDOM = 100


@dataclass(frozen=True)
class PairFlags:
    """The result of a detection, the same on every rank."""

    margins: PairMargins
    detection: Detection

    @property
    def clean(self) -> NDArray[np.bool_]:
        return self.detection.clean

    def trust_N(self, weights: Literal["flags", "posterior"]) -> NDArray[np.float64]:
        """Return ŷ of each pair, see :attr:`raydr.training.config.PairDetectionConfig.weights`."""
        return np.exp(self.detection.log_posterior) if weights == "posterior" else self.clean.astype(np.float64)


def keep_trusted(
    flags: PairFlags, trusted: Collection[tuple[str, int]], examples: Examples, epoch: int, seed: int, positive: str
) -> PairFlags:
    """Return the flags with p(clean) = 1 for pairs that people have confirmed.

    Args:
        flags: of the epoch.
        trusted: query id and corpus row of these pairs, see :func:`trusted_rows`.
        examples: what is trained on.
        epoch, seed, positive: decide which positive of a query is meant, see
            :func:`raydr.training.batches.positive_row`.
    """
    if not trusted:
        return flags
    rows = (positive_row(examples, at, epoch, seed, positive) for at in range(len(examples)))
    right_N = np.array([pair in trusted for pair in zip(examples.query_ids, rows, strict=True)], dtype=np.bool_)
    detection = flags.detection
    log_posterior_N = np.where(right_N, 0.0, detection.log_posterior)
    return replace(flags, detection=replace(detection, clean=detection.clean | right_N, log_posterior=log_posterior_N))


def trusted_rows(trusted: pa.Table, corpus: Corpus) -> frozenset[tuple[str, int]]:
    """Return query id and corpus row of each pair of a table."""
    rows = corpus.rows_of(trusted["passage_id"].to_pylist()).tolist()
    return frozenset(zip(trusted["query_id"].to_pylist(), rows, strict=True))


def describe_detection(flags: PairFlags, epoch: int, is_noise: NDArray[np.bool_]) -> dict[str, Any]:
    """Summarise a detection: share flagged, mixture, and its precision and recall where noise was injected.

    Args:
        flags: the detection.
        epoch: the epoch it was made for, from 0.
        is_noise: the truth; all False if nothing is known.
    """
    detection = flags.detection
    row: dict[str, Any] = {
        "epoch": epoch,
        "share_flagged": float((~flags.clean).mean()),
        **detection.facts,
    }
    if is_noise.any():
        probability = -np.expm1(detection.log_posterior)
        report = report_detection(is_noise, ~flags.clean, flags.margins.pairs_N, probability)
        row |= {"precision": report.precision, "recall": report.recall, "auroc": report.auroc}
    return row


def gathered(values_N2: NDArray[np.float64], device: torch.device) -> PairMargins:
    """Gather the margins of all ranks, of pairs and of random pairs; each rank measures every ``num_ranks()``-th
    query."""
    merged_N2 = gather_interleaved(torch.from_numpy(values_N2).to(device)).cpu().numpy()
    return PairMargins(merged_N2[:, 0].copy(), merged_N2[:, 1].copy())


@dataclass
class PairDetector:
    """Measures the margins of all training pairs and flags mismatched pairs.

    One forward pass over the queries and their positives, shared among the ranks. The random passages of a query are
    positives of other pairs, drawn for (seed, epoch, query id). So the flags depend neither on the batch size nor on
    the number of workers.
    Source: Zhang et al. (EMNLP Findings 2023).
    """

    examples: Examples
    corpus: Corpus
    tokenizers: dict[Side, TextTokenizer]
    config: PairDetectionConfig
    train: TrainConfig
    seed: int

    def __post_init__(self) -> None:
        several = int((np.diff(self.examples.positives.offsets) > 1).sum())
        if self.once and self.train.positive != "first" and several:
            raise ConfigError(
                f"train.pair_detection.repeat is once, and {several} training queries have several positives: the flag "
                "of a positive would count for the others; set train.positive to first, or repeat to each_epoch"
            )

    @property
    def once(self) -> bool:
        """Whether the first detection is that of all epochs."""
        return self.config.repeat == "once"

    def detect(self, model: DualEncoder, epoch: int, dtype: torch.dtype) -> PairFlags:
        """Return the flags for the coming epoch."""
        measured = self.measure(model, epoch, dtype)
        detection = self.config.detector.detect(measured.pairs_N, measured.random_N) if rank() == 0 else None
        return PairFlags(measured, broadcast_object(detection))

    def measure(self, model: DualEncoder, epoch: int, dtype: torch.dtype) -> PairMargins:
        """Return the margin of every training pair, and of a random pair of each query, in the order of the
        examples.

        The same on every rank.
        """
        examples = self.examples
        rows = np.array(
            [positive_row(examples, at, epoch, self.seed, self.train.positive) for at in range(len(examples))]
        )
        if self.config.against == "hard":
            pool, column = np.unique(np.concatenate([rows, np.asarray(examples.negatives.values)]), return_inverse=True)
        else:
            pool, column = np.unique(rows, return_inverse=True)
        mine, texts = np.arange(rank(), len(examples), num_ranks()), self.corpus.texts(pool[rank() :: num_ranks()])
        with evaluating(model, dtype) as device:
            passages = gather_interleaved(self._encode(model, "passage", texts.titles, texts.texts, device))
            queries = self._encode(model, "query", None, [examples.texts[at] for at in mine], device)
        return gathered(self._margins(model.config, queries, passages, mine, column, pool, epoch), device)

    def _encode(
        self, model: DualEncoder, side: Side, titles: list[str] | None, texts: list[str], device: torch.device
    ) -> Tensor:
        tokenizer = self.tokenizers[side]
        tokens, budget = tokenizer(titles, texts), TOKEN_BUDGET[device.type]
        vectors = encode_tokens(model.tower(side), tokens, budget, tokenizer.pad_id, side)
        return torch.from_numpy(vectors).to(device)

    def _margins(
        self,
        config: ModelConfig,
        queries_ND: Tensor,
        passages_PD: Tensor,
        mine: NDArray[np.int64],
        column: NDArray[np.int64],
        pool: NDArray[np.int64],
        epoch: int,
    ) -> NDArray[np.float64]:
        values_N2 = np.empty((len(mine), 2), dtype=np.float64)
        rows = max(1, _GATHERED_FLOATS // (self.config.num_random * passages_PD[0].numel()))
        for start in range(0, len(mine), rows):
            share = mine[start : start + rows]
            against = np.stack([self._against(int(at), epoch, column, pool) for at in share])
            query_ND = queries_ND[start : start + len(share)]
            random_NMD = passages_PD[torch.from_numpy(np.maximum(against, 0)).to(passages_PD.device)]
            random_NM = config.logits(query_ND.unsqueeze(1), random_NMD).cpu().numpy()
            random_NM[against < 0] = -np.inf
            positive_ND = passages_PD[torch.from_numpy(column[share]).to(passages_PD.device)]
            positive_N = config.logits(query_ND, positive_ND).cpu().numpy()
            values_N2[start : start + len(share), 0] = npc_margins(positive_N, random_NM)
            # The columns were drawn for each query alone: the first is as random as any.
            first_N = np.zeros(len(share), dtype=np.int64)
            values_N2[start : start + len(share), 1] = random_pair_margins(random_NM, first_N)
        return values_N2

    def _against(self, at: int, epoch: int, column: NDArray[np.int64], pool: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns of the pool that a pair is measured against; −1 where a passage must not count."""
        num = self.config.num_random
        if self.config.against == "hard":
            hard = np.searchsorted(pool, np.asarray(self.examples.negatives[at])[:num])
            filled = self._random_columns(at, num - len(hard), epoch, column)
            drawn = np.concatenate([hard, filled])
        else:
            drawn = self._random_columns(at, num, epoch, column)
        columns = np.where(self._allowed(at, pool[drawn]), drawn, -1)
        if (columns < 0).all():
            # A few random passages may all be the pair's own positive.
            more = self._random_columns(at, num + _MORE_RANDOM, epoch, column)
            allowed = more[self._allowed(at, pool[more])][:num]
            columns = np.pad(allowed, (0, num - len(allowed)), constant_values=-1)
        return columns

    def _allowed(self, at: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~np.isin(self.corpus.content_hashes(rows).view(np.int64), self.examples.forbidden[at])

    def _random_columns(self, at: int, num: int, epoch: int, column: NDArray[np.int64]) -> NDArray[np.int64]:
        rng = query_rng(self.seed, epoch, self.examples.query_ids[at], "perplexity")
        return column[rng.integers(len(self.examples), size=num)]


class CrossFittedDetector:
    """Flags pairs by margins of models that have not seen them; the model in training is not used.

    The detector is fitted once, to all measured pairs. An epoch's flags are those of the positives that it uses. A
    positive without a margin counts as clean.

    Args:
        examples, corpus: what is trained on.
        margins: of the pairs.
        config: the detector.
        positive: which positive an epoch uses, ``train.positive``.
        seed: of the training.
    """

    def __init__(
        self,
        examples: Examples,
        corpus: Corpus,
        margins: Margins,
        config: PairDetectionConfig,
        positive: Literal["drawn", "first"],
        seed: int,
    ) -> None:
        self.examples = examples
        self.margins = margins
        self.config = config
        self.positive = positive
        self.seed = seed
        rows = corpus.rows_of_column(margins.passage_ids).tolist()
        pairs = zip(margins.query_ids.to_pylist(), rows, strict=True)
        self.place_of = {pair: at for at, pair in enumerate(pairs)}
        self.detection: Detection | None = None

    @property
    def once(self) -> bool:
        """Whether the first detection is that of all epochs."""
        return self.positive == "first" or len(self.examples.positives.values) == len(self.examples)

    def detect(self, model: DualEncoder, epoch: int, dtype: torch.dtype) -> PairFlags:
        """Return the flags for the coming epoch, the same on every rank; ``model`` and ``dtype`` are not used."""
        margin_M, random_M = self.margins.margin_N, self.margins.random_N
        if self.detection is None:
            detection = self.margins.detect(self.config.detector) if rank() == 0 else None
            self.detection = broadcast_object(detection)
        place_N = np.array([self._place(at, epoch) for at in range(len(self.examples))], dtype=np.int64)
        known_N = place_N >= 0
        detection = replace(
            self.detection,
            clean=np.where(known_N, self.detection.clean[place_N], True),
            log_posterior=np.where(known_N, self.detection.log_posterior[place_N], 0.0),
        )
        return PairFlags(
            PairMargins(
                np.where(known_N, margin_M[place_N], margin_M.min()), np.where(known_N, random_M[place_N], np.nan)
            ),
            detection,
        )

    def _place(self, at: int, epoch: int) -> int:
        row = positive_row(self.examples, at, epoch, self.seed, self.positive)
        return self.place_of.get((self.examples.query_ids[at], row), -1)
