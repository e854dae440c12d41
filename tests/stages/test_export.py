"""The stage export: what another prepare reads back is what went out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from artefacts import make_corpus, make_dataset
from made_stage import make

from raydr.component import build
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.writers.base import Writer
from raydr.errors import DataError, FingerprintError
from raydr.stages.export import export
from raydr.stages.prepare import prepare_corpus, prepare_dataset
from raydr.stages.sources import find_sources
from raydr.store.folder import Folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]


def config_of(reader: dict[str, Any]) -> RunConfig:
    return RunConfig.parse({"data": {"reader": reader}})


def rows(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


def passages_of(corpus: Corpus, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(row for part in corpus.parts() for row in rows(part, columns))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Folder]:
    """A corpus and a data set with titles, quotes, answers, several positives and two kinds of negatives."""
    folder = tmp_path_factory.mktemp("export")
    corpus = make_corpus(
        folder / "corpus",
        [
            {"passage_id": f"p{at}", "title": f'the "{at}"' if at % 3 else "", "text": f"näme \\ {at} 'x' \"y\""}
            for at in range(40)
        ],
    )
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {"queries": {}, "qrels": {}, "negatives": {}}
    for split, numbers in {"train": range(12), "dev": range(12, 16)}.items():
        tables["queries"][split] = [
            {"query_id": f"q{at}", "text": f"what is {at}?", "answers": [f"{at}", "ä"]} for at in numbers
        ]
        tables["qrels"][split] = [
            {"query_id": f"q{at}", "passage_id": f"p{(at + step) % 40}"} for at in numbers for step in range(1 + at % 2)
        ]
        tables["negatives"][split] = [
            {
                "query_id": f"q{at}",
                "passage_id": f"p{(at + 5 + rank) % 40}",
                "rank": rank,
                "score": rank / 4,
                "miner": "source:random" if rank == 3 else "source:hard",
            }
            for at in numbers
            for rank in (1, 2, 3)
        ]
    dataset = make_dataset(folder / "dataset", corpus, tables)
    return corpus.artifact.folder, dataset.artifact.folder


READERS: dict[str, dict[str, Any]] = {
    "dpr": {"name": "dpr", "passages": "psgs.tsv", "biencoder": {"train": "train.json", "dev": "dev.json"}},
    "beir": {"name": "beir"},
    "triples": {
        "name": "msmarco",
        "triples": {"train": "triples.train.tsv", "dev": "triples.dev.tsv"},
    },
}


@pytest.mark.invariant
@pytest.mark.parametrize("name", READERS)
def test_round_trip(name: str, source: tuple[Folder, Folder], tmp_path: Path) -> None:
    output = tmp_path / "out"
    export(config_of({"name": "beir", "path": "/x"}), *source, None, name, Folder(str(output)))
    config = config_of({**READERS[name], "path": str(output)})
    reader, sources = config.data.reader, find_sources(config.data.reader)
    passages = make(tmp_path / "corpus", "corpus", prepare_corpus, reader, sources, config.data)
    made = make(tmp_path / "dataset", "dataset", prepare_dataset, passages, reader, sources, config.data, seed=0)
    corpus, data = Corpus(passages), Dataset(made)
    before_corpus, before = Corpus.open(source[0]), Dataset.open(source[1])
    columns = ["passage_id"] if name == "triples" else ["passage_id", "title", "text"]
    assert passages_of(corpus, columns) == passages_of(before_corpus, columns)
    assert data.splits == before.splits
    for split in data.splits:
        columns = ["query_id", "text"] if name == "triples" else ["query_id", "text", "answers"]
        assert rows(data.queries(split), columns) == rows(before.queries(split), columns)
        columns = ["query_id", "passage_id", "relevance"]
        assert rows(data.qrels(split), columns) == rows(before.qrels(split), columns)
        columns = {
            "dpr": ["query_id", "passage_id", "miner", "score"],
            "beir": [],
            "triples": ["query_id", "rank", "passage_id"],
        }[name]
        if columns:
            assert rows(data.negatives(split), columns) == rows(before.negatives(split), columns)


def test_an_export_is_reused_and_other_formats_are_refused(source: tuple[Folder, Folder], tmp_path: Path) -> None:
    config, output = config_of({"name": "beir", "path": "/x"}), Folder(str(tmp_path / "out"))
    first = export(config, *source, None, build(Writer, "beir"), output)
    assert first.info["passages"] == 40
    before = (tmp_path / "out" / "corpus.jsonl").stat().st_mtime_ns
    export(config, *source, None, build(Writer, "beir"), output)
    assert (tmp_path / "out" / "corpus.jsonl").stat().st_mtime_ns == before
    with pytest.raises(FingerprintError, match="name: there 'beir', asked 'dpr'"):
        export(config, *source, None, "dpr", output)


def test_a_text_that_does_not_fit_is_named(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "a\nb"}])
    dataset = make_dataset(tmp_path / "dataset", corpus, {"queries": {"train": [{"query_id": "q", "text": "x"}]}})
    config = config_of({"name": "beir", "path": "/x"})
    inputs = (corpus.artifact.folder, dataset.artifact.folder)
    with pytest.raises(DataError, match="passage 'p' has a line break"):
        export(config, *inputs, None, "triples", Folder(str(tmp_path / "out")))
