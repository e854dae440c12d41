"""Scores of a ranker: reranked runs, and scores that distillation losses read.

Artefact ``run``: the best passages of another run, reranked.

Artefact ``ranker_scores``::

    scores/SPLIT/qrels/part-*.parquet       (query_id, passage_id, score) of the judged pairs
    scores/SPLIT/negatives/part-*.parquet   the same, of candidates that no judge dropped
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_corpus, declare_data
from raydr.artefacts.run import Run, rank_rows
from raydr.artefacts.scoring import PairReader, Scoring, scoring_of
from raydr.component import Neutral
from raydr.console import show_summary
from raydr.data import Corpus, Dataset
from raydr.data.tables import RUNS, read_arrow, relevant
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_in, range_items, written
from raydr.distributed.pool import Batch, Feed, Pool
from raydr.models.encode_config import EncodeConfig
from raydr.store import Artifact, Building, Folder

KIND = "ranker_scores"


@dataclass(frozen=True)
class ScoresJob:
    """Inputs and settings of the scoring, for its workers; picklable.

    Args:
        source: artefact of the scored candidates or run.
        data, corpus: queries, judgments and passages.
        output: folder of the artefact.
        split: split of the queries.
        scoring: scoring of pairs.
        depth: reranked passages of each query.
    """

    source: Artifact
    data: Dataset
    corpus: Corpus
    output: Folder
    split: str
    scoring: Scoring
    depth: int = 0

    def reader(self) -> PairReader:
        """Load the model into a worker."""
        return PairReader(self.data, self.corpus, self.split, self.scoring.open(probabilities=False))


def ranker_scores(context: Context, ranker: Node, pairs: Node, negatives: Node | None) -> Node:
    """Return the node of a ranker's scores of the training pairs and candidates.

    Args:
        context: config and facts.
        ranker: cross-encoder, or retriever, whose similarities are multiplied by its scale.
        pairs: data set of the training.
        negatives: mined candidates; the data set's own if None.
    """
    return score_candidates.node(
        context.label("ranker-scores"),
        model=ranker,
        dataset=pairs,
        corpus=declare_corpus(context),
        negatives=negatives,
        split=context.config.data.train_split,
        **context.scoring(),
    )


def _num_scored(of: Any) -> int:
    source = of.dataset if getattr(of, "negatives", None) is None else of.negatives
    return int(of.dataset.rows(f"qrels/{of.split}") + source.rows(f"negatives/{of.split}"))


@artefact(KIND, version=2, rows=_num_scored, asks_model=True)
def score_candidates(
    making: Building,
    pool: Pool,
    model: Artifact,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None = None,
    *,
    split: str,
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic,
) -> dict[str, Any]:
    """Score the judged pairs of a split and its candidate negatives.

    Args:
        making: ``ranker_scores`` artefact to make.
        pool: pool for the scores.
        model: ``cross_encoder``, which returns log-odds, or ``model``, whose similarities are multiplied by its scale.
        dataset: queries and judgments.
        corpus: corpus of the passages.
        negatives: mined or judged candidates; the data set's own if None.
        split: split of the queries.
        settings: settings of the workers.
        arithmetic: device and dtype of the scores.
    """
    scoring, queries = scoring_of(pool, model, settings, arithmetic), Dataset(dataset)
    scoring.tell("ranker's scores")
    source = negatives or dataset
    items: dict[str, dict[str, Any]] = {}
    for artifact, under in ((dataset, "qrels"), (source, "negatives")):
        sizes = artifact.sizes(f"{under}/{split}")
        items |= range_items(f"scores/{split}/{under}/", sizes, scoring.num_pairs)
    job = ScoresJob(source, queries, Corpus(corpus), making.folder, split, scoring)
    feed_parts(making, pool, Feed(ScorePart, job, settings), items, "ranker's scores", "pairs")
    num_pairs = sum(making.done[name].rows for name in items)
    show_summary(f"a ranker's scores of {split}", {"pairs scored": f"{num_pairs:,}"})
    return {"split": split, "num_pairs": num_pairs, "scale": scoring.scale}


class ScorePart:
    """Worker that holds the model; a call scores a range of the judgments or candidates."""

    def __init__(self, job: ScoresJob) -> None:
        self.job, self.reader, self.scale = job, job.reader(), job.scoring.scale

    def __call__(self, batch: Batch) -> Batch:
        rows, job = range_in(batch), self.job
        judged = rows.part.startswith("qrels/")
        table = rows.of(read_arrow((job.data.artifact if judged else job.source).local(rows.part)))
        table = relevant(table) if judged else table.filter(pc.not_equal(table["action"], "drop"))
        table = table.select(["query_id", "passage_id"])
        scores_P = np.zeros(0)
        if table.num_rows:
            scores_P = self.reader.scores(table["query_id"].to_pylist(), table["passage_id"].to_pylist())
        scores = pa.array((self.scale * scores_P).astype(np.float32))
        return written(batch, job.output, table.append_column("score", scores))


def reranked(context: Context, ranked: Node, model: Node, split: str, system: str) -> Node:
    """Return the node of a reranked run.

    Args:
        context: config.
        ranked: run to rerank.
        model: cross-encoder or retriever.
        split: split of the run.
        system: name of the new run.
    """
    return rerank.node(
        context.label("rerank", system, split),
        run=ranked,
        model=model,
        **declare_data(context),
        split=split,
        depth=context.config.rerank.depth,
        system=system,
        **context.scoring(),
    )


@artefact("run", version=2, rows=lambda of: of.run.rows(), asks_model=True)
def rerank(
    making: Building,
    pool: Pool,
    run: Artifact,
    model: Artifact,
    dataset: Artifact,
    corpus: Artifact,
    *,
    split: str,
    depth: int,
    system: Annotated[str, Neutral],
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic,
) -> dict[str, Any]:
    """Score the first ``depth`` passages of each query again and sort by these scores; drop the rest.

    Scores are log-odds of relevance of a cross-encoder, or similarities of a retriever without the scale. Ties follow
    trec_eval's rule.

    Args:
        making: ``run`` artefact to make.
        pool: pool for the scores.
        run: run to rerank.
        model: ``cross_encoder`` or retriever.
        dataset: data set of the queries.
        corpus: corpus of the passages.
        split: split of the queries.
        depth: passages of each query.
        system: name of the new run in tables.
        settings: settings of the workers.
        arithmetic: arithmetic of the scores.
    """
    scoring, queries = scoring_of(pool, model, settings, arithmetic), Dataset(dataset)
    scoring.tell("rerank")
    # In a run deeper than ``depth``, a range of rows holds fewer scored pairs.
    top_k = int(run.info.get("top_k") or depth)
    items = range_items("", run.sizes(), scoring.num_pairs * max(1, top_k // depth))
    job = ScoresJob(run, queries, Corpus(corpus), making.folder, split, scoring, depth)
    feed_parts(making, pool, Feed(RerankPart, job, settings), items, "rerank", "rows")
    num_pairs = sum(making.done[name].rows for name in items)
    show_summary(f"{system} on {split}", {"pairs scored": f"{num_pairs:,}"})
    return {"system": system, "split": split, "top_k": min(depth, top_k), "num_pairs": num_pairs}


class RerankPart:
    """Worker that holds the model; a call reranks the queries that begin in a range of rows."""

    def __init__(self, job: ScoresJob) -> None:
        self.job, self.reader = job, job.reader()
        # Consecutive ranges share a part.
        self.part = lru_cache(maxsize=1)(Run(job.source).part)

    def __call__(self, batch: Batch) -> Batch:
        rows = range_in(batch)
        best = first_ranks(self.part(rows.part), rows.start, rows.stop, self.job.depth)
        if not best.num_rows:
            return written(batch, self.job.output, RUNS.empty_table())
        query_ids, passage_ids = (best[name].combine_chunks() for name in ("query_id", "passage_id"))
        scores_P = self.reader.scores(query_ids.to_pylist(), passage_ids.to_pylist())
        return written(batch, self.job.output, rank_rows(query_ids, passage_ids, pa.array(scores_P)))


def first_ranks(part: pa.Table, start: int, end: int, depth: int) -> pa.Table:
    """Return the first ``depth`` rows of the queries whose best row is in ``start`` to ``end``.

    Each query of a part thus belongs to exactly one range of rows.

    >>> part = pa.table({"query_id": ["a", "a", "a", "b", "b"], "rank": [1, 2, 3, 1, 2]})
    >>> [first_ranks(part, *ends, depth=2)["query_id"].to_pylist() for ends in ((0, 2), (2, 5))]
    [['a', 'a'], ['b', 'b']]
    """
    ranks = part["rank"].to_numpy()
    best = np.maximum.accumulate(np.where(ranks == 1, np.arange(len(part)), 0))
    return part.filter(pa.array((best >= start) & (best < end) & (ranks <= depth)))
