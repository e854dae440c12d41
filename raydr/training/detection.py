"""Detection of mismatched training pairs, by margins of the retriever in training or by cross-fitted margins."""

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

#: Numbers in the vectors of random passages that are gathered at a time: 32 MiB.
_GATHERED_FLOATS = 1 << 23
#: Further random passages if all drawn passages are forbidden.
_MORE_RANDOM = 100


@dataclass(frozen=True)
class PairFlags:
    """The margins and flags of a detection, equal on every rank."""

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
        flags: flags of the epoch.
        trusted: query id and corpus row of the confirmed pairs, see :func:`trusted_rows`.
        examples: training queries.
        epoch, seed, positive: arguments of :func:`raydr.training.batches.positive_row`, the positive of the epoch.
    """
    if not trusted:
        return flags
    rows = (positive_row(examples, at, epoch, seed, positive) for at in range(len(examples)))
    trusted_N = np.array([pair in trusted for pair in zip(examples.query_ids, rows, strict=True)], dtype=np.bool_)
    detection = flags.detection
    log_posterior_N = np.where(trusted_N, 0.0, detection.log_posterior)
    clean_N = detection.clean | trusted_N
    return replace(flags, detection=replace(detection, clean=clean_N, log_posterior=log_posterior_N))


def trusted_rows(trusted: pa.Table, corpus: Corpus) -> frozenset[tuple[str, int]]:
    """Return query id and corpus row of each pair of a table."""
    rows = corpus.rows_of(trusted["passage_id"].to_pylist()).tolist()
    return frozenset(zip(trusted["query_id"].to_pylist(), rows, strict=True))


def describe_detection(flags: PairFlags, epoch: int, is_noise: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a row on a detection: share of flagged pairs, facts of the fit, and with injected noise precision, recall
    and AUROC.

    Args:
        flags: flags of the epoch.
        epoch: epoch of the flags, from 0.
        is_noise: whether each pair is injected noise; all False without injection.
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
    """Gather the margins of pairs and of random pairs, of which each rank has every ``num_ranks()``-th query."""
    merged_N2 = gather_interleaved(torch.from_numpy(values_N2).to(device)).cpu().numpy()
    return PairMargins(merged_N2[:, 0].copy(), merged_N2[:, 1].copy())


@dataclass
class PairDetector:
    """Detector of mismatched training pairs by their margins under the model in training.

    The ranks share a forward pass over the queries and their positives. The random passages of a query are positives of
    other pairs, drawn by (seed, epoch, query id). Flags therefore depend neither on the batch size nor on the number of
    workers.

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
        """Return the margin of every training pair, and of a random pair of each query, equal on every rank."""
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
            # Columns are drawn for each query alone, so that the first is a random passage.
            first_N = np.zeros(len(share), dtype=np.int64)
            values_N2[start : start + len(share), 1] = random_pair_margins(random_NM, first_N)
        return values_N2

    def _against(self, at: int, epoch: int, column: NDArray[np.int64], pool: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the columns in the pool of the passages that a pair is compared with; −1 for a forbidden passage."""
        num = self.config.num_random
        if self.config.against == "hard":
            hard = np.searchsorted(pool, np.asarray(self.examples.negatives[at])[:num])
            filled = self._random_columns(at, num - len(hard), epoch, column)
            drawn = np.concatenate([hard, filled])
        else:
            drawn = self._random_columns(at, num, epoch, column)
        columns = np.where(self._allowed(at, pool[drawn]), drawn, -1)
        if (columns < 0).all():
            # If ``num`` is small, all random passages may be the query's positive.
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
    """Detector of mismatched training pairs by their margins under models that were not trained on them.

    The detector is fitted once, to all measured pairs. The flags of an epoch are those of its positives. A positive
    without a margin counts as clean.

    Args:
        examples, corpus: training queries and passages.
        margins: cross-fitted margins of the pairs.
        config: settings of the detection.
        positive: rule for the positive of an epoch, ``train.positive``.
        seed: seed of the training.
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
        """Return the flags for the coming epoch, equal on every rank; ``model`` and ``dtype`` are not used."""
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
