"""Planting second positives: which become negatives, which judgments, and what the columns say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from raydr.data.config import NoiseInjectionConfig
from raydr.data.noise_injection import plant_second_positives
from raydr.data.schema import to_table
from raydr.errors import DataError

QRELS = to_table("qrels", [{"query_id": f"q{at}", "passage_id": f"p{at}"} for at in range(20)])
NEGATIVES = to_table(
    "negatives",
    [{"query_id": f"q{at}", "passage_id": one, "miner": "source", "rank": 1} for at in range(4) for one in ("n", "r1")],
)
MADE = to_table(
    "second_positives",
    [{"query_id": f"q{at}", "passage_id": f"r{at}", "made": "recut", "made_from": [f"p{at}"]} for at in range(10)]
    + [{"query_id": f"q{at}", "passage_id": "s", "made": "answer", "made_from": [f"p{at}"]} for at in range(5)],
)


def pairs(table: pa.Table) -> set[tuple[str, str]]:
    return set(zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_second_positives_are_planted_or_judged(share: float) -> None:
    made = plant_second_positives(QRELS, NEGATIVES, MADE, share, seed=2)
    assert made.num_eligible_queries == 10
    assert made.num_noisy_queries == 10 * share
    planted = [row for row in made.negatives.to_pylist() if row["noise"] is not None]
    assert len(planted) == made.num_noisy_rows
    assert {row["noise"] for row in planted} <= {"false_negative"}
    how = {(f"q{at}", f"r{at}"): "planted:recut" for at in range(10)}
    how |= {(f"q{at}", "s"): "planted:answer" for at in range(5)}
    assert all(row["miner"] == how[row["query_id"], row["passage_id"]] for row in planted)
    # Each second positive is either planted or judged, and the data set's own positives stay.
    added = pairs(made.qrels) - pairs(QRELS)
    hidden = {(row["query_id"], row["passage_id"]) for row in planted}
    assert added | hidden == pairs(MADE)
    assert not {query for query, _ in added} & {query for query, _ in hidden}
    assert pairs(QRELS) <= pairs(made.qrels)
    assert made.qrels["noise"].null_count == len(made.qrels)
    # q1's second positive r1 stood among its negatives: once it is known, it stands there planted or not at all.
    rows = [row for row in made.negatives.to_pylist() if (row["query_id"], row["passage_id"]) == ("q1", "r1")]
    assert [row["miner"] for row in rows] == (["planted:recut"] if ("q1", "r1") in hidden else [])
    assert ("q2", "r1") in pairs(made.negatives)


@pytest.mark.invariant
def test_the_order_of_rows_changes_nothing_and_more_contains_less() -> None:
    made = plant_second_positives(QRELS, NEGATIVES, MADE, 0.3, seed=2)
    turned = [table.take(pa.array(range(len(table) - 1, -1, -1))) for table in (QRELS, MADE)]
    again = plant_second_positives(turned[0], NEGATIVES, turned[1], 0.3, seed=2)
    assert made.negatives.equals(again.negatives)
    assert pairs(made.qrels) == pairs(again.qrels)
    more = plant_second_positives(QRELS, NEGATIVES, MADE, 0.6, seed=2)
    noisy: list[set[Any]] = [
        {(row["query_id"], row["passage_id"]) for row in one.negatives.to_pylist() if row["noise"]}
        for one in (made, more)
    ]
    assert noisy[0] < noisy[1]
    assert noisy[0] != {
        (row["query_id"], row["passage_id"])
        for row in plant_second_positives(QRELS, NEGATIVES, MADE, 0.3, seed=3).negatives.to_pylist()
        if row["noise"]
    }


def test_nothing_made_is_an_error() -> None:
    with pytest.raises(DataError, match="no second positive could be made"):
        plant_second_positives(QRELS, NEGATIVES, MADE.slice(0, 0), 0.5, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": ["recut"]}, "sources are for kind false_negatives"),
        ({"kind": "false_negatives", "sources": ["recut", "recut"]}, "names one twice"),
        ({"kind": "false_negatives", "recut_words": [50, 30]}, "the least is above the most"),
    ],
)
def test_sources_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoiseInjectionConfig.model_validate(settings)


def test_only_what_makes_second_positives_is_in_their_key() -> None:
    settings = {"kind": "false_negatives", "sources": ["renamed", "answer"]}
    made = NoiseInjectionConfig.model_validate({**settings, "share": 0.9})
    assert made.making_key() == {"sources": ["answer", "renamed"], "answer_overlap": 0.4}
    assert made.adds_passages
    assert not NoiseInjectionConfig.model_validate({"kind": "false_negatives", "sources": ["answer"]}).adds_passages
