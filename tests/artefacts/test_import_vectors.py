"""Vectors of other embedders: every file gives the same, in the order of the texts; what does not fit is named."""

from __future__ import annotations

import json
import re
import shutil
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
from raydr.artefacts import imported_vectors, vector_join
from raydr.artefacts.imported_vectors import import_vectors
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.distributed.pool import Pool, ThisProcess
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.indexing.vector_files import VectorBlock, id_blocks, vector_blocks, vector_layout
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from tests.made_artefacts import make_corpus
from tests.made_stage import interrupt, make


@pytest.fixture
def config(here: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "work"))


@pytest.fixture
def ids(config: RunConfig) -> list[str]:
    corpus = Corpus(raydr.prepare(config)[0])
    return corpus.ids(np.arange(len(corpus.passages)))


def made(ids: list[str], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((len(ids), 8)).astype(np.float32)


def whole(path: str) -> VectorBlock:
    [block] = vector_blocks(path, vector_layout(path).shape[0])
    return block


def read_ids(path: Path) -> list[str]:
    return [text_id for block in id_blocks(str(path), 2) for text_id in block.to_pylist()]


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


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_cosine_knows_no_length(config, ids, tmp_path, factor):
    vectors = made(ids)
    [artifact] = raydr.import_vectors(config, *write(tmp_path, "npz", ids, vectors * np.float32(factor)))
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(Embeddings(artifact).take(np.arange(len(ids))), expected, atol=1e-3)


def test_ids_of_any_kind_of_text(tmp_path):
    for ids in (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"], pa.string_view())):
        pq.write_table(pa.table({"id": ids, "emb": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "v.parquet")
        assert whole(str(tmp_path / "v.parquet")).ids.to_pylist() == ["a", "b"]


def test_what_does_not_fit_is_named(config, ids, tmp_path):
    vectors, path = made(ids), tmp_path / "some.npy"

    def refused(content: np.ndarray, message: str, **options: Any) -> None:
        np.save(path, content)
        with pytest.raises(DataError, match=message):
            raydr.import_vectors(config, str(path), "other", **options)

    refused(vectors[1:], "vectors without ids, and there are .* texts .*--ids")
    refused(vectors[0], r"holds float32 of shape \(8,\); expected .npy")
    refused(vectors * [[0.0]] * len(ids), "vectors are zero, not finite or beyond float16, the first is of")
    refused(vectors * 1e6, r"beyond float16, .*Multiply all vectors", similarity="dot")
    refused(vectors * 1e-9, r"beyond float16, .*Multiply all vectors", similarity="dot")
    for number in (np.nan, np.inf):
        refused(np.where(np.arange(len(ids))[:, None] == 3, number, vectors), f"1 vectors .* of {ids[3]!r}")
    (tmp_path / "ids.txt").write_text("\n".join([ids[1], *ids[1:]]))
    refused(vectors, f"ids of 1 texts more than once, the first is {ids[1]!r}", ids=str(tmp_path / "ids.txt"))
    (tmp_path / "ids.txt").write_text("\n".join(ids[1:]))
    refused(vectors, r"ids\.txt has .* ids for .* vectors of", ids=str(tmp_path / "ids.txt"))
    (tmp_path / "ids.txt").write_text("\n".join(["stranger", *ids[1:]]))
    refused(vectors, f"has no vector for 1 of .* texts, the first is {ids[0]!r}", ids=str(tmp_path / "ids.txt"))
    with pytest.raises(ConfigError, match="use another name for the embedder"):
        raydr.import_vectors(config, str(path), "trained")
    with pytest.raises(DataError, match="there is no file none.npy"):
        raydr.import_vectors(config, "none.npy", "other")


#: In parts of 50 passages; tests cut them into blocks and groups of 60 rows.
PASSAGES = [{"passage_id": f"p{at}", "text": f"words {at}"} for at in range(330)]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return make_corpus(tmp_path / "corpus", PASSAGES)


def imported(folder: Path | Folder, corpus: Corpus, arguments: list[Any], pool: Pool | None = None) -> Artifact:
    file, system, _, ids = arguments
    how = {"file": file, "ids": ids, "checksums": [], "system": system, "similarity": "cosine"}
    return make(folder, "embeddings", import_vectors, corpus.artifact, pool=pool or ThisProcess(), **how)


@pytest.mark.invariant
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_blocks_and_groups_give_the_bytes_of_a_single_one(kind, corpus, pool, tmp_path, monkeypatch):
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, kind, ids, made(ids))
    single = imported(tmp_path / "single", corpus, arguments)
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    cut = imported(tmp_path / "cut", corpus, arguments, pool)
    assert cut.manifest.parts == single.manifest.parts
    assert not cut.folder.exists("join")


def test_vectors_keep_the_partitions_of_the_corpus(tmp_path):
    corpus = make_corpus(tmp_path / "parted", PASSAGES, partitions=list("aabbcdd"))
    ids = corpus.ids(np.arange(len(corpus)))
    embeddings = Embeddings(imported(tmp_path / "made", corpus, write(tmp_path, "npy", ids, made(ids))))
    assert embeddings.partitions == list("aabbcdd")


@pytest.mark.invariant
@pytest.mark.parametrize("broken", ["sort_block", "write_group"])
def test_killed_and_resumed_equals_uninterrupted(broken, corpus, tmp_path, monkeypatch):
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, "npy", ids, made(ids))
    whole_one = imported(tmp_path / "whole", corpus, arguments)
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    do, calls = getattr(imported_vectors, broken), []

    def dying(*of: Any) -> Any:
        calls.append(of)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return do(*of)

    monkeypatch.setattr(imported_vectors, broken, dying)
    with pytest.raises(KeyboardInterrupt):
        imported(tmp_path / "resumed", corpus, arguments)
    num_done, num_calls = len(calls) - 1, 6 if broken == "sort_block" else 4
    resumed = imported(tmp_path / "resumed", corpus, arguments)
    assert resumed.manifest.parts == whole_one.manifest.parts
    assert len(calls) - 3 == num_calls - num_done


def test_a_part_that_was_lost_is_made_again_with_its_group(corpus, tmp_path, monkeypatch):
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, "npy", ids, made(ids))
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    artifact = imported(tmp_path / "made", corpus, arguments)
    before = artifact.manifest.parts
    interrupt(artifact, *artifact.parts()[1:])
    assert imported(tmp_path / "made", corpus, arguments).manifest.parts == before


@pytest.mark.parametrize("num_ids", [300, 330, 332, 391])
def test_a_second_attempt_refuses_a_wrong_number_of_ids_as_the_first(num_ids, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, "npy", ids, made(ids))
    Path(arguments[-1]).write_text("\n".join([*ids, *(f"x{at}" for at in range(100))][:num_ids]))
    for _ in range(2):
        with pytest.raises(DataError, match=f"has {num_ids} ids for 331 vectors"):
            imported(tmp_path / "made", corpus, arguments)


def test_each_of_many_gaps_counts(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    ids = corpus.ids(np.arange(len(corpus)))
    strange = [f"x{text_id}" if at % 100 == 7 else text_id for at, text_id in enumerate(ids)]
    with pytest.raises(DataError, match=f"has no vector for 4 of 330 texts, the first is {ids[7]!r}"):
        imported(tmp_path / "made", corpus, write(tmp_path, "npy", strange, made(ids)))
    twice = [ids[at - 1] if at in (20, 320) else text_id for at, text_id in enumerate(ids)]
    with pytest.raises(DataError, match=f"ids of 2 texts more than once, the first is {ids[19]!r}"):
        imported(tmp_path / "twice", corpus, write(tmp_path, "npz", twice, made(ids)))


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_row_groups_of_parquet_do_not_decide_its_blocks(rows, tmp_path):
    table = pa.table({"id": [str(at) for at in range(10)], "vector": list(made(["a"] * 10))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=rows)
    blocks = list(vector_blocks(str(tmp_path / "a.parquet"), 4))
    assert [block.ids.to_pylist() for block in blocks] == [list("0123"), list("4567"), list("89")]
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), made(["a"] * 10))


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_files_and_artefacts_may_lie_on_an_object_store(kind, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vector_join, "_MOST_ROWS", 60)
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, kind, ids, made(ids))
    expected = imported(tmp_path / "made", corpus, arguments).manifest.parts
    away = Folder(f"memory://vectors-{tmp_path.name}")
    for at in (0, 3):
        if arguments[at]:
            name = Path(arguments[at]).name
            with away.publish(name) as copy:
                shutil.copyfile(arguments[at], copy)
            arguments[at] = f"{away.url}/{name}"
    assert imported(away / "made", corpus, arguments).manifest.parts == expected


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_the_layout_is_read_without_a_copy_of_the_file(kind, corpus, tmp_path, monkeypatch):
    file = write(tmp_path, kind, corpus.ids(np.arange(len(corpus))), made(["a"] * len(corpus)))[0]
    away = Folder(f"memory://layout-{tmp_path.name}")
    with away.publish(Path(file).name) as copy:
        shutil.copyfile(file, copy)
    monkeypatch.delattr(Folder, "localize")
    assert vector_layout(f"{away.url}/{Path(file).name}") == vector_layout(file)


def test_arrays_by_column_are_read(corpus, tmp_path):
    ids = corpus.ids(np.arange(len(corpus)))
    arguments = write(tmp_path, "npy", ids, made(ids))
    expected = imported(tmp_path / "rows", corpus, arguments).manifest.parts
    np.save(arguments[0], np.asfortranarray(np.load(arguments[0])))
    assert imported(tmp_path / "columns", corpus, arguments).manifest.parts == expected


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("empty.npy", None, r"cannot read .*empty\.npy \(EOF: reading magic string"),
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
        whole(str(path))


def test_large_columns_are_read(tmp_path: Path) -> None:
    vectors = pa.array([[1.0, 2.0]], pa.large_list(pa.float32()))
    pq.write_table(pa.table({"id": pa.array(["a"], pa.large_string()), "vector": vectors}), tmp_path / "a.parquet")
    read = whole(str(tmp_path / "a.parquet"))
    assert (read.vectors.tolist(), read.ids.to_pylist()) == ([[1.0, 2.0]], ["a"])


@pytest.mark.parametrize("content", [None, b"", b"junk"])
def test_ids_that_cannot_be_read_are_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "ids.npy").write_bytes(content)
    message = (
        r"there is no file .*ids\.npy" if content is None else r"cannot read .*ids\.npy .*expected ids, a line each"
    )
    with pytest.raises(DataError, match=message):
        read_ids(tmp_path / "ids.npy")


def test_ids_are_lines_of_bytes(tmp_path: Path) -> None:
    ids = ["a\u2028b", "c\u0085d", "e\x1cf", "\u00a0g", "h "]
    file = tmp_path / "ids.txt"
    for content in ("\n".join(ids), "\ufeff" + "\n".join(ids) + "\n", "\r\n".join(ids) + "\r\n"):
        file.write_bytes(content.encode())
        assert read_ids(file) == ids
    file.write_bytes(b"a\n\xff\n")
    with pytest.raises(DataError, match=r"ids\.txt: the id .* is not valid UTF-8"):
        read_ids(file)
