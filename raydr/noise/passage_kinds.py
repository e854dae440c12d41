"""A sample of queries with what passages are to them: positives, hard negatives, known false negatives, random ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.annotations import known_false_negatives, never_negatives_of, positives_of
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.noise_injection import MISMATCHED
from raydr.data.subset import choose_queries
from raydr.data.tables import of_queries, pairs_of, passages_by_query, relevant
from raydr.seeding import query_rng
from raydr.store.artifact import Artifact

#: What a passage is to its query.
POSITIVE, MISMATCHED_POSITIVE, HARD, RANDOM, FALSE_NEGATIVE = (
    "positives",
    "mismatched positives",
    "hard negatives",
    "other queries' positives",
    "known false negatives",
)
KINDS = (POSITIVE, MISMATCHED_POSITIVE, HARD, FALSE_NEGATIVE, RANDOM)

_PURPOSE = "audit"


def draw_kinds(
    data: Dataset,
    corpus: Corpus,
    mined: Artifact | None,
    split: str,
    seed: int,
    num_queries: int,
    num_candidates: int,
    num_random: int,
) -> pa.Table:
    """Draw queries and their passages, as a table (query_id, passage_id, kind).

    Which queries, candidates and random passages are drawn depends on the seed and the query id alone. Random passages
    are positives of other drawn queries, without known positives and copies of them: what a batch brings.

    Args:
        data, corpus: what is drawn from.
        mined: a ``negatives`` artefact; no hard negatives if None.
        split: the split.
        seed: of the draws.
        num_queries: queries with a positive, at most.
        num_candidates: hard negatives of each, at most.
        num_random: random passages of each, at most.
    """
    qrels = relevant(data.qrels(split))
    chosen = sorted(choose_queries(set(qrels["query_id"].to_pylist()), num_queries, seed, _PURPOSE))
    mismatched = qrels.filter(pc.fill_null(pc.equal(qrels["noise"], MISMATCHED), False))
    wrong = set(pairs_of(mismatched))
    false_negatives = known_false_negatives(data, split)
    positives, never = positives_of(data, split, chosen), never_negatives_of(data, split, chosen)
    listed = read_split(mined, "negatives", split) if mined is not None else data.negatives(split).slice(0, 0)
    candidates = passages_by_query(of_queries(listed, chosen))
    pool = sorted({one for ids in positives.values() for one in ids})
    all_ids = sorted({one for ids in never.values() for one in ids})
    content = dict(zip(all_ids, corpus.content_hashes(corpus.rows_of(all_ids)).tolist(), strict=True))
    rows: list[tuple[str, str, str]] = []
    for query_id in chosen:
        rng = query_rng(seed, 0, query_id, _PURPOSE)
        mine = positives[query_id]
        rows += [(query_id, one, MISMATCHED_POSITIVE if (query_id, one) in wrong else POSITIVE) for one in mine]
        for one in _draw(rng, sorted(set(candidates.get(query_id, []))), num_candidates):
            rows.append((query_id, one, FALSE_NEGATIVE if (query_id, one) in false_negatives else HARD))
        known = {content[one] for one in never[query_id]}
        rows += [(query_id, one, RANDOM) for one in _draw(rng, pool, num_random) if content[one] not in known]
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=["query_id", "passage_id", "kind"])


def _draw(rng: np.random.Generator, ids: list[str], count: int) -> list[str]:
    return [ids[at] for at in rng.choice(len(ids), size=min(count, len(ids)), replace=False)]
