"""Judges against people's verdicts: what is read, what counts where one has looked again, the figures."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import make_sentence
from sklearn.metrics import roc_auc_score
from small_runs import small_run

from experiments.beir_files import read_qrels, write_qrels, write_rows
from experiments.judged_labels import Suspicion, area_interval, main, suspicions, take_as_right
from raydr.artefacts.places import Places

NUM_QUERIES = 30


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A query is its passage's words; every third pair has another query's, and all but two are called wrong."""
    folder = tmp_path / "labelled"
    folder.mkdir()
    write_rows(folder, "queries", [{"_id": f"q{at:02d}", "text": make_sentence(at, 8)} for at in range(NUM_QUERIES)])
    write_rows(folder, "corpus", [{"_id": f"p{at:02d}", "text": make_sentence(at, 12)} for at in range(NUM_QUERIES)])
    rows = [(f"q{at:02d}", f"p{(at + (7 if at % 3 == 0 else 0)) % NUM_QUERIES:02d}", at) for at in range(NUM_QUERIES)]
    judged = [(query_id, passage_id, str(int(at % 3 > 0 or at in (3, 12)))) for query_id, passage_id, at in rows]
    write_qrels(folder, "labelled", judged[:20])
    write_qrels(folder, "test", judged[20:])
    return folder


def test_every_labelled_pair_is_taken_as_right(labelled: Path, tmp_path: Path) -> None:
    wrong = take_as_right(labelled, tmp_path / "all")
    assert (len(wrong), sum(wrong.values())) == (NUM_QUERIES, 8)
    assert {row[2] for row in read_qrels(tmp_path / "all")["train"]} == {"1"}
    some = take_as_right(labelled, tmp_path / "some", "labelled")
    assert some.items() < wrong.items()
    assert len(some) == len(read_qrels(tmp_path / "some")["train"]) == 20


@pytest.mark.usefixtures("here")
def test_judges_are_measured_alone_and_in_each_others_place(
    labelled: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"name": "consistency", "top_k": 3, "num_random": 30}
    second = {"name": "pair_classifier", "after": "consistency", "unsure": [0.6, 1.0]}
    classifier = {"model": {"checkpoint": tiny_checkpoint, "max_length": 48}, "num_hard_negatives": 0, "batch_size": 4}
    judge = {"model": "untrained", "judges": [first, second], "classifier": classifier}
    settings = small_run(labelled, tiny_checkpoint, tmp_path / "w", judge=judge)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(settings))
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["judged_labels", str(file), "--data", str(labelled), "--out", str(out)])
    main()
    page = (out / "results.md").read_text()
    assert "labelled: 30 pairs, 26.7% wrong" in page
    places = Places.of(str(out / "work"))
    given = {one["name"]: places.open(f"verdicts/{one['name']}-train", "verdicts") for one in (first, second)}
    alone, both = suspicions(given, take_as_right(labelled, tmp_path / "again"))
    assert (alone.num_read, len(alone.pairs)) == (NUM_QUERIES, NUM_QUERIES)
    assert 0 < both.num_read < NUM_QUERIES
    assert alone.wrong_N.sum() == 8
    # Where the second has not read, the first one's word stands.
    same = [before == after for before, after in zip(alone.evidence_N, both.evidence_N, strict=True)]
    assert sum(same) == NUM_QUERIES - both.num_read
    assert alone.row()[3] in page
    assert alone.area_before is None
    assert both.area_before is not None
    none = slice(0, 0)
    nothing = Suspicion("nobody", 0, None, None, [], both.evidence_N[none], both.flagged_N[none], both.wrong_N[none])
    assert nothing.row()[3] == "all labels alike"
    assert [cells[0] for cells in (alone.row(), both.row())] == ["consistency", "pair_classifier"]


def test_the_interval_of_an_area_holds_it_and_narrows_with_queries() -> None:
    widths = []
    for num in (60, 600):
        rng = np.random.default_rng(1)
        wrong_N = np.arange(num) % 3 == 0
        evidence_N = rng.normal(wrong_N, 1.0)
        low, high = area_interval(evidence_N, wrong_N, np.arange(num) // 2, num_samples=200)
        assert low < roc_auc_score(wrong_N, evidence_N) < high
        widths.append(high - low)
    assert widths[0] > 2 * widths[1]
