"""What is shown, in which order, with which texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ops.review.conftest import HOSTILE
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError
from raydr.noise.decisions import Decisions, Label
from raydr.ops.review.review import Review
from raydr.ops.review.verdicts import Order, distance_from_even, find_verdicts, queue


def test_one_judge_of_each_kind_is_looked_at_unless_others_are_named(judged: RunConfig) -> None:
    places = Places.of(judged.workdir)
    assert [verdicts.name for verdicts in find_verdicts(places, "train", ["npc", "margin"])] == [
        "npc-train",
        "margin-bm25-train",
    ]
    # Of judges that nobody lists, one that gives probabilities.
    assert {verdicts.name for verdicts in find_verdicts(places, "train", [])} == {"npc-train", "margin-bm25-train"}
    named = find_verdicts(places, "train", [], ["consistency", "margin"])
    assert {verdicts.name for verdicts in named} == {"consistency-train", "margin-bm25-train"}
    with pytest.raises(ArtifactError, match="no verdicts of sieve on split 'train'; raydr judge CONFIG --judge npc"):
        find_verdicts(places, "train", [], ["sieve"])
    with pytest.raises(ArtifactError, match="no verdicts of a judge on split 'dev'"):
        find_verdicts(places, "dev", [])


@pytest.mark.parametrize("order", ["worst", "informative"])
def test_the_list_begins_with_the_worst_or_with_the_nearest_to_even(judged: RunConfig, order: Order) -> None:
    for verdicts in find_verdicts(Places.of(judged.workdir), "train", [], ["npc", "consistency", "margin"]):
        rows = verdicts.ordered(order, {})
        assert sorted(rows.tolist()) == list(range(len(verdicts.table)))
        evidence_N = verdicts.evidence_N[rows]
        if order == "informative":
            assert (np.diff(np.abs(evidence_N)) >= 0).all()
            continue
        flagged = verdicts.flagged_N[rows]
        num = int(flagged.sum())
        assert flagged[:num].all()
        assert (np.diff(evidence_N[:num]) <= 0).all()
        assert (np.diff(evidence_N[num:]) <= 0).all()


def test_what_was_decided_moves_what_is_informative(judged: RunConfig) -> None:
    """Where people call the most suspicious pairs right, it is these that are in doubt."""
    [verdicts] = find_verdicts(Places.of(judged.workdir), "train", [], ["npc"])
    assert verdicts.probability_N is not None
    worst = verdicts.ordered("worst", {})[:15]
    pairs = verdicts.table.take(worst.tolist()).to_pylist()
    right = {Label("pairs", "train", row["query_id"], row["passage_id"], ""): False for row in pairs}
    known = verdicts.quality(right)
    assert known is not None
    assert (known.num_decided, known.num_wrong) == (15, 0)
    evidence_N = verdicts.evidence_N[verdicts.ordered("informative", right)]
    assert (np.diff(np.abs(known.shift + known.slope * evidence_N)) >= -1e-12).all()
    assert known.shift < 0
    # Decisions on what this judge has not judged say nothing of it.
    assert verdicts.quality({Label("pairs", "train", "q00", "elsewhere", ""): True}) is None


def test_every_click_brings_what_is_then_most_in_doubt(judged: RunConfig, tmp_path: Path) -> None:
    places = Places.of(judged.workdir)
    [consistency] = verdicts = find_verdicts(places, "train", [], ["consistency"])
    listing = queue(places, verdicts, "train", "informative", Decisions.read(str(tmp_path / "none")), 40)
    review = Review(tmp_path / "decisions.jsonl", "train", verdicts, listing, "informative")
    listed = [shown.label.id for shown in listing]
    came: list[str] = []
    for _ in range(15):
        item = review.state("ada", "all")["item"]
        known = consistency.quality(review.decisions().settled("pairs", "train"))
        left = [shown for shown in listing if shown.label.id not in came]
        doubt = {shown.label.id: distance_from_even(np.array(shown.evidence), known) for shown in left}
        assert doubt[item["id"]] == min(doubt.values())
        came.append(item["id"])
        review.decide("ada", item["id"], "wrong")
    # Each of these "wrong" moves what is in doubt towards what looks better.
    assert came[0] == listed[0]
    assert came != listed[:15]
    fixed = Review(tmp_path / "decisions.jsonl", "train", verdicts, listing)
    assert fixed.state("eve", "all")["item"]["id"] == listed[0]


def test_texts_are_those_that_are_decided_on(judged: RunConfig, review: Review) -> None:
    places = Places.of(judged.workdir)
    positives = {
        row["query_id"]: row["passage_id"]
        for row in Dataset(places.open("dataset-noisy", "dataset")).qrels("train").to_pylist()
    }
    assert {item.label.subject for item in review.queue} == {"pairs", "negatives"}
    assert (
        len({item.label for item in review.queue}) == len({item.label.id for item in review.queue}) == len(review.queue)
    )
    for item in review.queue:
        roles = [role for role, *_ in item.texts]
        ids = [text_id for _, text_id, *_ in item.texts]
        assert ids[:2] == [item.label.query_id, item.label.passage_id]
        assert all(HOSTILE in text for *_, text in item.texts)
        annotated = positives[item.label.query_id]
        if item.label.subject == "pairs":
            assert annotated == ids[1]
            # Another that may be right stands beside it.
            assert roles[1:] == ["labelled as its answer", "best of bm25-train"]
            assert ids[2] != annotated
            assert item.facts.startswith("npc-train: wrong with probability ")
        else:
            assert roles[1:] == ["candidate, labelled as no answer", "labelled as its answer"]
            assert ids[2] == annotated
            assert item.facts.startswith("margin-bm25-train: ")


def test_the_list_is_as_long_as_asked_and_takes_judges_in_turn(judged: RunConfig, tmp_path: Path) -> None:
    places = Places.of(judged.workdir)
    verdicts = find_verdicts(places, "train", ["npc", "margin"])
    shown = queue(places, verdicts, "train", "worst", Decisions(), 6)
    assert [item.label.subject for item in shown] == ["pairs", "negatives"] * 3
    # A pair that two judges doubt is there once.
    both = queue(places, find_verdicts(places, "train", [], ["npc", "consistency"]), "train", "worst", Decisions(), 500)
    assert len({item.label for item in both}) == len(both) == 40
