"""A loss, a reader, a detector, a sampler and judges of somebody else: one class each is all that a run needs.

They are in ``strangers.py``, which is installed as a distribution of its own: only its entry point tells of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import make_sentence
from small_runs import small_run

from raydr.artefacts.places import Places
from raydr.data.dataset import read_split

#: A run, an audit, and a judge once more, in workers of Ray.
RUN = """
import sys
import raydr

raydr.evaluate(raydr.RunConfig.load(sys.argv[1]))
raydr.audit(raydr.RunConfig.load(sys.argv[1]), judges="pupil,best_candidate", model="untrained")
raydr.judge(raydr.RunConfig.load(sys.argv[1], ["ray.in_process_rows=0"]), judge=["best_candidate"], again=True)
"""


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
            "pair_detection": {"detector": {"name": "median", "threshold": 0.4}, "margins": "model", "num_random": 10},
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


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages that holds the strangers."""
    packages = tmp_path / "packages"
    facts = packages / "strangers-1.0.dist-info"
    facts.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("strangers.py"), packages)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[raydr.components]\nown = strangers\n")
    return packages


def python(packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)


def test_a_plugin_that_cannot_be_imported_is_named(config: Path, installed: Path) -> None:
    (installed / "strangers.py").write_text("import nothing_of_this_name\n")
    ended = python(installed, "-m", "raydr", "prepare", str(config))
    assert ended.returncode == 2
    assert "the components of strangers cannot be imported: its entry point 'own'" in ended.stderr.replace("\n", " ")


def test_a_run_uses_what_somebody_else_declares(config: Path, installed: Path) -> None:
    ended = python(installed, "-c", RUN, str(config))
    assert ended.returncode == 0, ended.stderr
    places = Places.of(str(config.parent / "w"))
    evaluation = places.open("evaluation/test", "evaluation")
    assert evaluation.folder.read_json("summary.json")["measures"]
    corpus = places.open("corpus", "corpus")
    assert corpus.rows("passages") == 60
    assert "code_checksum" in corpus.manifest.identity.config["rows_of"]

    model = places.open("models/trained", "model")
    trained = model.manifest.identity.config["training"]["train"]
    assert {"name": "halved", "factor": 0.25}.items() < trained["loss"].items()
    assert {"name": "lowest"}.items() < trained["sampler"].items()
    assert [detection["epoch"] for detection in model.info["detections"]] == [0, 1]
    assert {detection["threshold"] for detection in model.info["detections"]} == {0.4}

    verdicts = {
        name: places.open(f"verdicts/{name}-bm25-train", "verdicts") for name in ("best_candidate", "pupil", "stranger")
    }
    assert {name: made.info["drop"] for name, made in verdicts.items()} == dict.fromkeys(verdicts, 40)
    asked = {name: made.manifest.identity.inputs["model"] for name, made in verdicts.items()}
    assert len(set(asked.values())) == 3
    pupil = places.folder("model", asked["pupil"]).read_json("manifest.json")["identity"]
    training = pupil["config"]["training"]
    assert (training["model"]["similarity"], training["train"]["num_hard_negatives"]) == ("dot", 2)
    assert pupil["inputs"]["start"] == asked["best_candidate"]
    judged = read_split(places.open("negatives/judged-best_candidate+pupil+stranger-bm25-train", "negatives"),
                        "negatives", "train")  # fmt: skip
    assert set(judged["action"].to_pylist()) == {"keep", "drop"}

    audit = places.open("audits/untrained-train", "audit")
    assert audit.manifest.identity.config["judges"] == ["pupil", "best_candidate"]
