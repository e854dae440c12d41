"""The stage inspect: sums over parts, what is shown, what is written."""

from __future__ import annotations

from pathlib import Path

from made_artefacts import make_dataset

from raydr.artefacts.inspection import inspect
from raydr.data.corpus import Corpus
from raydr.data.inspection_report import InspectionReport
from raydr.distributed.pool import Pool, ThisProcess
from raydr.evaluation.config import EvaluateConfig
from raydr.models.config import ModelConfig
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


def look(
    corpus: Artifact, dataset: str, checkpoint: str, max_length: int, pool: Pool | None = None, output: str = ""
) -> InspectionReport:
    return inspect(
        pool or ThisProcess(),
        corpus,
        Artifact.open(dataset, "dataset"),
        Folder(output) if output else None,
        model=ModelConfig.model_validate({"checkpoint": checkpoint, "passage": {"max_length": max_length}}),
        settings=EvaluateConfig(),
        train_split="train",
        seed=0,
    )


def test_report(tiny_data: tuple[str, str], tiny_checkpoint: str, pool: Pool, tmp_path: Path) -> None:
    corpus, dataset = Artifact.open(tiny_data[0], "corpus"), tiny_data[1]
    # Title and text are 15 words, each one token, and two special tokens.
    report = look(corpus, dataset, tiny_checkpoint, 16, pool, str(tmp_path / "out"))
    assert report.corpus.num_passages == report.corpus.lengths.num_sampled == 120
    assert report.corpus.num_empty_texts == 0
    assert report.corpus.lengths.percentiles["50"] == 17
    assert report.corpus.lengths.share_truncated == 1
    assert {split: counts.num_queries for split, counts in report.splits.items()} == {"dev": 10, "train": 40}
    assert [example.split for example in report.examples] == ["train"] * 3
    assert any("max_length (16)" in finding for finding in report.findings())
    written = (tmp_path / "out" / "inspection.json").read_text()
    assert InspectionReport.model_validate_json(written) == report
    assert look(corpus, dataset, tiny_checkpoint, 17, pool).corpus.lengths.share_truncated == 0


def test_leakage_is_the_first_finding(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    corpus = Corpus.open(tiny_data[0])
    queries = {
        split: [{"query_id": f"{split}{at}", "text": f"{text} {at}"} for at, text in enumerate(texts)]
        for split, texts in {"train": ["red river", "old king"], "test": ["Red river", "blue king"]}.items()
    }
    dataset = make_dataset(tmp_path / "data", corpus, {"queries": queries}).artifact
    report = look(corpus.artifact, str(dataset.folder), tiny_checkpoint, 16)
    assert report.num_leaked == 1
    assert report.findings()[0].startswith("LEAKAGE: 1 queries of the training split")
