"""A job's stages share what they need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_runs import small_run

from raydr.config.run import RunConfig
from raydr.graph.job import open_job
from raydr.graph.workspace import BM25
from raydr.store.artifact import MANIFEST

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
