"""Decisions of people as verdicts: on what is there, with the texts that they have read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_stage import make

from artefacts.judge_inputs import JudgeInputs, make_inputs
from artefacts.test_apply_verdicts import make_verdicts
from artefacts.test_judge import run, verdicts_of
from raydr.artefacts.judged import filter_pairs, open_earlier
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import pairs_of
from raydr.distributed.pool import Pool
from raydr.noise.decisions import Label, Subject, digest_texts
from raydr.noise.judges.calibrated import Calibrated, CalibratedNegatives
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.people import People, PeopleNegatives
from raydr.noise.warranty import SuspectSets, lots_of


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("people"), tiny_checkpoint)


def label(inputs: JudgeInputs, subject: Subject, query_id: str, passage_id: str, split: str = "train") -> Label:
    corpus = Corpus(inputs.corpus)
    shown = corpus.texts(corpus.rows_of([passage_id]))
    [query] = query_texts(Dataset(inputs.dataset), "train", [query_id])
    return Label(subject, split, query_id, passage_id, digest_texts(query, shown.titles[0], shown.texts[0]))


def test_pairs_that_people_decided_have_verdicts_and_no_others(
    inputs: JudgeInputs, pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    q00 = label(inputs, "pairs", "q00", "p17")
    settled = {
        # Mismatched on purpose, and right.
        q00: True,
        label(inputs, "pairs", "q01", "p01"): False,
        # Of other texts, of no pair.
        label(inputs, "pairs", "q02", "p02")._replace(texts="0" * 16): True,
        label(inputs, "pairs", "q03", "p04"): True,
    }
    made = run(inputs, People(), tmp_path / "v", model=False, pool=pool, settled=settled)
    rows = [(row["query_id"], row["passage_id"], row["action"], row["truth"]) for row in verdicts_of(made).to_pylist()]
    assert rows == [("q00", "p17", "drop", True), ("q01", "p01", "keep", False)]
    assert (made.info["decided"], made.info["verdicts"], made.info["detection"]["precision"]) == (4, 2, 1.0)
    assert "2 decisions are on pairs, candidates or texts that no longer exist" in capsys.readouterr().err
    npc = make_verdicts(
        tmp_path / "npc",
        "pairs",
        inputs.dataset,
        "npc",
        {"00000-00000": [("q00", "p17", "keep"), ("q01", "p01", "drop"), ("q02", "p02", "drop")]},
    )
    verdicts = {"npc": npc, "people": made}
    left = Dataset(make(tmp_path / "d", "dataset", filter_pairs, inputs.dataset, verdicts, pool=pool, split="train"))
    pairs = {row["query_id"]: row["passage_id"] for row in left.qrels("train").to_pylist()}
    # What people keep stays, and what they drop goes, whatever the judge says.
    assert "q00" not in pairs
    assert pairs["q01"] == "p01"
    assert "q02" not in pairs
    assert left.trusted("train")["passage_id"].to_pylist() == ["p01"]
    dropped = [(row["query_id"], row["passage_id"]) for row in left.dropped("train").to_pylist()]
    assert dropped == [("q00", "p17"), ("q02", "p02")]
    # A data set that is judged once more remembers.
    again = make(tmp_path / "e", "dataset", filter_pairs, left.artifact, {"people": made}, split="train")
    assert Dataset(again).trusted("train")["passage_id"].to_pylist() == ["p01", "p01"]


def test_candidates_that_people_decided_have_verdicts(inputs: JudgeInputs, tmp_path: Path) -> None:
    settled = {
        label(inputs, "negatives", "q01", "s01"): True,
        label(inputs, "negatives", "q20", "s20"): False,
        label(inputs, "negatives", "q20", "p01"): True,
    }
    made = run(inputs, PeopleNegatives(), tmp_path / "v", model=False, settled=settled)
    rows = [(row["query_id"], row["passage_id"], row["action"], row["truth"]) for row in verdicts_of(made).to_pylist()]
    assert rows == [("q01", "s01", "drop", True), ("q20", "s20", "keep", True)]


def test_nobody_has_decided_anything(inputs: JudgeInputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run(inputs, People(), tmp_path / "v", model=False, settled={})
    assert made.info["verdicts"] == 0
    assert "no pairs of split train have a decision: raydr review collects decisions" in capsys.readouterr().err


def test_decisions_warrant_drops_of_a_judge_of_pairs(
    inputs: JudgeInputs, pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = run(inputs, Consistency(top_k=20, num_random=60), tmp_path / "ranks")
    tables, evidence_N = open_earlier(ranks, "train").read()
    together = pa.concat_tables(tables.values())
    pairs = pairs_of(together)
    sets = SuspectSets(evidence_N, lots_of("pairs", together), 0.2, 0.9)
    turn = sets.in_turn(0)[:15].tolist()
    settled = {label(inputs, "pairs", *pairs[at]): True for at in turn}
    # Of texts that have changed: no decision.
    settled[label(inputs, "pairs", *pairs[turn[-1]])._replace(texts="0" * 16)] = False
    options = {"model": False, "pool": pool, "earlier": ranks}
    rule = Calibrated(after="consistency", max_right_dropped=0.2, confidence=0.9)
    made = run(inputs, rule, tmp_path / "v", settled=settled, **options)
    warranty = sets.warrant(turn, [False] * 15)
    assert warranty.num_drops > 0
    assert (made.info["detector"]["num_decided"], made.info["after"]) == (15, "consistency")
    table = verdicts_of(made)
    assert list(pairs_of(table)) == pairs
    dropped_N = np.array([action == "drop" for action in table["action"].to_pylist()])
    assert (dropped_N == (evidence_N > warranty.threshold)).all()
    assert dropped_N.sum() == made.info["drop"] == warranty.num_drops
    # It ranks as that judge does.
    assert (np.diff(table["score"].to_numpy()[np.argsort(evidence_N, kind="stable")]) >= 0).all()
    output = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert f"consistency: at most 20 % of the {warranty.num_drops} most suspicious pairs are right, with 90 %" in output
    # Few decisions warrant nothing, and nothing is dropped.
    few = run(inputs, rule, tmp_path / "w", settled={label(inputs, "pairs", *pairs[turn[0]]): True}, **options)
    assert few.info["drop"] == 0
    output = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "calibrated drops nothing. consistency: no drop of pairs is warranted yet by 1 decision (at" in output
    assert re.search(r"[0-9]+ drops after about [0-9]+ more decisions; raydr review collects decisions", output)


def test_decisions_warrant_drops_of_candidates_too(inputs: JudgeInputs, pool: Pool, tmp_path: Path) -> None:
    margins = run(inputs, Margin(mode="absolute", margin=1.5), tmp_path / "margins", model=False)
    before = verdicts_of(margins)
    settled = {label(inputs, "negatives", *pair): True for pair in pairs_of(before)}
    rule = CalibratedNegatives(after="margin")
    options = {"model": False, "pool": pool, "earlier": margins}
    made = run(inputs, rule, tmp_path / "v", settled=settled, **options)
    # All are decided, and none is right.
    assert made.info["drop"] == made.info["verdicts"] == margins.info["verdicts"]
    right = run(
        inputs, CalibratedNegatives(after="margin"), tmp_path / "w", settled=dict.fromkeys(settled, False), **options
    )
    assert right.info["drop"] == 0
