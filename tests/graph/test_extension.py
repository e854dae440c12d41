"""A loss, a reader, a detector, a sampler and judges of somebody else: one class each is all that a run needs.

They are declared by ``strangers.py``, which runs in a process of its own: here nobody shall know them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_sentence
from small_runs import small_run

from raydr.data.dataset import read_split
from raydr.graph.places import Places


@pytest.fixture
def config(tiny_checkpoint: str, tmp_path: Path) -> Path:
    for first, (split, num) in zip((0, 40, 50), {"train": 40, "dev": 10, "test": 10}.items(), strict=True):
        lines = [make_sentence(at, 12) for at in range(first, first + num)]
        (tmp_path / f"{split}.txt").write_text("".join(f"{line[:30]}\t{line}\n" for line in lines))
    settings: dict[str, Any] = {
        "data": {"reader": {"name": "tabbed", "path": str(tmp_path)}},
        "negatives": {"depth": 5},
        "train": {
            "num_epochs": 2,
            "loss": {"name": "halved", "factor": 0.25},
            "sampler": "lowest",
            "pair_detection": {"detector": {"name": "median", "threshold": 0.4}, "num_random": 10},
        },
        "judge": {
            "model": "untrained",
            "judges": ["best_candidate", "pupil", "stranger"],
            "guide": {"checkpoint": tiny_checkpoint, "query": {"max_length": 16}, "passage": {"max_length": 32}},
        },
        "evaluate": {"measures": ["RR@10"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
    }
    written = tmp_path / "config.yaml"
    written.write_text(yaml.safe_dump(small_run(tmp_path, tiny_checkpoint, tmp_path / "w", **settings)))
    return written


def test_a_run_uses_what_somebody_else_declares(config: Path) -> None:
    strangers = Path(__file__).with_name("strangers.py")
    subprocess.run([sys.executable, str(strangers), str(config)], check=True)
    places = Places.of(str(config.parent / "w"))
    evaluation = places.open("evaluation/test", "evaluation")
    assert evaluation.folder.read_json("summary.json")["measures"]
    assert places.open("corpus", "corpus").rows("passages") == 60

    model = places.open("models/trained", "model")
    trained = model.manifest.identity.config["train"]
    assert trained["loss"] == {"name": "halved", "factor": 0.25}
    assert trained["sampler"] == {"name": "lowest"}
    assert [one["epoch"] for one in model.info["detections"]] == [0, 1]
    assert {one["threshold"] for one in model.info["detections"]} == {0.4}

    verdicts = {
        name: places.open(f"verdicts/{name}-bm25-train", "verdicts") for name in ("best_candidate", "pupil", "stranger")
    }
    assert {name: one.info["drop"] for name, one in verdicts.items()} == dict.fromkeys(verdicts, 40)
    asked = {name: one.manifest.identity.inputs["model"] for name, one in verdicts.items()}
    assert len(set(asked.values())) == 3
    pupil = places.folder("model", asked["pupil"]).read_json("manifest.json")["identity"]
    assert (pupil["config"]["model"]["similarity"], pupil["config"]["train"]["num_hard_negatives"]) == ("dot", 2)
    assert pupil["inputs"]["start"] == asked["best_candidate"]
    judged = read_split(places.open("negatives/judged-best_candidate+pupil+stranger-bm25-train", "negatives"),
                        "negatives", "train")  # fmt: skip
    assert set(judged["action"].to_pylist()) == {"keep", "drop"}

    audit = places.open("audits/untrained-train", "audit")
    assert audit.manifest.identity.config["judges"] == ["pupil", "best_candidate"]
