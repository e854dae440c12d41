"""Vectors of other embedders: every file gives the same, in the order of the texts; what does not fit is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from small_runs import small_run

import raydr
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.indexing.vector_files import read_ids, read_vectors

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work"))


@pytest.fixture
def ids(config: RunConfig) -> list[str]:
    corpus = Corpus(raydr.prepare(config)[0])
    return corpus.ids(np.arange(len(corpus.passages)))


def made(ids: list[str], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((len(ids), 8)).astype(np.float32)


def write(folder: Path, kind: str, ids: list[str], vectors: np.ndarray) -> list[Any]:
    """The arguments after the config: a file of that kind, in another order than the corpus, with one vector more."""
    order = np.random.default_rng(1).permutation(len(ids))
    ids = [*(ids[at] for at in order), "nobody"]
    vectors = np.concatenate([vectors[order], np.ones((1, vectors.shape[1]), dtype=np.float32)])
    path = folder / f"vectors.{kind}"
    (folder / "ids.txt").write_text("\n".join(ids))
    if kind == "npz":
        np.savez(path, vectors=vectors, ids=np.array(ids))
    elif kind == "parquet":
        pq.write_table(pa.table({"n": range(len(ids)), "id": ids, "emb": list(vectors)}), path)
    elif kind == "npy":
        np.save(path, vectors)
    else:
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.write_index(index, str(path))
    return [str(path), "other", "", "" if kind in ("npz", "parquet") else str(folder / "ids.txt")]


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet", "faiss"])
def test_every_kind_of_file_gives_the_vectors_in_the_order_of_the_corpus(config, ids, tmp_path, kind):
    vectors = made(ids)
    [artifact] = raydr.import_vectors(config, *write(tmp_path, kind, ids, vectors))
    embeddings = Embeddings(artifact)
    assert [
        passage_id for part in range(len(embeddings.part_names)) for passage_id in embeddings.ids(part).to_pylist()
    ] == ids
    expected = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    np.testing.assert_array_equal(embeddings.take(np.arange(len(ids))), expected)


def test_they_are_searched_mined_and_evaluated_like_a_models(config, ids, tmp_path):
    passages = made(ids)
    raydr.import_vectors(config, *write(tmp_path, "npz", ids, passages))
    with pytest.raises(ArtifactError, match="none of the queries of split 'test': raydr import-vectors"):
        raydr.search(config, model="other", split="test")
    data = Dataset(Places.of(config.workdir).open("dataset", "dataset"))
    queries = {}
    for split in ("train", "test"):
        names = data.queries(split)["query_id"].to_pylist()
        queries[split] = made(names, seed=2)
        np.save(tmp_path / "queries.npy", queries[split])
        raydr.import_vectors(config, str(tmp_path / "queries.npy"), "other", split)
    [run] = raydr.search(config, model="other", split="test")
    best = next(Run(run).parts()).to_pylist()[0]
    cosine = queries["test"][0] @ passages.T / np.linalg.norm(queries["test"][0]) / np.linalg.norm(passages, axis=1)
    assert best["passage_id"] == ids[int(np.argmax(cosine))]
    assert best["score"] == pytest.approx(cosine.max(), abs=2e-3)
    [mined] = raydr.mine(config, miner="other")
    assert mined.info["miner"] == "other"
    by_them = config.model_copy(update={"judge": config.judge.model_copy(update={"scores": "miner"})})
    [judged] = raydr.judge(by_them, judge=["guide"], miner="other")
    assert judged.rows() == mined.rows()
    with pytest.raises(ConfigError, match="cannot encode a text"):
        raydr.search_text(config, "red river", "other")
    [result] = raydr.evaluate(config, split="test", system=["bm25", "other"])
    assert set(result.info["means"]) == {"bm25", "other"}
    [shown] = re.findall(r'application/json">(.*?)</script>', Path(raydr.report(config)).read_text())
    browser = json.loads(shown)
    text = data.queries("test").filter(pc.equal(data.queries("test")["query_id"], best["query_id"]))["text"][0].as_py()
    [story] = [query for query in browser["queries"] if query["text"] == text]
    assert story["top"][browser["systems"].index("other")][0] == best["passage_id"]
    assert len(browser["queries"]) == browser["num_queries"]


def test_what_does_not_fit_is_named(config, ids, tmp_path):
    vectors, path = made(ids), tmp_path / "some.npy"

    def refused(content: np.ndarray, message: str, **options: Any) -> None:
        np.save(path, content)
        with pytest.raises(DataError, match=message):
            raydr.import_vectors(config, str(path), "other", **options)

    refused(vectors[1:], "vectors without ids, and there are .* texts .*--ids")
    refused(vectors[0], r"holds float32 of shape \(8,\); expected .npy")
    refused(vectors * [[0.0]] * len(ids), "vectors are zero, not finite or beyond float16, the first is of")
    refused(vectors * 1e6, "beyond float16", similarity="dot")
    (tmp_path / "ids.txt").write_text("\n".join(["twice", *ids[1:-1], "twice"]))
    refused(vectors, "which must be distinct", ids=str(tmp_path / "ids.txt"))
    (tmp_path / "ids.txt").write_text("\n".join(["stranger", *ids[1:]]))
    refused(vectors, f"has no vector for 1 of .* texts, the first is {ids[0]!r}", ids=str(tmp_path / "ids.txt"))
    with pytest.raises(ConfigError, match="use another name for the embedder"):
        raydr.import_vectors(config, str(path), "trained")
    with pytest.raises(DataError, match="there is no file none.npy"):
        raydr.import_vectors(config, "none.npy", "other")


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("empty.npy", None, r"cannot read .*empty\.npy \(No data left in file\)"),
        ("flat.npy", np.zeros((3, 0), np.float32), r"holds float32 of shape \(3, 0\); expected \.npy"),
        ("words.parquet", {"id": ["a"], "vector": ["1 2"]}, r"no column has lists of numbers; there are id: string"),
        (
            "floats.parquet",
            {"id": [1.0], "vector": [[1.0]]},
            r"no column has texts or integers as ids",
        ),
        ("ids.npz", {"vectors": np.ones((1, 2)), "ids": np.ones(1)}, r"its ids are float64 of shape \(1,\)"),
    ],
)
def test_files_without_vectors_are_named(name: str, columns: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if columns is None:
        path.touch()
    elif path.suffix == ".npy":
        np.save(path, columns)
    elif path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=message):
        read_vectors(str(path))


def test_large_columns_are_read(tmp_path: Path) -> None:
    vectors = pa.array([[1.0, 2.0]], pa.large_list(pa.float32()))
    pq.write_table(pa.table({"id": pa.array(["a"], pa.large_string()), "vector": vectors}), tmp_path / "a.parquet")
    read = read_vectors(str(tmp_path / "a.parquet"))
    assert (read.vectors.tolist(), read.ids.to_pylist()) == ([[1.0, 2.0]], ["a"])


@pytest.mark.parametrize("content", [None, b"", b"junk"])
def test_ids_that_cannot_be_read_are_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "ids.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*ids\.npy .*expected ids, a line each"):
        read_ids(str(tmp_path / "ids.npy"))


def test_ids_are_lines_of_bytes(tmp_path: Path) -> None:
    ids = ["a\u2028b", "c\u0085d", "e\x1cf", "\u00a0g", "h "]
    file = tmp_path / "ids.txt"
    for content in ("\n".join(ids), "\ufeff" + "\n".join(ids) + "\n", "\r\n".join(ids) + "\r\n"):
        file.write_bytes(content.encode())
        assert read_ids(str(file)).to_pylist() == ids
    file.write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"ids\.txt: the id .* is not valid UTF-8"):
        read_ids(str(file))
