"""A small run whose judges have spoken, with texts that would do harm if they were more than texts."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.noise.judges.people import People
from raydr.ops.review.review import Review
from raydr.ops.review.verdicts import find_verdicts, queue
from raydr.pipeline.why import dataset_of

#: In the title and the text of every passage, and in every query.
HOSTILE = "</script><script>window.hostile = 1</script><img src=x onerror='window.hostile = 1'>"


@pytest.fixture(scope="session")
def judged_workdir(beir_folder: Path, tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The config of a run with verdicts of ``npc``, ``consistency`` and ``margin`` on 40 pairs, 10 of them wrong."""
    folder = tmp_path_factory.mktemp("judged")
    data = Path(shutil.copytree(beir_folder, folder / "data"))
    for name in ("corpus.jsonl", "queries.jsonl"):
        rows = [json.loads(line) for line in (data / name).read_text().splitlines()]
        rows = [row | {"text": f"{row['text']} {HOSTILE}"} for row in rows]
        rows = [row | {"title": HOSTILE} if "title" in row else row for row in rows]
        (data / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    npc = {"name": "npc", "margins": "model", "num_random": 30}
    settings: dict[str, Any] = {
        "inject_noise": {"share": 0.25},
        "model": {"query": {"max_length": 96}, "passage": {"max_length": 128}},
        "negatives": {"depth": 4},
        "judge": {"judges": [npc, "margin", {"name": "consistency", "num_random": 20}], "model": "untrained"},
    }
    config = RunConfig.parse(small_run(data, tiny_checkpoint, folder / "w", **settings))
    raydr.judge(config)
    return config


@pytest.fixture
def judged(judged_workdir: RunConfig, tmp_path: Path) -> RunConfig:
    """The same with decisions in a file of the test's own."""
    judges = [*judged_workdir.judge.judges, People(file=str(tmp_path / "decisions.jsonl"))]
    return judged_workdir.model_copy(update={"judge": judged_workdir.judge.model_copy(update={"judges": judges})})


@pytest.fixture
def review(judged: RunConfig, tmp_path: Path) -> Review:
    """What ``raydr review`` makes of it."""
    places = Places.of(judged.workdir)
    verdicts = find_verdicts(places, dataset_of(judged, places), "train", judged.judge)
    return Review(
        tmp_path / "decisions.jsonl", "train", verdicts, partial(queue, places, verdicts, "train", "sample", 500)
    )
