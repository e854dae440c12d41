"""Labelled sets: each format gives the same pairs, candidates keep one positive, nothing is lost without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from raydr.errors import DataError
from raydr.noise.labelled import LabelledSet, read_labelled, read_scores, scores_on

#: Query, passage, label, split.
ROWS = [
    ("a", "a right", "1", "train"),
    ("a", "a wrong", "0", "train"),
    ("a", "a better", "2", "train"),
    ("b", "b wrong", "0", "test"),
    ("b", "b right", "1", "test"),
    ("c", "c wrong", "0", "test"),
]


def write_csv(file: Path, rows: Sequence[Sequence[str]], header: str = "query,passage,label,source") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return file


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "judged"
    (folder / "qrels").mkdir(parents=True)
    texts = {"queries": [row[0] for row in ROWS], "corpus": [row[1] for row in ROWS]}
    for name, values in texts.items():
        lines = [json.dumps({"_id": f"id {text}", "text": text}) for text in dict.fromkeys(values)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "test", "alike"):
        rows = [row for row in ROWS if row[3] == split] or [("a", "a right", "1", split), ("b", "b right", "1", split)]
        lines = ["query-id\tcorpus-id\tscore", *(f"id {row[0]}\tid {row[1]}\t{row[2]}" for row in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def pairs_of(labelled: LabelledSet) -> set[tuple[str, str, bool]]:
    return set(zip(labelled.queries, labelled.passages, labelled.wrong_N.tolist(), strict=True))


def test_a_file_a_folder_and_beir_are_the_same_pairs(beir: Path, tmp_path: Path) -> None:
    single = read_labelled(write_csv(tmp_path / "one.csv", ROWS))
    parts = [[row for row in ROWS if row[3] == split] for split in ("train", "test")]
    for split, rows in zip(("train", "test"), parts, strict=True):
        write_csv(tmp_path / "parts" / f"{split}.csv", [row[:3] for row in rows], "query,passage,label")
    folder, judged = read_labelled(tmp_path / "parts"), read_labelled(beir)
    assert pairs_of(single) == pairs_of(folder) == pairs_of(judged) == {(q, p, label == "0") for q, p, label, _ in ROWS}
    assert sorted(single.sources or ()) == sorted(judged.sources or ()) == sorted(row[3] for row in ROWS)
    assert set(folder.sources or ()) == {"train.csv", "test.csv"}
    assert judged.left_out["of split alike, whose labels are all alike"] == 2
    assert (single.name, folder.name, judged.name) == ("one", "parts", "judged")
    (tmp_path / "link.csv").symlink_to((tmp_path / "one.csv").rename(tmp_path / "ab12"))
    linked = read_labelled(tmp_path / "link.csv")
    assert (linked.name, pairs_of(linked)) == ("link", pairs_of(single))


def test_the_first_right_row_is_the_positive_of_the_candidates(tmp_path: Path) -> None:
    labelled = read_labelled(write_csv(tmp_path / "c.csv", ROWS), "candidates")
    assert pairs_of(labelled) == {("a", "a wrong", False), ("a", "a better", True), ("b", "b wrong", False)}
    assert dict(zip(labelled.queries, labelled.positives or (), strict=True)) == {"a": "a right", "b": "b right"}
    assert labelled.left_out["of a query without a right passage"] == 1
    assert labelled.left_out["taken as the annotated positive"] == 2


def test_repeated_pairs_count_once_and_contradictions_are_left_out(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[0], ("b", "b right", "0", "test")]
    labelled = read_labelled(write_csv(tmp_path / "r.csv", rows))
    assert len(labelled.queries) == len(ROWS) - 1
    assert labelled.left_out == {"labelled both right and wrong": 2, "repeated": 1}
    assert ("b", "b right") not in {pair[:2] for pair in pairs_of(labelled)}


def test_a_set_without_sources_has_none(tmp_path: Path) -> None:
    labelled = read_labelled(write_csv(tmp_path / "n.csv", [row[:3] for row in ROWS], "query,passage,label"))
    assert labelled.sources is None
    assert np.bincount(labelled.query_N).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (
            [("a", "p", "1"), ("a", "q", "maybe")],
            "query,passage,label",
            r"x.csv:3: 'label' must be a number, found 'maybe'",
        ),
        (
            [("a", "p", "1"), ("a", "q", "NaN")],
            "query,passage,label",
            r"x.csv:3: 'label' must be a number, found 'NaN'",
        ),
        (
            [("a", "p", "1"), ("a", "q", "inf")],
            "query,passage,label",
            r"x.csv:3: 'label' must be a number, found 'inf'",
        ),
        ([("a", "p", "1"), ("a", "q", "-1")], "query,passage,label", r"x.csv:3: 'label' is -1; expected 0 or 1"),
        ([("a", "p", "1"), ("a", "q", "0")], "query,passage,label", r"there is a single query; expected two or more"),
        ([("a", "p", "1"), ("", "q", "0")], "query,passage,label", r"x.csv:3: the query or the passage is empty"),
        ([("a", "p", "1"), ("a", "q", "1")], "query,passage,label", r"all 2 labels are alike"),
        ([("a", "p", "1")], "query,text,label", r"x.csv:2: no column 'passage'"),
    ],
)
def test_what_cannot_be_used_is_named(rows: list[Sequence[str]], header: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_labelled(write_csv(tmp_path / "x.csv", rows, header))


def test_scores_cover_a_set_or_have_none_of_it(tmp_path: Path) -> None:
    labelled = read_labelled(write_csv(tmp_path / "s.csv", ROWS))
    rows = [(query, passage, str(at)) for at, (query, passage, *_) in enumerate(ROWS)]
    file = write_csv(tmp_path / "scores.csv", rows[::-1], "query,passage,score")
    suspicion_N = scores_on(read_scores(file), labelled, "mine")
    assert suspicion_N is not None
    assert suspicion_N.tolist() == list(range(len(ROWS)))
    with pytest.raises(DataError, match=r"mine has no score of 2 of the 6 pairs of s; the first is \('a', 'a right'\)"):
        scores_on(read_scores(write_csv(file, rows[2:], "query,passage,score")), labelled, "mine")
    assert scores_on(read_scores(write_csv(file, [("z", "z", "1")], "query,passage,score")), labelled, "mine") is None
    for score in ("high", "nan", "-inf", ""):
        with pytest.raises(DataError, match=rf"scores.csv:2: 'score' must be a number, found '{score}'"):
            read_scores(write_csv(file, [("z", "z", score)], "query,passage,score"))


def test_a_repeated_pair_has_the_same_score_each_time(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    repeated = [("z", "z", "0.5"), (" z", "z", "0.50")]
    assert read_scores(write_csv(file, repeated, "query,passage,score")) == {("z", "z"): 0.5}
    with pytest.raises(DataError, match=r"scores.csv:4: the score is 0.7, and an earlier row of the same pair has 0.5"):
        read_scores(write_csv(file, [*repeated, ("z", "z", "0.7")], "query,passage,score"))
