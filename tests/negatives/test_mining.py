"""No known positive and no copy of one among the negatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydr.negatives.mining import MiningCounts, keep_negatives


@pytest.mark.invariant
@given(
    contents=st.lists(st.integers(0, 6), max_size=20),
    others=st.sets(st.integers(0, 25), max_size=5),
    positives=st.sets(st.integers(0, 25), max_size=4),
    first_rank=st.integers(1, 5),
    depth=st.integers(1, 6),
)
def test_window_of_what_is_neither_positive_nor_a_copy(
    contents: list[int], others: set[int], positives: set[int], first_rank: int, depth: int
) -> None:
    ids = [f"p{at}" for at in range(len(contents))]
    positive_ids = {f"p{at}" for at in positives}
    positive_contents = {contents[at] for at in positives if at < len(contents)} | {100}
    kept = keep_negatives(
        ids,
        np.array(contents, dtype=np.uint64),
        positive_ids,
        np.array(sorted(positive_contents), dtype=np.uint64),
        np.array([at in others for at in range(len(contents))], dtype=bool),
        first_rank,
        depth,
    )
    no_positive = [
        at
        for at, passage_id in enumerate(ids)
        if passage_id not in positive_ids and contents[at] not in positive_contents
    ]
    allowed = [at for at in no_positive if at not in others]
    assert kept.positions.tolist() == allowed[first_rank - 1 :][:depth]
    assert kept.dropped_positive == sum(passage_id in positive_ids for passage_id in ids)
    assert kept.dropped_elsewhere == len(no_positive) - len(allowed)
    assert kept.dropped_positive + kept.dropped_identical + len(no_positive) == len(ids)


def test_counts_of_queries_that_got_none_or_few() -> None:
    hashes = np.arange(3, dtype=np.uint64)
    counts = MiningCounts()
    for ids, positives in ((["a"], {"a"}), (["a", "b"], {"a"}), (["a", "b", "c"], {"z"}), ([], set())):
        here = np.zeros(len(ids), dtype=bool)
        counts.count(keep_negatives(ids, hashes[: len(ids)], positives, np.empty(0, np.uint64), here, 1, 3), depth=3)
    assert counts == MiningCounts(
        queries=4, queries_without_negatives=2, queries_short=1, negatives=4, dropped_positive=2, dropped_identical=0
    )
