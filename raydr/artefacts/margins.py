"""Margins of a split's pairs, each by a model that has not seen it.

Artefact ``margins``::

    measures/SPLIT/part-*.parquet   (query_id, passage_id, truth, fold, margin, random_pair), a row per pair; the
                                    last two are lists with a number per draw of random passages
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.artefacts.declaration import artefact
from raydr.artefacts.folds import SplitPairs, fold_of_queries, fold_of_texts
from raydr.artefacts.scoring import Scoring, scoring_of
from raydr.component import Neutral
from raydr.data import Corpus, Dataset
from raydr.data.dataset import query_texts
from raydr.data.noise_injection import MISMATCHED
from raydr.data.tables import of_queries, read_arrow
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_in, range_items, written
from raydr.distributed.pool import Batch, Feed, Pool
from raydr.errors import DataError
from raydr.models.encode_config import EncodeConfig
from raydr.noise.folds import IntArray
from raydr.noise.margins import mean_margins
from raydr.seeding import query_rng, stable_hash64
from raydr.store import Artifact, Building, Folder

if TYPE_CHECKING:
    import torch

    from raydr.models.pair_scoring import DualEncoderScorer

_RANGE_PAIRS = 2_000
#: Maximum of passages that random passages of a fold are drawn from; every worker encodes them.
POOL_SIZE = 4_096
#: Minimum of such passages for a held-out split; passages of the corpus fill it up.
MIN_POOL_SIZE = 64


@dataclass(frozen=True)
class FoldsJob:
    """Inputs and settings of the measurement, for its workers; picklable.

    Args:
        split: measured split.
        data, corpus: data of the pairs.
        folds: fold of each query of this split, or of the split that it is held out of.
        output: folder of the parts.
        scorings: scoring of each fold, by the model that was not trained on it.
        num_random: random passages per pair.
        num_draws: draws of random passages.
        seed: seed of the draws.
    """

    split: str
    data: Dataset
    corpus: Corpus
    folds: Artifact
    output: Folder
    scorings: tuple[Scoring, ...]
    num_random: int
    num_draws: int
    seed: int

    @property
    def is_held_out(self) -> bool:
        """Whether the models were trained on another split."""
        return bool(self.folds.info["split"] != self.split)


@artefact("margins", version=4, rows=lambda of: of.dataset.rows(f"qrels/{of.split}"), asks_model=True)
def measure_folds(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    folds: Artifact,
    models: Mapping[str, Artifact],
    *,
    split: str,
    num_random: int,
    num_draws: int,
    seed: int,
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic,
) -> dict[str, Any]:
    """Measure the margin of every pair and of a random pair, by the model of its fold.

    See :func:`raydr.noise.margins.mean_margins`. Random passages are annotated passages of the fold, without the
    query's positives and their copies. For each pair ``num_random`` + 1 are drawn: the last replaces the positive in
    the random pair.

    The models of a training split also measure a split that is held out of it. If the text of a query is in a fold, the
    model without that fold measures it; otherwise the hash of the text chooses a model. Random passages are then those
    of the whole split.

    Args:
        making: ``margins`` artefact to make.
        pool: pool that scores pairs.
        dataset, corpus: data of the pairs.
        folds: fold of each query of this split, or of the split that it is held out of.
        models: models by fold that they were not trained on.
        split: measured split.
        num_random: random passages per pair; fewer in a small fold.
        num_draws: draws of random passages.
        seed: seed of the draws.
        settings: settings of the workers.
        arithmetic: device and dtype of the scores.

    Raises:
        DataError: a fold has too few passages.
    """
    scorings = tuple(scoring_of(pool, model, settings, arithmetic) for model in models.values())
    job = FoldsJob(split, Dataset(dataset), Corpus(corpus), folds, making.folder, scorings, num_random, num_draws, seed)
    items = range_items(f"measures/{split}/", dataset.sizes(f"qrels/{split}"), _RANGE_PAIRS)
    feed_parts(making, pool, Feed(MeasureFolds, job, settings), items, "cross-fit: margins", "rows")
    return {"split": split, "num_folds": len(scorings), "pairs": sum(making.done[name].rows for name in items)}


@dataclass(frozen=True)
class _Fold:
    """Model of a fold, and the passages that random passages are drawn from."""

    scorer: DualEncoderScorer
    content_P: NDArray[np.uint64]
    vector_PD: torch.Tensor


class MeasureFolds:
    """Worker that holds the models of all folds, with the vectors of their passages."""

    def __init__(self, job: FoldsJob) -> None:
        self.job = job
        self.data, self.corpus = job.data, job.corpus
        pairs = SplitPairs.of(self.data, self.corpus, job.split)
        noise = pairs.qrels["noise"]
        self.truth_is_known = noise.null_count < len(noise)
        self.fold_N = self._fold_of(pairs)
        self.fold_of = dict(zip(pairs.qrels["query_id"].to_pylist(), self.fold_N.tolist(), strict=True))
        self.text_of = dict(zip(pairs.qrels["query_id"].to_pylist(), pairs.text_N.tolist(), strict=True))
        # Queries of the same text share their positives and dropped passages, which are random for none of them.
        dropped = of_queries(self.data.dropped(job.split), list(self.text_of))
        texts = [self.text_of[query_id] for query_id in dropped["query_id"].to_pylist()]
        contents = self.corpus.content_hashes(self.corpus.rows_of_column(dropped["passage_id"]))
        text_M = np.concatenate([pairs.text_N, np.array(texts, dtype=pairs.text_N.dtype)])
        order = np.argsort(text_M, kind="stable")
        self.text_T, self.first_T = np.unique(text_M[order], return_index=True)
        self.content_M = np.concatenate([pairs.content_N, contents])[order]
        # Without training, the checkpoint is the model of all folds.
        scoring_of = {scoring.model.fingerprint: scoring for scoring in job.scorings}
        scorers = {model: scoring.open_retriever() for model, scoring in scoring_of.items()}
        self.folds = [
            self._fold(fold, scorers[scoring.model.fingerprint], pairs) for fold, scoring in enumerate(job.scorings)
        ]

    def _fold_of(self, pairs: SplitPairs) -> IntArray:
        """Return the fold of each pair, whose model measures it; copies of a query share it."""
        query_ids = pairs.qrels["query_id"].to_pylist()
        if not self.job.is_held_out:
            return fold_of_queries(self.job.folds, self.job.split, query_ids)
        fold_of_text = fold_of_texts(self.job.folds, self.data, self.job.folds.info["split"])
        texts, any_N = query_texts(self.data, self.job.split, query_ids), pairs.text_N % len(self.job.scorings)
        return np.array([fold_of_text.get(text, fold) for text, fold in zip(texts, any_N.tolist(), strict=True)])

    def _fold(self, fold: int, scorer: DualEncoderScorer, pairs: SplitPairs) -> _Fold:
        import torch

        row_N = pairs.row_N if self.job.is_held_out else pairs.row_N[self.fold_N == fold]
        rng = np.random.default_rng(stable_hash64("cross-fit pool", self.job.seed, fold))
        lacking = min(MIN_POOL_SIZE - len(np.unique(pairs.content_N)), len(self.corpus))
        if self.job.is_held_out and lacking > 0:
            row_N = np.concatenate([row_N, rng.choice(len(self.corpus), lacking, replace=False)])
        contents, first = np.unique(self.corpus.content_hashes(row_N), return_index=True)
        rows = row_N[first]
        if len(contents) > POOL_SIZE:
            chosen = np.sort(rng.choice(len(contents), POOL_SIZE, replace=False))
            contents, rows = contents[chosen], rows[chosen]
        texts = self.corpus.texts(rows)
        return _Fold(scorer, contents, torch.from_numpy(scorer.encode("passage", texts.titles, texts.texts)))

    def __call__(self, batch: Batch) -> Batch:
        mine = range_in(batch)
        rows = mine.of(read_arrow(self.data.artifact.local(mine.part)))
        pairs = rows.filter(pc.greater(rows["relevance"], 0))
        query_ids, passage_ids = pairs["query_id"].to_pylist(), pairs["passage_id"].to_pylist()
        fold_N = np.array([self.fold_of[query_id] for query_id in query_ids], dtype=np.int64)
        values_N2D = np.empty((len(query_ids), 2, self.job.num_draws), dtype=np.float64)
        for fold in np.unique(fold_N):
            place = np.flatnonzero(fold_N == fold)
            values_N2D[place] = self._measure(
                self.folds[fold], [query_ids[at] for at in place], [passage_ids[at] for at in place]
            )
        table = pa.table(
            {
                "query_id": pa.array(query_ids, pa.string()),
                "passage_id": pa.array(passage_ids, pa.string()),
                "fold": fold_N,
                "margin": _lists(values_N2D[:, 0]),
                "random_pair": _lists(values_N2D[:, 1]),
                "truth": pa.array(
                    [noise == MISMATCHED if self.truth_is_known else None for noise in pairs["noise"].to_pylist()],
                    pa.bool_(),
                ),
            }
        )
        return written(batch, self.job.output, table)

    def _measure(self, fold: _Fold, query_ids: list[str], passage_ids: list[str]) -> NDArray[np.float64]:
        """Return the margins of each pair and of its random pair, for each draw, shape (N, 2, D)."""
        import torch

        config = fold.scorer.config
        unique = list(dict.fromkeys(query_ids))
        query_UD = torch.from_numpy(fold.scorer.encode("query", None, query_texts(self.data, self.job.split, unique)))
        number = {query_id: at for at, query_id in enumerate(unique)}
        positive_ND = self._positives(fold, self.corpus.rows_of(passage_ids))
        values_N2D = np.empty((len(query_ids), 2, self.job.num_draws), dtype=np.float64)
        for at, query_id in enumerate(query_ids):
            query_1D = query_UD[number[query_id]].unsqueeze(0)
            scores_P = config.logits_QP(query_1D, fold.vector_PD)[0].double().numpy()
            drawn_DM = scores_P[self._draw(fold, query_id, passage_ids[at])]
            positive = float(config.logits(query_1D, positive_ND[at].unsqueeze(0))[0])
            values_N2D[at, 0] = mean_margins(np.full(len(drawn_DM), positive), drawn_DM[:, :-1])
            values_N2D[at, 1] = mean_margins(drawn_DM[:, -1], drawn_DM[:, :-1])
        return values_N2D

    def _positives(self, fold: _Fold, row_N: IntArray) -> torch.Tensor:
        """Return the vectors of the pairs' passages, shape (N, D); most are among the fold's passages."""
        import torch

        from raydr.models.batching import widen

        content_N = self.corpus.content_hashes(row_N)
        place_N = np.searchsorted(fold.content_P, content_N).clip(max=len(fold.content_P) - 1)
        vector_ND = fold.vector_PD[place_N]
        missing_N = fold.content_P[place_N] != content_N
        if missing_N.any():
            texts = self.corpus.texts(row_N[missing_N])
            others = torch.from_numpy(fold.scorer.encode("passage", texts.titles, texts.texts))
            most = max(others.shape[1], vector_ND.shape[1])
            vector_ND = widen(vector_ND, most)
            vector_ND[missing_N] = widen(others, most)
        return vector_ND

    def _draw(self, fold: _Fold, query_id: str, passage_id: str) -> IntArray:
        """Return indices of the fold's passages, shape (D, R + 1); the last is the passage of the random pair."""
        text = self.text_of[query_id]
        at = int(np.searchsorted(self.text_T, np.uint64(text)))
        end = self.first_T[at + 1] if at + 1 < len(self.first_T) else len(self.content_M)
        allowed = np.flatnonzero(~np.isin(fold.content_P, self.content_M[self.first_T[at] : end]))
        if len(allowed) < 2:
            raise DataError(
                f"only {len(allowed)} of {len(fold.content_P)} different passages in its fold are unrelated to query "
                f"{query_id!r}, and two are needed: "
                + ("add passages to the corpus" if self.job.is_held_out else "bring more pairs of different passages")
            )
        rng = query_rng(self.job.seed, 0, f"{query_id}\n{passage_id}", "cross-fit")
        num = min(self.job.num_random + 1, len(allowed))
        return np.stack([rng.choice(allowed, num, replace=False) for _ in range(self.job.num_draws)])


def _lists(values_ND: NDArray[np.float64]) -> pa.Array:
    """Return a column of lists of D numbers."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values_ND.ravel()), values_ND.shape[1])
