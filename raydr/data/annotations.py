"""The texts of some queries, their positives, and the passages that are no negatives of theirs."""

from __future__ import annotations

import pyarrow.compute as pc

from raydr.data.dataset import Dataset
from raydr.data.noise_injection import FALSE_NEGATIVE
from raydr.data.tables import of_queries, pairs_of, passages_by_query, relevant
from raydr.errors import DataError


def query_texts(data: Dataset, split: str, query_ids: list[str]) -> list[str]:
    """Return the texts of some queries, in their order.

    Raises:
        DataError: one of them is not in the split.
    """
    rows = of_queries(data.queries(split), query_ids)
    texts = dict(zip(rows["query_id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    missing = [query_id for query_id in query_ids if query_id not in texts]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(query_ids)} queries are not in split {split!r} of the data set at "
            f"{data.artifact.folder}, the first is {missing[0]!r}: give the data set that they were made with"
        )
    return [texts[query_id] for query_id in query_ids]


def positives_of(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    """Return the passages judged relevant for some queries."""
    return passages_by_query(relevant(of_queries(data.qrels(split), query_ids)))


def never_negatives_of(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    """Return the passages that are no negatives of some queries: judged relevant, or dropped."""
    known = positives_of(data, split, query_ids)
    dropped = passages_by_query(of_queries(data.dropped(split), query_ids))
    return {
        query_id: [*known.get(query_id, []), *dropped.get(query_id, [])] for query_id in known.keys() | dropped.keys()
    }


def known_false_negatives(data: Dataset, split: str) -> set[tuple[str, str]]:
    """Return (query, passage) ids whose passage was planted among the negatives or replaced by a mismatched passage."""
    # The data set is asked and not the candidates: a miner may have found such a passage by itself.
    planted, replaced = data.negatives(split), data.qrels(split)
    planted = planted.filter(pc.equal(planted["noise"], FALSE_NEGATIVE))
    replaced = replaced.filter(pc.is_valid(replaced["original_passage_id"]))
    return {*pairs_of(planted), *pairs_of(replaced, "original_passage_id")}
