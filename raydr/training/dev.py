"""Retrieval of dev queries during training, in a part of the corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.data.corpus import Corpus
from raydr.data.parts import within
from raydr.data.tables import SplitTables, choose_queries, of_queries, relevance_by_query
from raydr.errors import DataError
from raydr.evaluation.metrics import deepest_cutoff, parse_measures, score_queries
from raydr.models.config import SIDES, Side
from raydr.models.dual_encoder import DualEncoder
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.inference import encode_tokens
from raydr.models.precision import evaluating
from raydr.models.tokens import TextTokenizer, Tokens
from raydr.seeding import stable_hash64
from raydr.training.collectives import broadcast_object, gather_interleaved, num_ranks, rank
from raydr.training.sections import DevConfig

#: Minimum of ranked passages per query; a measure with a deeper cutoff ranks more.
_DEPTH = 100


@dataclass(frozen=True)
class DevSet:
    """Dev queries, their judgments, and the passages to rank."""

    query_ids: list[str]
    query_texts: list[str]
    qrels: dict[str, dict[str, int]]
    passage_ids: list[str]
    passage_rows: NDArray[np.int64]
    #: Whether a passage is outside the query's partitions, (Q, P); None without such restrictions.
    elsewhere_QP: NDArray[np.bool_] | None = None
    #: Query and passage of each dropped pair, (N, 2); dropped passages are not ranked.
    dropped_N2: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))


def build_dev_set(
    queries: pa.Table, qrels: pa.Table, negatives: pa.Table, corpus: Corpus, config: DevConfig, seed: int
) -> DevSet:
    """Choose dev queries by (seed, query_id), and passages to rank: judged passages, negatives and random passages of
    the queries' partitions.

    Raises:
        DataError: no query has a judgment.
    """
    judged_queries = sorted(set(queries["query_id"].to_pylist()) & set(qrels["query_id"].to_pylist()))
    if not judged_queries:
        raise DataError(
            f"none of the {len(queries):,} dev queries has a judgment, and no epoch can be measured: set "
            "data.dev_split to a split with judgments, or to '' to train without"
        )
    chosen = set(choose_queries(judged_queries, config.max_queries, seed))
    queries = of_queries(queries, sorted(chosen)).sort_by("query_id")
    qrels, negatives = (of_queries(table, queries["query_id"]) for table in (qrels, negatives))
    own = queries["partition"].fill_null("").to_pylist()
    confined = [within(config.scope, partition, own) for partition in own]
    judged = sorted(set(qrels["passage_id"].to_pylist()) | set(negatives["passage_id"].to_pylist()))
    rng = np.random.default_rng(stable_hash64("dev passages", seed))
    pool = corpus.pool(None if None in confined else frozenset[str]().union(*filter(None, confined)))
    places = rng.choice(len(pool), size=min(config.random_passages, len(pool)), replace=False)
    rows = np.unique(np.concatenate([corpus.rows_of(judged), pool.rows(places.astype(np.int64))]))
    elsewhere = None
    if any(partitions is not None for partitions in confined):
        of_passages = corpus.partitions(rows)
        elsewhere = np.stack([~np.isin(of_passages, list(partitions or of_passages)) for partitions in confined])
    ids = queries["query_id"].to_pylist()
    dropped = negatives.filter(pc.equal(negatives["action"], "drop"))
    dropped_N2 = np.stack(
        [
            pc.index_in(dropped["query_id"], value_set=pa.array(ids, pa.string())).to_numpy(),
            np.searchsorted(rows, corpus.rows_of_column(dropped["passage_id"])),
        ],
        axis=1,
    )
    texts = queries["text"].to_pylist()
    return DevSet(ids, texts, relevance_by_query(qrels), corpus.ids(rows), rows, elsewhere, dropped_N2)


class DevRetrieval:
    """Measurement of a model on dev queries; each rank encodes a share, and rank 0 scores.

    Args:
        tables: queries, judgments and candidates of the split.
        corpus: all passages.
        tokenizers: tokenizers by side.
        config: measure, and numbers of queries and passages.
        seed: seed of the choice of queries and passages.
    """

    def __init__(
        self, tables: SplitTables, corpus: Corpus, tokenizers: dict[Side, TextTokenizer], config: DevConfig, seed: int
    ) -> None:
        self.measures = parse_measures([config.measure], "train.dev.measure")
        dev = self.dev = build_dev_set(*tables, corpus, config, seed)
        self.pad_ids = {side: tokenizer.pad_id for side, tokenizer in tokenizers.items()}
        mine = slice(rank(), None, num_ranks())
        texts = corpus.texts(dev.passage_rows[mine])
        self.tokens: dict[Side, Tokens] = {
            "query": tokenizers["query"](None, dev.query_texts[mine]),
            "passage": tokenizers["passage"](texts.titles, texts.texts),
        }

    def measure(self, model: DualEncoder, dtype: torch.dtype) -> float:
        """Return the mean of the configured measure over the dev queries, equal on every rank.

        Args:
            model: model without DDP, so that ranks may have different numbers of batches.
            dtype: dtype of the encoder.
        """
        ranking = self.rank_passages(model, dtype, max(_DEPTH, deepest_cutoff(self.measures.values())))
        value = None
        if ranking is not None:
            by_query = score_queries(self.measures, self.dev.qrels, ranking)
            value = float(np.mean([value for values in by_query.values() for value in values.values()]))
        return float(broadcast_object(value))

    def rank_passages(self, model: DualEncoder, dtype: torch.dtype, depth: int) -> dict[str, list[str]] | None:
        """Return the best ``depth`` passages for each dev query, best first; None except on rank 0."""
        scores_QP = self.scores(model, dtype)
        if scores_QP is None:
            return None
        best_QK, top_QK = scores_QP.topk(min(depth, scores_QP.shape[1]), dim=1)
        ranked = zip(self.dev.query_ids, top_QK.tolist(), torch.isneginf(best_QK).tolist(), strict=True)
        return {
            query_id: [self.dev.passage_ids[at] for at, is_elsewhere in zip(top, out, strict=True) if not is_elsewhere]
            for query_id, top, out in ranked
        }

    def scores(self, model: DualEncoder, dtype: torch.dtype) -> Tensor | None:
        """Return similarities (Q, P) of the dev queries and passages; None except on rank 0.

        They are −inf for passages outside a query's partitions, and for its dropped passages.
        """
        with evaluating(model, dtype) as device:
            vectors = {side: self._encode(model, side, device) for side in SIDES}
        if rank():
            return None
        with torch.no_grad():
            scores_QP = self._score(model.config.score.all_pairs, vectors)
        query_N, passage_N = self.dev.dropped_N2.T
        scores_QP[torch.from_numpy(query_N), torch.from_numpy(passage_N)] = -torch.inf
        return scores_QP

    def _score(self, all_pairs: Callable[[Tensor, Tensor], Tensor], vectors: dict[Side, Tensor]) -> Tensor:
        elsewhere_QP = self.dev.elsewhere_QP
        if elsewhere_QP is None:
            return all_pairs(vectors["query"], vectors["passage"])
        scores_QP = torch.full(elsewhere_QP.shape, -torch.inf, device=vectors["query"].device)
        scopes, scope_Q = np.unique(elsewhere_QP, axis=0, return_inverse=True)
        for at, elsewhere_P in enumerate(scopes):
            rows_Q, rows_P = (
                torch.from_numpy(np.flatnonzero(is_in_block)).to(scores_QP.device)
                for is_in_block in (scope_Q.ravel() == at, ~elsewhere_P)
            )
            block_scores_QP = all_pairs(vectors["query"][rows_Q], vectors["passage"][rows_P])
            scores_QP[rows_Q.unsqueeze(1), rows_P] = block_scores_QP
        return scores_QP

    def _encode(self, model: DualEncoder, side: Side, device: torch.device) -> Tensor:
        budget, pad_id = TOKEN_BUDGET[device.type], self.pad_ids[side]
        vectors = encode_tokens(model.tower(side), self.tokens[side], budget, pad_id, side)
        return gather_interleaved(torch.from_numpy(vectors).to(device))
