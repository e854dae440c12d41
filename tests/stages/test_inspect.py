"""The stage inspect: sums over parts, what is shown, what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from artefacts import make_corpus

from raydr.config.run import RunConfig
from raydr.data.inspection_report import InspectionReport
from raydr.errors import DataError
from raydr.stages.inspect import inspect
from raydr.store.folder import Folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]


def config_of(checkpoint: str, max_length: int) -> RunConfig:
    return RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "/x"}},
            "model": {"checkpoint": checkpoint, "passage": {"max_length": max_length}},
        }
    )


def test_report(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    corpus, dataset = (Folder(path) for path in tiny_data)
    # Title and text are 15 words, each one token, and two special tokens.
    report = inspect(config_of(tiny_checkpoint, 16), corpus, dataset, Folder(str(tmp_path / "out")))
    assert report.corpus.num_passages == report.corpus.lengths.num_sampled == 120
    assert report.corpus.num_empty_texts == 0
    assert report.corpus.lengths.percentiles["50"] == 17
    assert report.corpus.lengths.share_truncated == 1
    assert {split: one.num_queries for split, one in report.splits.items()} == {"dev": 10, "train": 40}
    assert [example.split for example in report.examples] == ["train"] * 3
    assert any("max_length (16)" in finding for finding in report.findings())
    written = (tmp_path / "out" / "inspection.json").read_text()
    assert InspectionReport.model_validate_json(written) == report
    assert inspect(config_of(tiny_checkpoint, 17), corpus, dataset).corpus.lengths.share_truncated == 0


def test_another_corpus_is_refused(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", [{"passage_id": "p", "title": "", "text": "one"}])
    with pytest.raises(DataError, match="was prepared with corpus"):
        inspect(config_of(tiny_checkpoint, 16), other.artifact.folder, Folder(tiny_data[1]))
