"""From a person's own data, in each shape, to a page with figures: two commands."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raydr.verbs import app

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


@pytest.mark.parametrize("write", [triplets, scored, lists, tevatron, saved], ids=lambda one: one.__name__)
def test_two_commands_lead_to_a_page(write, tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = CliRunner().invoke(app, ["prepare", write()])
    assert prepared.exit_code == 0, prepared.output
    settings = [part for one in (f"model.checkpoint={tiny_checkpoint}", *SMALL) for part in ("--set", one)]
    evaluated = CliRunner().invoke(app, ["evaluate", "mine.yaml", "--system", "bm25", "--system", "trained", *settings])
    assert evaluated.exit_code == 0, evaluated.output
    page = Path("work/mine/evaluation/test/report.html").read_text()
    assert "bm25" in page
    assert "trained" in page
