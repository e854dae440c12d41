"""Judges as stages: scores, verdicts, truth, and what is applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_stage import interrupt, make

from artefacts.judge_inputs import (
    DEPTH,
    FLOAT32,
    NUM_QUERIES,
    JudgeInputs,
    make_cross_encoder,
    make_inputs,
    make_negatives,
    negatives_of,
)
from raydr.artefacts.judged import open_earlier
from raydr.artefacts.verdicts import judge_labels
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.tables import pairs_of, read_parquet
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import DataError
from raydr.models.encode_config import EncodeConfig
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.candidates import candidates_of
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.judges.base import Judge
from raydr.noise.judges.classifier import Classifier
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.near_duplicate import NearDuplicate
from raydr.noise.judges.npc import NPC
from raydr.noise.judges.pair_classifier import PairClassifier
from raydr.store.artifact import Artifact


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("judge"), tiny_checkpoint)


def run(
    inputs: JudgeInputs,
    rule: Judge,
    output: Path,
    model: Artifact | bool = True,
    pool: Pool | None = None,
    **changes: Any,
) -> Artifact:
    arguments = {
        "judge": rule,
        "split": "train",
        "seed": 0,
        "settings": EncodeConfig(),
        **({"model": inputs.model if model is True else model, "arithmetic": FLOAT32} if model else {}),
        "negatives": inputs.negatives if rule.subject == "negatives" else None,
    }
    return make(output, "verdicts", judge_labels, inputs.dataset, inputs.corpus, pool=pool, **arguments | changes)


def verdicts_of(made: Artifact) -> pa.Table:
    return pa.concat_tables([read_parquet(made.local(name)) for name in made.parts("verdicts/train")])


def reference_scores(inputs: JudgeInputs, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """Similarities one pair at a time."""
    scorer = DualEncoderScorer(inputs.model.folder.root, "float32", "cpu", 4096)
    data, corpus = Dataset(inputs.dataset), Corpus(inputs.corpus)
    queries = data.queries("train")
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    scores = {}
    for query_id, passage_id in pairs:
        passage = corpus.texts(corpus.rows_of([passage_id]))
        score = scorer.score([texts[query_id]], passage, np.array([0]), np.array([0]))
        scores[query_id, passage_id] = float(score[0])
    return scores


def test_queries_of_a_range_are_whole_and_each_is_in_one_range() -> None:
    ids = ["b", "a", "b", "c", "a", "d"]
    table = pa.table({"query_id": ids, "row": list(range(6))})
    ranges = [candidates_of(table, start, start + 2) for start in (0, 2, 4)]
    assert [part.query_ids for part in ranges] == [["b", "a"], ["c"], ["d"]]
    assert [part.table["row"].to_pylist() for part in ranges] == [[0, 2, 1, 4], [3], [5]]
    assert ranges[0].offsets.tolist() == [0, 2, 4]
    assert ranges[0].only(np.array([False, True])).table["row"].to_pylist() == [1, 4]


@pytest.mark.invariant
def test_margin_of_model_scores_is_that_of_single_pairs(
    inputs: JudgeInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Margin(mode="absolute", margin=0.0)
    made = run(inputs, rule, tmp_path / "one")
    table = verdicts_of(made)
    assert table.num_rows == NUM_QUERIES * DEPTH
    qrels = Dataset(inputs.dataset).qrels("train")
    positive = dict(zip(qrels["query_id"].to_pylist(), qrels["passage_id"].to_pylist(), strict=True))
    rows = [row for row in table.to_pylist() if row["query_id"] in ("q00", "q07", "q29")]
    pairs = [(row["query_id"], row["passage_id"]) for row in rows]
    scores = reference_scores(inputs, pairs + [(query_id, positive[query_id]) for query_id, _ in pairs])
    for row in rows:
        excess = scores[row["query_id"], row["passage_id"]] - scores[row["query_id"], positive[row["query_id"]]]
        assert row["score"] == pytest.approx(excess, abs=1e-5)
        assert row["action"] == ("drop" if excess > 0 else "keep")
        assert row["truth"] is row["passage_id"].startswith("s")
    # q00's pair is mismatched: what says the same as the query outscores its annotated positive.
    assert next(row for row in rows if row["passage_id"] == "s00")["action"] == "drop"
    assert made.info["unjudged"] == 0
    # All second positives, and the positive that q10 lost to a mismatched one.
    assert made.info["detection"]["num_noisy"] == NUM_QUERIES + 1
    # The same in small ranges.
    monkeypatch.setattr("raydr.artefacts.verdicts.PAIRS_ENCODED", 14)
    other = run(inputs, rule, tmp_path / "many")
    assert other.fingerprint == made.fingerprint
    assert len(other.parts()) == 6 + 8
    split = verdicts_of(other)
    assert split.drop_columns("score").equals(table.drop_columns("score"))
    np.testing.assert_allclose(split["score"].to_numpy(), table["score"].to_numpy(), atol=1e-5)


@pytest.mark.invariant
def test_near_duplicates_are_compared_with_the_positive_they_are_most_like(inputs: JudgeInputs, tmp_path: Path) -> None:
    """The second positive of q07 was relabelled by an earlier judge, so candidates are compared with both."""
    rows = [
        row | ({"action": "relabel", "weight": 0.0} if row["passage_id"] == "s07" else {})
        for at in range(NUM_QUERIES)
        for row in negatives_of(at)
    ]
    judged = make_negatives(tmp_path / "judged", inputs.dataset.fingerprint, [rows])
    # To a tiny model with random weights all texts are alike.
    rule = NearDuplicate(likeness=0.99, margin=0.01)
    made = run(replace(inputs, negatives=judged), rule, tmp_path / "near")
    verdict_rows = verdicts_of(made).to_pylist()
    scorer = DualEncoderScorer(inputs.model.folder.root, "float32", "cpu", 4096)
    corpus, qrels = Corpus(inputs.corpus), Dataset(inputs.dataset).qrels("train")
    positives = {
        query_id: [positive] for query_id, positive in zip(*(qrels[at].to_pylist() for at in (0, 1)), strict=True)
    }
    positives["q07"].append("s07")

    def likeness(first: str, second: str) -> float:
        vectors = []
        for passage_id in (first, second):
            texts = corpus.texts(corpus.rows_of([passage_id]))
            vectors.append(scorer.encode("passage", texts.titles, texts.texts)[0])
        return float(vectors[0] @ vectors[1])

    for row in (verdict for verdict in verdict_rows if verdict["query_id"] in ("q03", "q07")):
        query_id, passage_id = row["query_id"], row["passage_id"]
        known = positives[query_id]
        scores = reference_scores(inputs, [(query_id, other) for other in (passage_id, *known)])
        best = max(scores[query_id, other] for other in known)
        excess = scores[query_id, passage_id] - (best - 0.01 * abs(best))
        expected = min(max(likeness(other, passage_id) for other in known) - 0.99, excess)
        assert row["score"] == pytest.approx(expected, abs=1e-4)
        assert row["action"] == ("drop" if expected > 0 else "keep")
    assert {row["action"] for row in verdict_rows} == {"drop", "keep"}
    # What says the same as a right positive is most like it.
    assert made.info["detection"]["auroc"] > 0.8


@pytest.mark.invariant
def test_a_later_judge_judges_what_is_left_and_counts_relabelled_passages_as_positives(
    inputs: JudgeInputs, tmp_path: Path
) -> None:
    """Of the first part all was dropped; in the second each query's near copy of its positive was relabelled."""
    first = [row | {"action": "drop", "weight": 0.0} for at in range(12) for row in negatives_of(at)]
    second = [
        row | ({"action": "relabel", "weight": 0.0} if row["passage_id"].startswith("s") else {})
        for at in range(12, NUM_QUERIES)
        for row in negatives_of(at)
    ]
    judged = make_negatives(tmp_path / "judged", inputs.dataset.fingerprint, [first, second])
    made = run(replace(inputs, negatives=judged), Margin(mode="absolute", margin=0.0), tmp_path / "margin")
    score_of = {(row["query_id"], row["passage_id"]): row["score"] for row in verdicts_of(made).to_pylist()}
    left = [(row["query_id"], row["passage_id"]) for row in second if "action" not in row]
    assert score_of.keys() == set(left)
    # The pair of q15 is mismatched: its best positive is the relabelled passage.
    mine = [pair for pair in left if pair[0] == "q15"]
    scores = reference_scores(inputs, [*mine, ("q15", "s15"), ("q15", "p02")])
    assert scores["q15", "s15"] > scores["q15", "p02"]
    for pair in mine:
        assert score_of[pair] == pytest.approx(scores[pair] - scores["q15", "s15"], abs=1e-4)


def test_an_interrupted_judging_makes_the_missing_part_again(inputs: JudgeInputs, tmp_path: Path) -> None:
    rule = Margin(mode="absolute", margin=1.5)
    made = run(inputs, rule, tmp_path / "verdicts", model=False)
    first, _ = made.parts()
    stamp = Path(made.folder.path(first)).stat().st_mtime_ns
    interrupt(made, first)
    again = run(inputs, rule, tmp_path / "verdicts", model=False)
    assert again.manifest.parts == made.manifest.parts
    assert again.info == made.info
    assert Path(again.folder.path(first)).stat().st_mtime_ns == stamp


def test_miner_scores_are_read_and_queries_without_a_positive_score_are_counted(
    inputs: JudgeInputs, tmp_path: Path
) -> None:
    made = run(inputs, Margin(mode="absolute", margin=1.5), tmp_path / "verdicts", model=False)
    table = verdicts_of(made)
    # q00's positive was not retrieved. Scores are 9, 8, ..., the positive's 9: above 7.5 are the first two.
    assert "q00" not in table["query_id"].to_pylist()
    assert (made.info["unjudged"], made.info["drop"], made.info["queries"]) == (DEPTH, 2 * 29, 29)
    bare = [row | {"score": None} for row in negatives_of(3)]
    unscored = make_negatives(tmp_path / "unscored", "x", [bare])
    with pytest.raises(DataError, match=r"6 of 6 candidates have none; the first is passage 'p06' of query 'q03'"):
        run(inputs, Margin(), tmp_path / "v", model=False, negatives=unscored)


@pytest.mark.invariant
def test_both_pools_give_the_same_bytes(inputs: JudgeInputs, ray_local: None, tmp_path: Path) -> None:
    for rule in (Margin(mode="absolute", margin=0.0), NPC(detector=AnchoredDetector(), margins="model", num_random=20)):
        here = run(inputs, rule, tmp_path / f"here-{rule.name}", pool=ThisProcess())
        there = run(inputs, rule, tmp_path / f"there-{rule.name}", pool=RayPool())
        assert here.manifest.parts == there.manifest.parts
        assert here.info == there.info


def test_pairs_are_judged_against_a_shared_sample(inputs: JudgeInputs, tmp_path: Path) -> None:
    consistent = run(inputs, Consistency(top_k=2, num_random=60), tmp_path / "consistency")
    table = verdicts_of(consistent)
    by_query = {row["query_id"]: row for row in table.to_pylist()}
    assert len(by_query) == NUM_QUERIES
    # q01 is p01 without its title. All 60 passages are the sample; p01 is the positive and does not count, s01 may.
    scores = reference_scores(inputs, [("q01", f"{kind}{at:02d}") for kind in "ps" for at in range(NUM_QUERIES)])
    above = sum(score > scores["q01", "p01"] for pair, score in scores.items() if pair != ("q01", "p01"))
    assert by_query["q01"]["score"] == 1 + above
    assert all(by_query[f"q{at:02d}"]["truth"] is (at % 5 == 0) for at in range(NUM_QUERIES))
    assert by_query["q00"]["action"] == "drop"

    npc = run(inputs, NPC(detector=AnchoredDetector(), margins="model", num_random=20), tmp_path / "npc")
    assert npc.parts("measures/train")
    assert len(verdicts_of(npc)) == NUM_QUERIES
    assert npc.info["detection"]["auroc"] > 0.8
    assert npc.info["detector"]["threshold"] == 0.5


def test_of_each_part_the_doubtful_rows_of_all_are_found(inputs: JudgeInputs, tmp_path: Path) -> None:
    made = run(inputs, Margin(mode="absolute", margin=1.5), tmp_path / "verdicts", model=False)
    second, earlier = Classifier(after="margin", unsure=(0.3, 0.7)), open_earlier(made, "train")
    # Where flagging begins and how scores spread is of all verdicts, in whichever part.
    together, (_, evidence_N) = verdicts_of(made), earlier.read()
    rows = together.take(pa.array(second.choose(evidence_N)))
    parts = [earlier.suspected(second, at) for at in range(2)]
    assert parts[0].keys().isdisjoint(parts[1])
    assert [*parts[0], *parts[1]] == list(pairs_of(rows))
    assert 0 < len(rows) < len(together)
    assert earlier.suspected(second, 2) == {}


def test_a_second_judge_reads_the_doubtful_rows_alone(
    inputs: JudgeInputs, pool: Pool, tiny_checkpoint: str, tmp_path: Path
) -> None:
    first = run(inputs, Consistency(top_k=2, num_random=60), tmp_path / "first")
    reader = make_cross_encoder(tmp_path / "reader", tiny_checkpoint)
    rule = PairClassifier(after="consistency", unsure=(0.4, 0.9))
    made = run(inputs, rule, tmp_path / "second", pool=pool, model=reader, earlier=first)
    suspected = open_earlier(first, "train").suspected(rule, 0)
    table = verdicts_of(made)
    assert list(pairs_of(table)) == list(suspected)
    assert 0 < len(table) == made.info["verdicts"] < NUM_QUERIES
    assert (made.info["after"], made.info["before"]) == ("consistency", NUM_QUERIES)


def test_negatives_of_other_queries_are_refused(inputs: JudgeInputs, tmp_path: Path) -> None:
    other = make_negatives(tmp_path / "other", "x", [[negatives_of(1)[0] | {"query_id": "x9"}]])
    with pytest.raises(DataError, match=r"1 of 1 queries are not in split 'train'.*'x9'"):
        run(inputs, Margin(), tmp_path / "others", negatives=other)
