"""Decisions of people as verdicts: on what is there, with the texts that they have read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_stage import make

from artefacts.judge_inputs import JudgeInputs, make_inputs
from artefacts.test_apply_verdicts import make_verdicts
from artefacts.test_judge import run, verdicts_of
from raydr.artefacts.judged import filter_pairs
from raydr.artefacts.verdict_tables import open_earlier
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, query_texts
from raydr.data.tables import pairs_of
from raydr.distributed.pool import Pool
from raydr.noise.decisions import Label, Subject, digest_texts
from raydr.noise.judges.calibrated import Calibrated, CalibratedNegatives
from raydr.noise.judges.consistency import Consistency
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.people import People, PeopleNegatives
from raydr.noise.reviewed import estimate_quality


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


def test_people_say_where_a_judge_of_pairs_should_begin_to_flag(
    inputs: JudgeInputs, pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = run(inputs, Consistency(top_k=20, num_random=60), tmp_path / "ranks")
    tables, evidence_N = open_earlier(ranks, "train").read()
    pairs = [pair for table in tables.values() for pair in pairs_of(table)]
    # It flags too little: people call wrong what it keeps.
    worst = sorted(range(len(pairs)), key=lambda at: -evidence_N[at])[:12]
    settled = {label(inputs, "pairs", *pairs[at]): at in worst[:9] for at in worst}
    settled[label(inputs, "pairs", *pairs[0])._replace(texts="0" * 16)] = True
    options = {"model": False, "pool": pool, "earlier": ranks}
    made = run(inputs, Calibrated(after="consistency"), tmp_path / "v", settled=settled, **options)
    wrong_D = np.array([at in worst[:9] for at in worst])
    quality = estimate_quality(evidence_N, evidence_N > 0, np.array(worst), wrong_D)
    assert (made.info["detector"]["num_decided"], made.info["after"]) == (12, "consistency")
    assert made.info["detector"]["shift"] == pytest.approx(quality.shift, abs=1e-6)
    table = verdicts_of(made)
    assert list(pairs_of(table)) == pairs
    expected_N = 1 / (1 + np.exp(-(quality.shift + quality.slope * evidence_N)))
    np.testing.assert_allclose(table["score"].to_numpy(), expected_N, atol=1e-5)
    assert table["action"].to_pylist() == ["drop" if wrong > 0.5 else "keep" for wrong in expected_N]
    assert made.info["drop"] > ranks.info["drop"]
    # Without decisions it is that judge.
    plain = run(inputs, Calibrated(after="consistency"), tmp_path / "w", settled={}, **options)
    assert (verdicts_of(plain)["score"].to_numpy() > 0.5).tolist() == (evidence_N > 1e-9).tolist()
    assert "repeats the verdicts of consistency: no decision concerns its verdicts" in capsys.readouterr().err


def test_people_correct_a_judge_of_candidates_too(inputs: JudgeInputs, pool: Pool, tmp_path: Path) -> None:
    margins = run(inputs, Margin(mode="absolute", margin=1.5), tmp_path / "margins", model=False)
    before = verdicts_of(margins)
    flagged = [
        pair for pair, action in zip(pairs_of(before), before["action"].to_pylist(), strict=True) if action == "drop"
    ]
    settled = {label(inputs, "negatives", *pair): False for pair in flagged[:20]}
    rule = CalibratedNegatives(after="margin")
    made = run(inputs, rule, tmp_path / "v", model=False, pool=pool, earlier=margins, settled=settled)
    assert made.info["verdicts"] == margins.info["verdicts"]
    # What it drops is right by all that people have looked at.
    assert made.info["drop"] < margins.info["drop"]
