"""The main job and a judge on a GPU, by Ray or by this process, find what processors find, up to the arithmetic."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run

import raydr
from raydr.artefacts.judged import read_verdicts
from raydr.artefacts.places import Places

pytestmark = [pytest.mark.e2e, pytest.mark.gpu]

#: All that a model reads goes to the GPU; encoders take a share of it.
ON_A_GPU: dict[str, dict[str, Any]] = {
    "train": {"use_gpu": True},
    "encode": {"gpus_per_actor": 0.5},
    "search": {"device": "cuda"},
}
DEVICES: dict[str, dict[str, dict[str, Any]]] = {
    "cpu": {},
    "this-process": ON_A_GPU,
    "ray": ON_A_GPU | {"ray": {"num_cpus": 4, "num_gpus": 1, "in_process_rows": 0}},
}

#: Verb and sections of the config to the config of what was run.
Run = Callable[[str, str, dict[str, dict[str, Any]]], raydr.RunConfig]


@pytest.fixture
def run(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Run:
    def run(device: str, verb: str, sections: dict[str, dict[str, Any]]) -> raydr.RunConfig:
        config = small_run(beir_folder, tiny_checkpoint, tmp_path / device)
        for changed in (DEVICES[device], sections):
            config |= {name: config.get(name, {}) | changes for name, changes in changed.items()}
        file = tmp_path / f"{device}.yaml"
        file.write_text(yaml.safe_dump(config))
        # A Ray of its own, which the next one would meet in this process.
        done = subprocess.run([sys.executable, "-m", "raydr", verb, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return raydr.RunConfig.load(str(file))

    return run


@pytest.mark.parametrize("score", ["dual", "sum_of_max"])
def test_a_main_job(score: str, run: Run) -> None:
    hits = {}
    for device in DEVICES:
        config = run(device, "quickstart", {"model": {"score": score, "dropout": 0.0}})
        hits[device] = {hit.passage_id: hit.score for hit in raydr.search_text(config, "river city", top_k=120)}
    assert len(hits["cpu"]) == 120
    assert hits["this-process"] == pytest.approx(hits["cpu"], abs=0.01)
    assert hits["ray"] == pytest.approx(hits["cpu"], abs=0.01)


def test_a_classifier_judges(run: Run, tiny_checkpoint: str) -> None:
    reader = {"model": {"checkpoint": tiny_checkpoint, "max_length": 64, "dropout": 0.0}, "dtype": "float32"}
    judges = {"judges": [{"name": "classifier"}], "model": "untrained", "classifier": reader}
    scores = {}
    for device in DEVICES:
        config = run(device, "judge", {"judge": judges})
        verdicts = Places.of(config.workdir).open("verdicts/classifier-bm25-train", "verdicts")
        tables, _ = read_verdicts(verdicts, "train")
        scores[device] = [score for table in tables.values() for score in table["score"].to_pylist()]
    assert scores["cpu"]
    assert scores["this-process"] == pytest.approx(scores["cpu"], abs=1e-3)
    assert scores["ray"] == pytest.approx(scores["cpu"], abs=1e-3)
