"""From a person's own data, in each shape, to a page with figures: two commands; three with vectors of one's own."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from made_linking import make_worlds
from typer.testing import CliRunner

import raydr
from raydr.artefacts.evaluation import load_result
from raydr.verbs.app import app

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("here")]

WORDS = ["river", "city", "mountain", "stone", "bridge", "winter", "harbour", "letter", "engine", "garden", "market"]
#: So that trainings take seconds.
SMALL = [
    *("model.query.max_length=16", "model.passage.max_length=16", "train.num_epochs=1", "train.dtype=float32"),
    *("encode.dtype=float32", "tracking.enabled=false", "train.dev.random_passages=20"),
]


def pairs() -> list[tuple[str, str, str]]:
    """Query, positive and negative."""
    drawn = random.Random(0)
    texts = [" ".join(drawn.choices(WORDS, k=8)) for _ in range(80)]
    return [(" ".join(text.split()[:3]) + f" {at}", text, texts[at - 1]) for at, text in enumerate(texts)]


def lines(name: str, records: list[dict[str, object]]) -> str:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return name


def triplets() -> str:
    return lines("mine.jsonl", [{"anchor": q, "positive": p, "negative": n} for q, p, n in pairs()])


def scored() -> str:
    with open("mine.csv", "w", newline="") as file:
        rows = [row for q, p, n in pairs() for row in ((q, p, 0.9), (q, n, 0.1))]
        csv.writer(file).writerows([("Question", "Answer", "Score"), *rows])
    return "mine.csv"


def lists() -> str:
    return lines("mine.jsonl", [{"query_id": q, "query": q, "pos": [p], "neg": [n]} for q, p, n in pairs()])


def tevatron() -> str:
    def passage(text: str) -> dict[str, str]:
        return {"docid": text, "title": "", "text": text}

    records = [
        {"query_id": q, "query": q, "positive_passages": [passage(p)], "negative_passages": [passage(n)]}
        for q, p, n in pairs()
    ]
    return lines("mine.jsonl", records)


def saved() -> str:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"question": q, "context": p} for q, p, _ in pairs()]).save_to_disk("mine")
    return "mine"


def any_columns() -> str:
    with open("mine.csv", "w", newline="") as file:
        csv.writer(file).writerows([("Ticket", "Wiki page"), *((q, p) for q, p, _ in pairs())])
    return "mine.csv"


def beir() -> str:
    corpus = [{"_id": f"p{at}", "title": "", "text": p} for at, (_, p, _) in enumerate(pairs())]
    queries = [{"_id": f"q{at}", "text": q} for at, (q, _, _) in enumerate(pairs())]
    Path("mine/qrels").mkdir(parents=True)
    lines("mine/corpus.jsonl", corpus)
    lines("mine/queries.jsonl", queries)
    for split, numbers in (("train", range(60)), ("test", range(60, 80))):
        judged = "".join(f"q{at}\tp{at}\t1\n" for at in numbers)
        Path(f"mine/qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return "mine"


def ms_marco() -> str:
    Path("mine").mkdir()
    Path("mine/collection.tsv").write_text("".join(f"{at}\t{p}\n" for at, (_, p, _) in enumerate(pairs())))
    Path("mine/queries.train.tsv").write_text("".join(f"q{at}\t{q}\n" for at, (q, *_) in enumerate(pairs())))
    Path("mine/qrels.train.tsv").write_text("".join(f"q{at}\t0\t{at}\t1\n" for at in range(80)))
    return "mine"


def dpr() -> str:
    Path("mine").mkdir()
    passages = "".join(f"{at}\t{p}\tt\n" for at, (_, p, _) in enumerate(pairs()))
    Path("mine/psgs.tsv").write_text(f"id\ttext\ttitle\n{passages}")

    def context(at: int) -> dict[str, str]:
        return {"passage_id": str(at), "title": "t", "text": pairs()[at][1]}

    records = [
        {"question": q, "answers": [], "positive_ctxs": [context(at)], "hard_negative_ctxs": [context((at + 1) % 80)]}
        for at, (q, *_) in enumerate(pairs())
    ]
    Path("mine/biencoder-train.json").write_text(json.dumps(records))
    return "mine"


def zeshel() -> str:
    Path("mine").mkdir()
    make_worlds(Path("mine"), {"heldout_train_seen": "a", "train": "ab", "test": "c"}, mentions=12)
    return "mine"


SHAPES = [triplets, scored, lists, any_columns, tevatron, dpr, ms_marco, beir, zeshel, saved]


@pytest.mark.parametrize("write", SHAPES, ids=lambda shape: shape.__name__)
def test_two_commands_lead_to_a_page(write, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = CliRunner().invoke(app, ["prepare", write()])
    assert prepared.exit_code == 0, prepared.output
    settings = [part for override in (f"model.checkpoint={tiny_checkpoint}", *SMALL) for part in ("--set", override)]
    evaluated = CliRunner().invoke(app, ["evaluate", "mine.yaml", "--system", "bm25", "--system", "trained", *settings])
    assert evaluated.exit_code == 0, evaluated.output
    page = Path("work/mine/evaluation/test/report.html").read_text()
    assert "bm25" in page
    assert "trained" in page


def test_three_commands_lead_from_vectors_of_ones_own_to_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng(0).standard_normal((80, 8)).astype(np.float32)
    np.savez("passages.npz", vectors=drawn, ids=[f"p{at}" for at in range(80)])
    np.save("queries.npy", drawn[60:])
    Path("ids.txt").write_text("".join(f"q{at}\n" for at in range(60, 80)))
    for command in (
        ["prepare", beir()],
        ["import-vectors", "mine.yaml", "passages.npz", "--system", "other"]
        + ["--queries", "queries.npy", "--query-ids", "ids.txt", "--set", "tracking.enabled=false"],
        ["evaluate", "mine.yaml", "--system", "bm25", "--system", "other", "--set", "tracking.enabled=false"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    # Each query's vector is its passage's.
    [evaluation] = raydr.evaluate("mine.yaml", ["bm25", "other"])
    means = {(row.system, row.measure): row.mean for row in load_result(evaluation).summaries}
    assert means["other", "recall@1"] == 1
    assert "other" in Path("work/mine/evaluation/test/report.html").read_text()
