"""What is shown, in which order, with which texts."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raydr
from ops.review.conftest import HOSTILE
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.config.sections import JudgeConfig
from raydr.data.dataset import Dataset
from raydr.data.tables import pairs_of
from raydr.errors import ArtifactError
from raydr.noise.decisions import Decisions
from raydr.noise.judges.calibrated import CalibratedNegatives
from raydr.ops.review.review import Review
from raydr.ops.review.verdicts import Order, find_verdicts, queue
from raydr.pipeline.why import dataset_of


def judges(*names: Any) -> JudgeConfig:
    """The section of a config that lists judges."""
    return JudgeConfig.model_validate({"judges": [{"name": "npc"}, *names] if "npc" not in names else [*names]})


def test_one_judge_of_each_kind_is_looked_at_unless_others_are_named(judged: RunConfig) -> None:
    places = Places.of(judged.workdir)
    assert [
        verdicts.name
        for verdicts in find_verdicts(places, dataset_of(judged, places), "train", judges("npc", "margin"))
    ] == [
        "npc-train",
        "margin-bm25-train",
    ]
    # Of judges that nobody lists, one that gives probabilities.
    assert {
        verdicts.name for verdicts in find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig())
    } == {
        "npc-train",
        "margin-bm25-train",
    }
    named = find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig(), ["consistency", "margin"])
    assert {verdicts.name for verdicts in named} == {"consistency-train", "margin-bm25-train"}
    with pytest.raises(ArtifactError, match="no verdicts of sieve on split 'train'; raydr judge CONFIG --judge npc"):
        find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig(), ["sieve"])
    with pytest.raises(ArtifactError, match="no verdicts of a judge on split 'dev'"):
        find_verdicts(places, dataset_of(judged, places), "dev", JudgeConfig())


def test_verdicts_that_rest_on_decisions_are_not_looked_at(judged: RunConfig, tmp_path: Path) -> None:
    workdir = str(shutil.copytree(judged.workdir, tmp_path / "copy", symlinks=True))
    rules = judged.judge.model_copy(update={"judges": [*judged.judge.judges, CalibratedNegatives(after="margin")]})
    made = raydr.judge(judged.model_copy(update={"workdir": workdir, "judge": rules}), judge=["calibrated_negatives"])
    places = Places.of(workdir)
    assert "verdicts/calibrated_negatives" in "".join(made[0].manifest.identity.inputs)
    assert {
        verdicts.name for verdicts in find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig())
    } == {
        "npc-train",
        "margin-bm25-train",
    }


@pytest.mark.parametrize("order", ["worst", "informative"])
def test_the_list_begins_with_the_worst_or_with_the_nearest_to_even(judged: RunConfig, order: Order) -> None:
    places = Places.of(judged.workdir)
    names = ["npc", "consistency", "margin"]
    for verdicts in find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig(), names):
        rows = verdicts.ordered(order, 0)
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


def test_the_list_goes_on_to_the_next_set_as_soon_as_one_is_warranted(judged: RunConfig, tmp_path: Path) -> None:
    """Of a bound of .2: the first set is the 25 most suspicious, and after it come labels of the next."""
    places, config = Places.of(judged.workdir), judges({"name": "calibrated", "after": "npc", "max_right_dropped": 0.2})
    [npc] = verdicts = find_verdicts(places, dataset_of(judged, places), "train", config, ["npc"])
    listing = partial(queue, places, verdicts, "train", "sample", 500)
    review = Review(tmp_path / "decisions.jsonl", "train", verdicts, listing)
    by_pair = {pair: row for row, pair in enumerate(pairs_of(npc.table))}
    first = npc.sets.sizes_S[0]
    rank_N = np.argsort(np.argsort(-npc.evidence_N, kind="stable"))
    ranks: list[int] = []
    while not npc.warranty(review.decisions(), "train").num_drops:
        item = review.state("ada", "pairs")["item"]
        [shown] = [shown for shown in review.queue if shown.label.id == item["id"]]
        ranks.append(int(rank_N[by_pair[shown.label.query_id, shown.label.passage_id]]))
        review.decide("ada", item["id"], "wrong")
    assert 5 < len(ranks) < first
    assert max(ranks) < first
    assert ranks != sorted(ranks)
    state = review.state("ada", "pairs")
    assert state["decided"] == {"right": 0, "wrong": len(ranks), "unsure": 0}
    assert state["total"] == len(npc.table)
    sizes = npc.sets.sizes_S.tolist()
    num_drops = npc.warranty(review.decisions(), "train").num_drops
    sentence = f"npc-train: at most 20 % of the {num_drops} most suspicious pairs are right, with 95 % confidence, by "
    assert state["findings"][0].startswith(sentence + f"{len(ranks)} decisions")
    # Decisions on texts that have changed since do not count, as with the judge.
    stale = [line.model_copy(update={"texts": "0" * 16}) for line in review.decisions().lines]
    assert npc.warranty(Decisions(tuple(stale)), "train").num_decided == 0
    # Decisions that somebody is unsure of count as right, and may not be left out.
    doubted = [*review.decisions().lines]
    doubted[:3] = [line.model_copy(update={"verdict": "unsure"}) for line in doubted[:3]]
    assert npc.warranty(Decisions(tuple(doubted)), "train").num_drops == 0
    assert num_drops in sizes


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


def test_the_list_is_as_long_as_asked_and_takes_judges_in_turn(judged: RunConfig) -> None:
    places = Places.of(judged.workdir)
    verdicts = find_verdicts(places, dataset_of(judged, places), "train", judges("npc", "margin"))
    shown = queue(places, verdicts, "train", "worst", 6, [0, 0])
    assert [item.label.subject for item in shown] == ["pairs", "negatives"] * 3
    # A pair that two judges doubt is there once.
    both = queue(
        places,
        find_verdicts(places, dataset_of(judged, places), "train", JudgeConfig(), ["npc", "consistency"]),
        "train",
        "sample",
        500,
        [0, 0],
    )
    assert len({item.label for item in both}) == len(both) == 40


def test_verdicts_on_a_noisy_data_set_are_not_those_of_a_config_without_noise(
    judged: RunConfig, tmp_path: Path
) -> None:
    workdir = str(shutil.copytree(judged.workdir, tmp_path / "copy", symlinks=True))
    clean = judged.model_copy(update={"workdir": workdir, "inject_noise": None})
    places = Places.of(workdir)
    wrong = next(row["query_id"] for row in dataset_of(judged, places).qrels("train").to_pylist() if row["noise"])
    assert raydr.why(judged, wrong).positives[0].judgment["noise"]  # type: ignore[index]
    record = raydr.why(clean, wrong)
    assert record.positives[0].judgment["noise"] is None  # type: ignore[index]
    assert {"verdicts/npc-train", "verdicts/margin-bm25-train"} <= set(record.of_other_data)
    with pytest.raises(ArtifactError, match="no verdicts of a judge on split 'train'"):
        find_verdicts(places, dataset_of(clean, places), "train", JudgeConfig())
