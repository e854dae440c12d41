"""Reranking of dev queries while a ranker trains: the measure that chooses its epoch."""

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

#: Pairs that are read at once, about.
_PAIRS = 1024


class RankerDev:
    """Orders the first passages of a run over dev queries by the model, and measures that; ranks share the queries.

    No ranker can find a positive that is not among the run's first passages.

    Args:
        run: rows of a run over the dev queries that are measured.
        queries: texts of at least these queries.
        qrels: judgments of these queries.
        corpus: the passages.
        tokenizer: of the model.
        config: how many passages a query, and the measure.
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
        #: What the run has, best first.
        self.ranking: dict[str, list[str]] = {query_id: [] for query_id in self.query_ids}
        for row in first.sort_by("rank").to_pylist():
            self.ranking[row["query_id"]].append(row["passage_id"])
        self.corpus = corpus
        self.tokenizer = tokenizer

    def before(self) -> float:
        """Return the mean measure of the run as it is."""
        return float(self._values(self.query_ids, self.ranking).mean())

    def measure(self, model: CrossEncoder, dtype: torch.dtype) -> float:
        """Return the mean measure of the model's order, the same on every rank.

        Args:
            model: the unwrapped model.
            dtype: arithmetic of its forward pass.
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
        """Yield each query's passages, best first; equal scores stay in the run's order."""
        asked = [query_id for query_id in query_ids if self.ranking[query_id]]
        ends = np.cumsum([len(self.ranking[query_id]) for query_id in asked])
        blocks = np.split(np.arange(len(asked)), np.searchsorted(ends, np.arange(_PAIRS, ends[-1:].sum(), _PAIRS)))
        for block in blocks:
            ids = [asked[at] for at in block]
            passages = [passage for query_id in ids for passage in self.ranking[query_id]]
            if not passages:
                continue
            texts = self.corpus.texts(self.corpus.rows_of(passages))
            questions = [self.texts[query_id] for query_id in ids for _ in self.ranking[query_id]]
            tokens = self.tokenizer(questions, texts.titles, texts.texts)
            budget = TOKEN_BUDGET[next(model.parameters()).device.type]
            scores_P = log_odds(model, tokens, budget, self.tokenizer.pad_id)
            start = 0
            for query_id in ids:
                stop = start + len(self.ranking[query_id])
                order = np.argsort(-scores_P[start:stop], kind="stable")
                yield query_id, [self.ranking[query_id][at] for at in order]
                start = stop
