"""Scores of a sample of queries with their positives, hard negatives and random passages, for an audit's pictures."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import MISMATCHED
from raydr.data.schema import read_arrow, read_parquet, write_parquet
from raydr.data.subset import choose_queries
from raydr.seeding import query_rng
from raydr.stages.judge_negatives import known_false_negatives, positives_of, query_texts
from raydr.stages.units import Scoring, Unit, unit_of, write_unit
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: What a passage is to its query.
POSITIVE, MISMATCHED_POSITIVE, HARD, RANDOM, FALSE_NEGATIVE = (
    "positives",
    "mismatched positives",
    "hard negatives",
    "other queries' positives",
    "known false negatives",
)
KINDS = (POSITIVE, MISMATCHED_POSITIVE, HARD, FALSE_NEGATIVE, RANDOM)

SAMPLE = "sample.parquet"

_PURPOSE = "audit"


def draw_pairs(
    dataset: Folder,
    corpus: Folder,
    negatives: Folder | None,
    split: str,
    seed: int,
    num_queries: int,
    num_candidates: int,
    num_random: int,
    output: Folder,
) -> dict[str, Any]:
    """Draw queries and their passages, and write them as (query_id, passage_id, kind); run as one Ray task.

    Which queries, candidates and random passages are drawn depends on the seed and the query id alone. Random passages
    are positives of other drawn queries, without known positives and copies of them: what a batch brings.

    Args:
        dataset, corpus, negatives: what is audited; no hard negatives without ``negatives``.
        split: the split.
        seed: of the draws.
        num_queries: queries with a positive, at most.
        num_candidates: hard negatives of each, at most.
        num_random: random passages of each, at most.
        output: folder for the part.

    Returns:
        The record of the part.
    """
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    qrels = data.qrels(split)
    qrels = qrels.filter(pc.greater(qrels["relevance"], 0))
    chosen = sorted(choose_queries(set(qrels["query_id"].to_pylist()), num_queries, seed, _PURPOSE))
    wanted = pa.array(chosen, pa.string())
    mismatched = qrels.filter(pc.fill_null(pc.equal(qrels["noise"], MISMATCHED), False))
    wrong = set(zip(mismatched["query_id"].to_pylist(), mismatched["passage_id"].to_pylist(), strict=True))
    false_negatives = known_false_negatives(data, split)
    positives = positives_of(data, split, chosen)
    candidates = _candidates(negatives, split, wanted) if negatives is not None else {}
    pool = sorted({one for ids in positives.values() for one in ids})
    content = dict(zip(pool, passages.content_hashes(passages.rows_of(pool)).tolist(), strict=True))
    rows: list[tuple[str, str, str]] = []
    for query_id in chosen:
        rng = query_rng(seed, 0, query_id, _PURPOSE)
        mine = positives[query_id]
        rows += [(query_id, one, MISMATCHED_POSITIVE if (query_id, one) in wrong else POSITIVE) for one in mine]
        listed = sorted(set(candidates.get(query_id, [])))
        for one in _draw(rng, listed, num_candidates):
            rows.append((query_id, one, FALSE_NEGATIVE if (query_id, one) in false_negatives else HARD))
        known = {content[one] for one in mine}
        rows += [(query_id, one, RANDOM) for one in _draw(rng, pool, num_random) if content[one] not in known]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["query_id", "passage_id", "kind"])
    return write_unit(output, SAMPLE, len(table), lambda path: write_parquet(table, path))


def _candidates(negatives: Folder, split: str, query_ids: pa.Array) -> dict[str, list[str]]:
    opened = Artifact.open(negatives, "negatives")
    found: dict[str, list[str]] = defaultdict(list)
    for part in opened.parts(f"negatives/{split}"):
        table = read_arrow(opened.local(part))
        table = table.filter(pc.is_in(table["query_id"], value_set=query_ids))
        for query_id, passage_id in zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True):
            found[query_id].append(passage_id)
    return found


def _draw(rng: np.random.Generator, ids: list[str], count: int) -> list[str]:
    return [ids[at] for at in rng.choice(len(ids), size=min(count, len(ids)), replace=False)]


@dataclass(frozen=True)
class ScoresJob:
    """What every worker of one scoring knows; small and picklable."""

    split: str
    dataset: Folder
    corpus: Folder
    output: Folder
    scoring: Scoring

    def name_of(self, unit: Unit) -> str:
        return f"scores/part-{unit.number}.parquet"


class ScorePairs:
    """An actor that holds the model; every call scores one unit of the sample: similarity, without the scale τ."""

    def __init__(self, job: ScoresJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
        self.scorer = job.scoring.open()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        unit = unit_of(batch)
        table = read_parquet(self.job.output.localize(unit.part)).slice(unit.start, unit.end - unit.start)
        query_ids, query_P = np.unique(table["query_id"].to_numpy(), return_inverse=True)
        passage_ids, passage_P = np.unique(table["passage_id"].to_numpy(), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(passage_ids.tolist()))
        queries = query_texts(self.data, self.job.split, query_ids.tolist())
        scores_P = self.scorer.score(queries, texts, query_P.astype(np.int64), passage_P.astype(np.int64))
        scored = table.append_column("score", pa.array(scores_P))
        return write_unit(
            self.job.output, self.job.name_of(unit), len(scored), lambda path: write_parquet(scored, path)
        )
