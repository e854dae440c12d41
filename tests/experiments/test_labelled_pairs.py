"""The experiment on labelled pairs: its input, and its figures on made verdicts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.labelled_pairs import LENGTH, examine, picture, row_of
from experiments.pair_labels import Pairs, convert


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    with gzip.open(folder / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"_id": f"c{at}", "text": "select " * (at + 1)}) + "\n" for at in range(4))
    (folder / "queries.jsonl").write_text('{"_id": "q0", "text": "zero"}\n{"_id": "q1", "text": "one"}\n')
    for split, lines in {"train": ["q0\tc0\t1", "q0\tc1\t0"], "dev": ["q1\tc2\t0"], "test": ["q1\tc3\t1"]}.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def test_every_pair_of_every_split_is_a_query_of_its_own(labelled: Path, tmp_path: Path) -> None:
    pairs = convert(labelled, tmp_path / "out")
    assert pairs.ids == ["q0|c0", "q0|c1", "q1|c2", "q1|c3"]
    assert pairs.questions == ["q0", "q0", "q1", "q1"]
    assert pairs.wrong.tolist() == [False, True, True, False]
    assert pairs.num_words.tolist() == [1, 2, 3, 4]
    qrels = (tmp_path / "out" / "qrels" / "train.tsv").read_text().splitlines()
    assert qrels[1:] == ["q0|c0\tc0\t1", "q0|c1\tc1\t1", "q1|c2\tc2\t1", "q1|c3\tc3\t1"]


def test_a_perfect_suspicion_and_an_empty_one() -> None:
    rng = np.random.default_rng(0)
    wrong = np.arange(300) % 2 == 0
    pairs = Pairs([f"p{at:03d}" for at in range(300)], [f"q{at // 3}" for at in range(300)], wrong, np.full(300, 5))
    margins = rng.normal(np.where(wrong, 6.0, -6.0), 1.0)
    random_pairs = np.logaddexp(0.0, rng.normal(6.0, 1.0, 300))
    found = examine(pairs, "made", 0, np.logaddexp(0.0, margins), random_pairs)
    assert (found.auroc, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))
    for name in ("calibrated", "anchored"):
        assert found.detectors[name]["precision"] == found.detectors[name]["recall"] == 1.0
    assert row_of(found)[3:5][1] == "1.00 / 1.00"
    length = examine(pairs, LENGTH, None, -pairs.num_words.astype(np.float64))
    assert length.auroc == 0.5
    assert row_of(length)[1] == row_of(length)[3] == ""
    assert picture([found, length]).startswith(b"\x89PNG")
