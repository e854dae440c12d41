"""BM25 as stages: index, search, reuse, resume."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from artefacts import make_corpus, make_dataset
from made_evaluation import config_for, read_beir

from raydr.errors import DataError, FingerprintError
from raydr.negatives.bm25 import BM25Index, join_passage
from raydr.negatives.config import BM25Config
from raydr.stages import bm25 as stage
from raydr.stages.runs import Run
from raydr.store.artifact import PLAN
from raydr.store.folder import Folder

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def data(beir_folder: Path, tmp_path_factory: pytest.TempPathFactory, ray_local: None) -> tuple[Path, Folder, Folder]:
    folder = tmp_path_factory.mktemp("bm25-stage")
    passages, tables = read_beir(beir_folder)
    corpus = make_corpus(folder / "corpus", passages)
    dataset = make_dataset(folder / "dataset", corpus, tables)
    config = config_for(folder, search={"top_k": 10})
    stage.bm25(config, corpus.artifact.folder, Folder(str(folder / "bm25")))
    return folder, corpus.artifact.folder, dataset.artifact.folder


def test_run_equals_a_search_without_ray(data: tuple[Path, Folder, Folder], beir_folder: Path) -> None:
    folder, corpus, dataset = data
    config = config_for(folder, search={"top_k": 10})
    made = stage.search_bm25(
        config, "dev", dataset, corpus, Folder(str(folder / "bm25")), Folder(str(folder / "runs" / "bm25"))
    )
    table = pa.concat_tables(Run(made).parts())
    passages, tables = read_beir(beir_folder)
    index = BM25Index.load(folder / "bm25" / "index", BM25Config())
    queries = tables["queries"]["dev"]
    for query, hits in zip(queries, index.search([one["text"] for one in queries], 10), strict=True):
        mine = [row for row in table.to_pylist() if row["query_id"] == query["query_id"]]
        assert {row["passage_id"]: row["score"] for row in mine} == {
            passages[row]["passage_id"]: score for row, score in zip(hits.rows, hits.scores.tolist(), strict=True)
        }
        assert mine[0]["passage_id"] == query["query_id"].replace("q", "p0"), "a query is made of its passage's words"
    assert made.info == {"system": "bm25", "split": "dev", "top_k": 10, "num_queries": 10}
    assert join_passage(passages[0]["title"], passages[0]["text"]).startswith("title")


def test_reused_when_equal_and_refused_when_different(data: tuple[Path, Folder, Folder]) -> None:
    folder, corpus, _ = data
    output = Folder(str(folder / "bm25"))
    before = (folder / "bm25" / "manifest.json").stat().st_mtime_ns
    stage.bm25(config_for(folder), corpus, output)
    assert (folder / "bm25" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(FingerprintError, match=r"config\.k1: there 0\.9, asked 2\.0"):
        stage.bm25(config_for(folder, bm25={"k1": 2.0}), corpus, output)


@pytest.mark.invariant
def test_resumed_search_equals_an_uninterrupted_one(
    data: tuple[Path, Folder, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, corpus, dataset = data
    monkeypatch.setattr(stage, "QUERIES_PER_PART", 7)
    config, index = config_for(folder, search={"top_k": 5}), Folder(str(folder / "bm25"))

    def search(name: str) -> Run:
        return Run(stage.search_bm25(config, "train", dataset, corpus, index, Folder(str(folder / name))))

    whole = search("whole")
    assert len(whole.part_names) == 6
    # What a killed run leaves: the plan, some parts with their records, one half-written part.
    cut = Folder(str(folder / "cut"))
    search("cut")
    cut.write_json(PLAN, whole.artifact.manifest.identity.model_dump(mode="json"))
    for name in whole.part_names[:3]:
        stage.record_part(cut, name, whole.artifact.manifest.parts[name])
    (folder / "cut" / whole.part_names[2]).write_bytes(b"half")
    for name in ["manifest.json", *whole.part_names[3:]]:
        cut.remove(name)
    kept = (folder / "cut" / whole.part_names[0]).stat().st_mtime_ns
    resumed = search("cut")
    assert (folder / "cut" / whole.part_names[0]).stat().st_mtime_ns == kept
    assert resumed.artifact.manifest.parts == whole.artifact.manifest.parts


def test_index_of_another_corpus_is_refused(data: tuple[Path, Folder, Folder], tmp_path: Path) -> None:
    folder, _, dataset = data
    other = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "alpha"}]).artifact.folder
    with pytest.raises(DataError, match="was not made from the corpus"):
        stage.search_bm25(
            config_for(folder), "dev", dataset, other, Folder(str(folder / "bm25")), Folder(str(tmp_path / "run"))
        )


def test_unknown_split_and_corpus_without_terms(data: tuple[Path, Folder, Folder], tmp_path: Path) -> None:
    folder, corpus, dataset = data
    with pytest.raises(DataError, match=r"no split 'nope'; it has dev, test, train"):
        stage.search_bm25(
            config_for(folder), "nope", dataset, corpus, Folder(str(folder / "bm25")), Folder(str(tmp_path / "run"))
        )
    dots = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "..."}]).artifact.folder
    with pytest.raises(DataError, match=r"^BM25 found no term in 1 passages"):
        stage.bm25(config_for(folder), dots, Folder(str(tmp_path / "bm25")))
