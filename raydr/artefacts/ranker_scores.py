"""What a ranker says of all that a retriever learns from: asked once, kept, and read by the losses that distil it.

Artefact ``ranker_scores``::

    scores/SPLIT/qrels/part-*.parquet       (query_id, passage_id, score) of the judged pairs
    scores/SPLIT/negatives/part-*.parquet   the same of the candidates that no judge has dropped
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.context import Context, encoders
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.scoring import PairReader, Scoring, scoring_of
from raydr.component import Neutral
from raydr.console import show_summary
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.data.tables import relevant
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_in, range_items, written
from raydr.distributed.pool import Batch, Feed, Pool
from raydr.models.encode_config import EncodeConfig
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder

KIND = "ranker_scores"


@dataclass(frozen=True)
class ScoresJob:
    """What every worker of one scoring knows; picklable."""

    data: Dataset
    corpus: Corpus
    negatives: Artifact
    output: Folder
    split: str
    scoring: Scoring


def ranker_scores(context: Context, ranker: Node, pairs: Node, negatives: Node | None) -> Node:
    """What a model says of the training split's pairs and candidates.

    Args:
        context: the config.
        ranker: a cross-encoder; or a retriever, whose similarities are scaled as its own losses see them.
        pairs: the data set that is trained on.
        negatives: mined candidates; those that came with the data if None.
    """
    return score_candidates.node(
        context.label("ranker-scores"),
        model=ranker,
        dataset=pairs,
        corpus=declare_corpus(context),
        negatives=negatives,
        split=context.config.data.train_split,
        settings=context.config.encode,
        arithmetic=context.facts.encoding(context.config.encode),
        demand=encoders(context.config),
    )


def _num_scored(of: Any) -> int:
    source = of.dataset if getattr(of, "negatives", None) is None else of.negatives
    return int(of.dataset.rows(f"qrels/{of.split}") + source.rows(f"negatives/{of.split}"))


@artefact(KIND, rows=_num_scored, asks_model=True)
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
        making: the ``ranker_scores`` artefact.
        pool: where scores are made.
        model: a ``cross_encoder``, which gives log-odds; or a ``model``, whose scores are times τ, as its losses see.
        dataset: queries and judgments.
        corpus: the passages.
        negatives: the candidates, judged or not; those that came with the data if None.
        split: the split.
        settings: of the workers.
        arithmetic: of the scores.

    Raises:
        DataError: the inputs were not made for each other.
    """
    scoring, queries = scoring_of(pool, model, settings, arithmetic), Dataset(dataset)
    queries.require_corpus(corpus)
    scoring.tell("ranker's scores")
    source = negatives or dataset
    items: dict[str, dict[str, Any]] = {}
    for artifact, under in ((dataset, "qrels"), (source, "negatives")):
        sizes = artifact.sizes(f"{under}/{split}")
        items |= range_items(f"scores/{split}/{under}/", sizes, scoring.num_pairs)
    job = ScoresJob(queries, Corpus(corpus), source, making.folder, split, scoring)
    feed_parts(making, pool, Feed(ScorePart, job, settings), items, "ranker's scores", "pairs")
    num_pairs = sum(making.done[name].rows for name in items)
    show_summary(f"a ranker's scores of {split}", {"pairs scored": f"{num_pairs:,}"})
    return {"split": split, "num_pairs": num_pairs, "scale": scoring.scale}


class ScorePart:
    """Holds the model; every call scores one range of the judgments or of the candidates."""

    def __init__(self, job: ScoresJob) -> None:
        self.job = job
        self.scale = job.scoring.scale
        self.reader = PairReader(job.data, job.corpus, job.split, job.scoring.open(probabilities=False))

    def __call__(self, batch: Batch) -> Batch:
        rows, job = range_in(batch), self.job
        judged = rows.part.startswith("qrels/")
        table = rows.of(read_arrow((job.data.artifact if judged else job.negatives).local(rows.part)))
        table = relevant(table) if judged else table.filter(pc.not_equal(table["action"], "drop"))
        table = table.select(["query_id", "passage_id"])
        scores_P = np.zeros(0)
        if table.num_rows:
            scores_P = self.reader.scores(table["query_id"].to_pylist(), table["passage_id"].to_pylist())
        scores = pa.array((self.scale * scores_P).astype(np.float32))
        return written(batch, job.output, table.append_column("score", scores))
