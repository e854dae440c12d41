"""The stage export: what another prepare reads back is what went out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_artefacts import make_corpus, make_dataset
from made_stage import make

from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.sources import find_sources
from raydr.component import build
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.writers.base import Writer
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import DataError
from raydr.ops import export as stage
from raydr.ops.export import export
from raydr.store.artifact import Artifact
from raydr.store.identity import Identity

#: A corpus and a data set.
Source = tuple[Artifact, Artifact]


def config_of(reader: dict[str, Any]) -> RunConfig:
    return RunConfig.parse({"data": {"reader": reader}})


def rows(table: pa.Table, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


def passages_of(corpus: Corpus, columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted(row for part in corpus.parts() for row in rows(part, columns))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
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
    return corpus.artifact, dataset.artifact


def export_of(source: Source, name: str, output: Path, pool: Pool | None = None) -> Artifact:
    return make(output, "export", export, *source, None, pool=pool, writer=build(Writer, name))


READERS: dict[str, dict[str, Any]] = {
    "dpr": {"name": "dpr", "passages": "psgs.tsv", "biencoder": {"train": "train.json", "dev": "dev.json"}},
    "beir": {"name": "beir"},
    "triples": {
        "name": "msmarco",
        "triples": {"train": "triples.train.tsv", "dev": "triples.dev.tsv"},
    },
}


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("name", READERS)
def test_round_trip(name: str, source: Source, tmp_path: Path) -> None:
    output = tmp_path / "out"
    export_of(source, name, output)
    config = config_of({**READERS[name], "path": str(output)})
    how = {"reader": config.data.reader, "sources": find_sources(config.data.reader), "data": config.data}
    passages = make(tmp_path / "corpus", "corpus", prepare_corpus, **how)
    made = make(tmp_path / "dataset", "dataset", prepare_dataset, passages, **how, seed=0)
    corpus, data = Corpus(passages), Dataset(made)
    before_corpus, before = Corpus(source[0]), Dataset(source[1])
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
            "beir": ["query_id", "passage_id", "miner", "score"],
            "triples": ["query_id", "rank", "passage_id"],
        }[name]
        assert rows(data.negatives(split), columns) == rows(before.negatives(split), columns)


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_both_pools_write_the_same_bytes(source: Source, tmp_path: Path) -> None:
    here, there = (
        export_of(source, "dpr", tmp_path / type(pool).__name__, pool) for pool in (ThisProcess(), RayPool())
    )
    assert here.manifest.parts == there.manifest.parts
    assert here.info == there.info


@pytest.mark.invariant
def test_a_resumed_export_counts_what_was_there(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted when the first file is written: it is not written again, and counts in the summary all the same."""
    whole = export_of(source, "beir", tmp_path / "whole")
    write, calls = stage.write_part, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(stage, "write_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_of(source, "beir", tmp_path / "cut")
    resumed = export_of(source, "beir", tmp_path / "cut")
    assert len(calls) == 1 + len(whole.parts())
    assert resumed.manifest.parts == whole.manifest.parts
    assert resumed.info == whole.info
    assert whole.info["passages"] == 40


def test_inputs_that_were_not_made_for_each_other(source: Source, tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "x"}]).artifact
    with pytest.raises(DataError, match="was prepared with corpus"):
        export_of((other, source[1]), "beir", tmp_path / "out")
    identity = Identity(kind="negatives", inputs={"dataset": "another"})
    mined = make(tmp_path / "negatives", "negatives", lambda making, pool: {}, identity=identity)
    with pytest.raises(DataError, match="were not made for the data set"):
        make(tmp_path / "out", "export", export, *source, mined, writer=build(Writer, "beir"))
    # What judges have left of a data set goes with what was mined for the whole.
    left = Identity(kind="dataset", inputs={"corpus": source[0].fingerprint, "dataset": "another"})
    judged = make(tmp_path / "judged", "dataset", lambda making, pool: {}, identity=left)
    made = make(tmp_path / "out", "export", export, source[0], judged, mined, writer=build(Writer, "beir"))
    assert made.info["passages"] == 40


def test_a_text_that_does_not_fit_is_named(pool: Pool, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "a\nb"}])
    dataset = make_dataset(tmp_path / "dataset", corpus, {"queries": {"train": [{"query_id": "q", "text": "x"}]}})
    with pytest.raises(DataError, match="passage 'p' has a line break"):
        export_of((corpus.artifact, dataset.artifact), "triples", tmp_path / "out", pool)


def test_pairs_without_negatives_leave_as_pairs_and_what_needs_some_fails(source: Source, tmp_path: Path) -> None:
    """Cleaned pairs have no negatives: the export had no row, and was called done."""
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "T", "text": "x"}])
    tables = {
        "queries": {"train": [{"query_id": "q", "text": "ask"}]},
        "qrels": {"train": [{"query_id": "q", "passage_id": "p"}]},
    }
    cleaned = corpus.artifact, make_dataset(tmp_path / "dataset", corpus, tables).artifact
    made = export_of(cleaned, "sentence-transformers", tmp_path / "out")
    [row] = Path(made.local("train.jsonl")).read_text().splitlines()
    assert json.loads(row) == {"anchor": "ask", "positive": "T x"}
    for shape in ("triplets", "lists"):
        writer = build(Writer, {"name": "sentence-transformers", "shape": shape})
        with pytest.raises(DataError, match="no row could be written.*raydr mine.*--shape pairs"):
            make(tmp_path / shape, "export", export, *cleaned, None, writer=writer)
    whole = export_of(source, "sentence-transformers", tmp_path / "whole")
    first = Path(whole.local("train.jsonl")).read_text().splitlines()[0]
    assert set(json.loads(first)) == {"anchor", "positive", "negative"}
