"""A job's stages share what they need, find again what is there, and start anew where it does not fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.errors import ConfigError, DataError, FingerprintError
from raydr.graph.job import Job, open_job
from raydr.graph.workspace import BM25, Workspace
from raydr.runtime.tracking import NullTracker
from raydr.stages.prepare import QUARANTINE
from raydr.store.artifact import MANIFEST
from raydr.store.folder import Folder

pytestmark = pytest.mark.ray


def test_an_overwriting_job_makes_once_what_two_stages_need(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, ray_local: None
) -> None:
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w"))
    with open_job(config) as job:
        job.prepare()
        job.mine("train", BM25)
        manifest = job.workspace.bm25.path(MANIFEST)
        first = os.stat(manifest).st_mtime_ns
    with open_job(config, overwrite=True) as job:
        job.mine("train", BM25)
        second = os.stat(manifest).st_mtime_ns
        job.mine("test", BM25)
        assert os.stat(manifest).st_mtime_ns == second > first


def job_of(workdir: Path, data: Path, noise: dict[str, object] | None = None, **settings: object) -> Job:
    reader = {"name": "beir", "path": str(data)}
    config = RunConfig.parse({"data": {"reader": reader, **settings}, "inject_noise": noise})
    return Job(config, Workspace(Folder(str(workdir))), NullTracker())


def test_what_is_there_is_reused_and_a_subset_leaves_the_corpus_alone(
    beir_folder: Path, tmp_path: Path, ray_local: None
) -> None:
    def prepared(**data: object) -> list[int]:
        job = job_of(tmp_path, beir_folder, {"share": 0.5}, **data)
        return [os.stat(one.folder.path(MANIFEST)).st_mtime_ns for one in (*job.prepare(), job.inject_noise())]

    before = prepared()
    assert prepared() == before
    with pytest.raises(FingerprintError, match=r"config\.max_queries\.train: there '\(absent\)', asked 7"):
        prepared(max_queries={"train": 7})
    for name in ("dataset", "dataset-noisy"):
        shutil.rmtree(tmp_path / name)
    after = prepared(max_queries={"train": 7})
    assert after[0] == before[0]
    assert after[1] > before[1]


def test_mended_input_needs_no_overwrite_after_a_failure(beir_folder: Path, tmp_path: Path, ray_local: None) -> None:
    file = Path(shutil.copytree(beir_folder, tmp_path / "in")) / "corpus.jsonl"
    job, good = job_of(tmp_path / "w", tmp_path / "in"), file.read_text()
    file.write_text(good + "{\n")
    with pytest.raises(DataError, match="1 bad rows"):
        job.prepare()
    assert (tmp_path / "w" / "corpus" / QUARANTINE).exists()
    file.write_text(good)
    corpus, _ = job.prepare()
    assert corpus.info["num_bad"] == 0
    assert not (tmp_path / "w" / "corpus" / QUARANTINE).exists()


def test_noise_needs_its_section_in_the_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a section inject_noise"):
        job_of(tmp_path, tmp_path).inject_noise()
