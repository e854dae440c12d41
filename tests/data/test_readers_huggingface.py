"""The Hugging Face reader, on data sets that are on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raydr.artefacts.sources import find_sources
from raydr.data.pairs import PairColumns
from raydr.data.readers.huggingface import HuggingFaceReader
from raydr.data.rows import BadRows
from raydr.errors import DataError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    datasets = pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("hf") / "saved"
    train = datasets.Dataset.from_list([{"title": "q1", "code": "p1"}, {"title": "", "code": "p2"}])
    datasets.DatasetDict({"train": train, "validation": train}).save_to_disk(folder)
    return str(folder)


def test_reads_a_saved_data_set_with_the_column_mapping(saved: str) -> None:
    columns = PairColumns(query="title", positive="code")
    reader = HuggingFaceReader(path=saved, splits={"train": "train", "dev": "validation"}, columns=columns)
    sources = reader.sources()
    assert [source.split for source in sources] == ["train", "dev"]
    bad = BadRows(saved)
    rows = list(reader.read(sources[1], bad))
    assert [(row.table, row.split) for row in rows] == [("queries", "dev"), ("passages", ""), ("qrels", "dev")]
    assert [(row.line, row.reason) for row in bad.kept] == [(2, "empty text in 'title'")]
    assert reader.checksum(sources[0]) == reader.checksum(sources[0])


def test_small_data_sets_that_datasets_keeps_in_memory_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 2**20)
    checksums = set()
    for text in ("a", "b"):
        datasets.Dataset.from_list([{"query": text, "positive": text}]).save_to_disk(tmp_path / text)
        reader = HuggingFaceReader(path=str(tmp_path / text))
        checksums.add(reader.checksum(reader.sources()[0]))
    assert len(checksums) == 2


@pytest.mark.parametrize("has_splits", [True, False])
def test_a_data_set_that_is_saved_again_in_place_has_another_version(tmp_path: Path, has_splits: bool) -> None:
    """The time of the folder itself does not change, so that the checksum of the old content would stay in use."""
    datasets = pytest.importorskip("datasets")
    versions = []
    for text in ("a", "b"):
        train = datasets.Dataset.from_list([{"query": text, "positive": text}])
        (datasets.DatasetDict({"train": train}) if has_splits else train).save_to_disk(tmp_path / "saved")
        versions.append(find_sources(HuggingFaceReader(path=str(tmp_path / "saved"))).versions())
    assert versions[0] != versions[1]


def test_an_unknown_split_is_an_error(saved: str) -> None:
    reader = HuggingFaceReader(path=saved, splits={"train": "nope"})
    with pytest.raises(DataError, match="cannot load split 'nope'"):
        list(reader.read(reader.sources()[0], BadRows(saved)))


def test_says_what_to_install(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    reader = HuggingFaceReader(path=saved)
    with pytest.raises(DataError, match=r"which is not installed: pip install datasets"):
        reader.sources()
