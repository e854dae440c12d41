"""Reranking of dev queries during the training of a ranker, to choose its epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.tables import of_queries, relevance_by_query
from raydr.evaluation.metrics import Ranking, parse_measures, score_queries
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer, log_odds
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.precision import evaluating
from raydr.training.collectives import gather_interleaved, num_ranks, rank
from raydr.training.ranker_config import RankerDevConfig

#: Approximate number of pairs that are scored at a time.
_PAIRS = 1024


class RankerDev:
    """Measurement of a ranker, which reranks the first passages of a run over dev queries; ranks share the queries.

    Positives that are not among the run's first passages cannot be found.

    Args:
        run: rows of a run over the measured dev queries.
        queries: texts of at least these queries.
        qrels: judgments of these queries.
        corpus: passages.
        tokenizer: tokenizer of the model.
        config: depth and measure.
    """

    def __init__(
        self,
        run: pa.Table,
        queries: pa.Table,
        qrels: pa.Table,
        corpus: Corpus,
        tokenizer: PairTokenizer,
        config: RankerDevConfig,
    ) -> None:
        self.measures = parse_measures([config.measure], "ranker.dev.measure")
        self.qrels = relevance_by_query(qrels)
        self.query_ids = sorted(self.qrels)
        queries = of_queries(queries, self.query_ids)
        self.texts = dict(zip(*(queries[name].to_pylist() for name in ("query_id", "text")), strict=True))
        first = of_queries(run.filter(pc.less_equal(run["rank"], config.depth)), self.query_ids)
        #: Passages of the run by query, best first.
        self.ranking: dict[str, list[str]] = {query_id: [] for query_id in self.query_ids}
        for row in first.sort_by("rank").to_pylist():
            self.ranking[row["query_id"]].append(row["passage_id"])
        self.corpus = corpus
        self.tokenizer = tokenizer

    def before(self) -> float:
        """Return the mean measure of the run before reranking."""
        return float(self._values(self.query_ids, self.ranking).mean())

    def measure(self, model: CrossEncoder, dtype: torch.dtype) -> float:
        """Return the mean measure after reranking, equal on every rank.

        Args:
            model: model without DDP.
            dtype: dtype of its forward pass.
        """
        mine = self.query_ids[rank() :: num_ranks()]
        with evaluating(model, dtype) as device:
            values = self._values(mine, dict(self._ordered(model, mine)))
        return float(gather_interleaved(torch.from_numpy(values).to(device)).mean())

    def _values(self, query_ids: list[str], ranking: Ranking) -> NDArray[np.float64]:
        [values] = score_queries(
            self.measures, {query_id: self.qrels[query_id] for query_id in query_ids}, ranking
        ).values()
        return np.array([values.get(query_id, 0.0) for query_id in query_ids])

    def _ordered(self, model: CrossEncoder, query_ids: list[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each query's passages, best first; passages with equal scores keep the order of the run."""
        ranked = [query_id for query_id in query_ids if self.ranking[query_id]]
        ends = np.cumsum([len(self.ranking[query_id]) for query_id in ranked])
        blocks = np.split(np.arange(len(ranked)), np.searchsorted(ends, np.arange(_PAIRS, ends[-1:].sum(), _PAIRS)))
        for block in blocks:
            ids = [ranked[at] for at in block]
            passages = [passage for query_id in ids for passage in self.ranking[query_id]]
            if not passages:
                continue
            texts = self.corpus.texts(self.corpus.rows_of(passages))
            queries = [self.texts[query_id] for query_id in ids for _ in self.ranking[query_id]]
            tokens = self.tokenizer(queries, texts.titles, texts.texts)
            budget = TOKEN_BUDGET[next(model.parameters()).device.type]
            scores_P = log_odds(model, tokens, budget, self.tokenizer.pad_id)
            start = 0
            for query_id in ids:
                stop = start + len(self.ranking[query_id])
                order = np.argsort(-scores_P[start:stop], kind="stable")
                yield query_id, [self.ranking[query_id][at] for at in order]
                start = stop
