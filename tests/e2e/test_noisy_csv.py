"""From a noisy CSV to a better model, by the commands that are printed."""

from __future__ import annotations

import csv
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from tiny_bert import save_tiny_bert

from raydr.artefacts.evaluation import PER_QUERY
from raydr.artefacts.places import Places
from raydr.data.dataset import Dataset

pytestmark = pytest.mark.e2e

NUM_PAIRS, NUM_CONCEPTS, NUM_FILLERS = 1500, 100, 50
#: A small model with a word for each concept on both sides: what it learns are the pairs.
SETTINGS: dict[str, Any] = {
    "model": {"query": {"max_length": 12}, "passage": {"max_length": 12}},
    "tracking": {"enabled": False},
}


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, str]:
    """The right passage of each query. A query names three concepts, and its passage the same in other words."""
    drawn, texts = random.Random(0), dict[str, str]()
    while len(texts) < NUM_PAIRS:
        concepts = sorted(drawn.sample(range(NUM_CONCEPTS), 3))
        words = [f"p{concept}" for concept in concepts] + [f"f{drawn.randrange(NUM_FILLERS)}" for _ in range(3)]
        texts[" ".join(f"q{concept}" for concept in concepts)] = " ".join(drawn.sample(words, len(words)))
    return texts


@pytest.fixture
def noisy_csv(pairs: dict[str, str], tmp_path: Path) -> str:
    """The pairs, half of which are mismatched."""
    queries = list(pairs)
    wrong = sorted(random.Random(1).sample(range(NUM_PAIRS), NUM_PAIRS // 2))
    passages = dict(zip(wrong, wrong[1:] + wrong[:1], strict=True))
    with (tmp_path / "noisy.csv").open("w", newline="") as file:
        rows = [(query, pairs[queries[passages.get(at, at)]]) for at, query in enumerate(queries)]
        csv.writer(file).writerows([("query", "positive"), *rows])
    words = [f"{kind}{at}" for kind in "qp" for at in range(NUM_CONCEPTS)] + [f"f{at}" for at in range(NUM_FILLERS)]
    save_tiny_bert(tmp_path / "small", words, hidden_size=64, num_layers=1)
    return "noisy.csv"


def run(command: list[str], folder: Path) -> str:
    """Run a command, and return the next one that it prints."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [*_, suggested] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("next")]
    return suggested.partition(": ")[2]


def test_the_printed_commands_lead_to_a_model_that_is_ahead_of_nce_stopped_in_time(
    noisy_csv: str, pairs: dict[str, str], tmp_path: Path
) -> None:
    suggested = run([sys.executable, "-m", "raydr", "prepare", noisy_csv], tmp_path)
    config = yaml.safe_load((tmp_path / "noisy.yaml").read_text())
    config["model"] = SETTINGS["model"] | {"checkpoint": str(tmp_path / "small")}
    config["train"] |= {"num_epochs": 12, "optimizer": {"learning_rate": 2e-3}}
    (tmp_path / "noisy.yaml").write_text(yaml.safe_dump(config | {"tracking": SETTINGS["tracking"]}))
    audited = run([sys.executable, "-m", "raydr", "audit", "noisy.yaml"], tmp_path)
    assert suggested == audited
    assert audited.endswith("raydr evaluate noisy.yaml")
    run(shlex.split(audited), tmp_path)
    means = means_over_right_labels(tmp_path, pairs)
    assert means["npc"] > means["trained"] + 0.03, means


def means_over_right_labels(folder: Path, pairs: dict[str, str]) -> dict[str, float]:
    """Return the mean RR@10 of each system over the test queries that have their own passage in the file."""
    with (folder / "noisy.csv").open(newline="") as file:
        texts = {query for query, passage in csv.reader(file) if pairs.get(query) == passage}
    places = Places.of(str(folder / "work/noisy"))
    queries = Dataset(places.open("dataset", "dataset")).queries("test").to_pylist()
    right = {row["query_id"] for row in queries if row["text"] in texts}
    values: dict[str, list[float]] = {}
    for row in pq.read_table(places.open("evaluation/test", "evaluation").local(PER_QUERY)).to_pylist():
        if row["measure"].startswith("RR@10") and row["query_id"] in right:
            values.setdefault(row["system"], []).append(row["value"])
    return {system: sum(of_system) / len(of_system) for system, of_system in values.items()}
