"""BM25 as stages: index, search, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_artefacts import make_corpus, make_dataset
from made_evaluation import read_beir
from made_stage import make

from raydr.artefacts import bm25 as stage
from raydr.artefacts.bm25 import build_bm25, search_bm25
from raydr.artefacts.run import Run
from raydr.data.rows import join_passage
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import DataError
from raydr.negatives.bm25 import INDEX_FILES, BM25Index
from raydr.negatives.config import BM25Config
from raydr.store.artifact import Artifact

Data = tuple[Artifact, Artifact, Artifact]


@pytest.fixture(scope="module")
def data(beir_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """A data set, its corpus in three parts, the index of it."""
    folder = tmp_path_factory.mktemp("bm25-stage")
    passages, tables = read_beir(beir_folder)
    corpus = make_corpus(folder / "corpus", passages)
    dataset = make_dataset(folder / "dataset", corpus, tables)
    return dataset.artifact, corpus.artifact, index_of(corpus.artifact, folder / "bm25")


def index_of(
    corpus: Artifact, output: Path, pool: Pool | None = None, shard_rows: int = 1000, **settings: Any
) -> Artifact:
    return make(output, "bm25", build_bm25, corpus, pool=pool, settings=BM25Config(**settings), shard_rows=shard_rows)


def find(data: Data, output: Path, pool: Pool | None = None, split: str = "train", top_k: int = 5) -> Artifact:
    return make(output, "run", search_bm25, *data, pool=pool, split=split, top_k=top_k)


def test_run_equals_a_search_without_stages(data: Data, pool: Pool, beir_folder: Path, tmp_path: Path) -> None:
    made = find(data, tmp_path / "run", pool, "dev", top_k=10)
    table = pa.concat_tables(Run(made).parts())
    passages, tables = read_beir(beir_folder)
    index = BM25Index([{name: data[2].local(f"shard-000/{name}") for name in INDEX_FILES}], [0], BM25Config())
    queries = tables["queries"]["dev"]
    for query, hits in zip(queries, index.search([query["text"] for query in queries], 10), strict=True):
        mine = [row for row in table.to_pylist() if row["query_id"] == query["query_id"]]
        assert {row["passage_id"]: row["score"] for row in mine} == {
            passages[row]["passage_id"]: score for row, score in zip(hits.rows, hits.scores.tolist(), strict=True)
        }
        assert mine[0]["passage_id"] == query["query_id"].replace("q", "p0"), "a query is made of its passage's words"
    assert made.info == {"system": "bm25", "split": "dev", "top_k": 10, "num_queries": 10}
    assert join_passage(passages[0]["title"], passages[0]["text"]).startswith("title")


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_both_pools_write_the_same_bytes(data: Data, tmp_path: Path) -> None:
    here, there = (
        index_of(data[1], tmp_path / type(pool).__name__, pool, k1=1.5) for pool in (ThisProcess(), RayPool())
    )
    assert here.manifest.parts == there.manifest.parts
    assert here.info == there.info
    assert here.info["num_passages"] == 120


@pytest.mark.invariant
@pytest.mark.parametrize("shard_rows", [50, 100])
def test_a_run_is_the_same_whatever_the_shards(data: Data, pool: Pool, shard_rows: int, tmp_path: Path) -> None:
    shards = index_of(data[1], tmp_path / "bm25", pool, shard_rows)
    assert shards.info["starts"] == list(range(0, 120, shard_rows))
    assert shards.info["num_terms"] == data[2].info["num_terms"]
    whole, sharded = (
        find((*data[:2], index), tmp_path / index.folder.root.replace("/", "-"), pool) for index in (data[2], shards)
    )
    assert sharded.manifest.parts == whole.manifest.parts


@pytest.mark.invariant
def test_a_resumed_index_equals_an_uninterrupted_one(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while it is built: the terms are there, and none of them are left in the end."""

    def interrupted(*arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "build_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_of(data[1], tmp_path / "bm25")
    monkeypatch.undo()
    monkeypatch.setattr(stage, "_count_part", None)
    resumed = index_of(data[1], tmp_path / "bm25")
    assert resumed.manifest.parts == data[2].manifest.parts
    assert sorted(path.name for path in (tmp_path / "bm25").iterdir()) == ["manifest.json", "shard-000"]


@pytest.mark.invariant
def test_resumed_search_equals_an_uninterrupted_one(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "QUERIES_PER_PART", 7)
    whole = Run(find(data, tmp_path / "whole"))
    assert len(whole.part_names) == 6
    rank, calls = stage.rank_rows, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return rank(*arguments)

    monkeypatch.setattr(stage, "rank_rows", interrupted)
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        find(data, cut)
    (cut / whole.part_names[2]).write_bytes(b"half")
    kept = (cut / whole.part_names[0]).stat().st_mtime_ns
    resumed = find(data, cut)
    assert len(calls) == 4 + 4
    assert (cut / whole.part_names[0]).stat().st_mtime_ns == kept
    assert resumed.manifest.parts == whole.artifact.manifest.parts


def test_unknown_split_and_corpus_without_terms(data: Data, pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'nope'; it has dev, test, train"):
        find(data, tmp_path / "run", pool, "nope")
    dots = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "..."}]).artifact
    with pytest.raises(DataError, match=r"^BM25 found no term in 1 passages"):
        index_of(dots, tmp_path / "bm25", pool)
