from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.schema import RUNS
from raydr.errors import ArtifactError, ConfigError, DataError, FingerprintError
from raydr.indexing.searcher import Searcher
from raydr.indexing.shards import IndexShards
from raydr.runtime.capacity import ON_DEMAND
from raydr.stages import search as stage
from raydr.stages.index import build_index
from raydr.stages.runs import Run
from raydr.stages.search import plan_layout, search
from raydr.store.artifact import MANIFEST, Artifact, fingerprint_of
from raydr.store.folder import Folder
from tests.made import integer_vectors, make_corpus, make_embeddings

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]

DIM = 8
PASSAGES = integer_vectors(700, DIM, seed=0)
QUERIES = integer_vectors(90, DIM, seed=1)


def make_config(shard_rows: int = 1000, factory: str = "Flat", **settings: Any) -> RunConfig:
    return RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "index": {"shard_rows": shard_rows, "factory": factory},
            "search": {"top_k": 20, "batch_queries": 25, **settings},
        }
    )


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return make_embeddings(tmp_path_factory.mktemp("made") / "passages", PASSAGES, part_rows=50)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return make_embeddings(tmp_path_factory.mktemp("made") / "queries", QUERIES, part_rows=40, side="query")


@pytest.fixture(scope="module")
def flat(ray_local: None, passages: Folder, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return build_index(make_config(), passages, Folder(str(tmp_path_factory.mktemp("made") / "flat"))).folder


@pytest.fixture(scope="module")
def flat_run(flat: Folder, queries: Folder, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return search(make_config(), flat, queries, Folder(str(tmp_path_factory.mktemp("made") / "run")))


def rows_of(artifact: Artifact) -> list[dict[str, Any]]:
    return [row for part in Run(artifact).parts() for row in part.to_pylist()]


def test_the_run_is_the_exact_top_k(flat_run: Artifact) -> None:
    scores = QUERIES.astype(np.float32) @ PASSAGES.astype(np.float32).T
    rows = rows_of(flat_run)
    assert len(rows) == 90 * 20
    assert Run(flat_run).part(Run(flat_run).part_names[0]).schema.equals(RUNS)
    assert flat_run.info["num_queries"] == 90
    for query in range(90):
        own = [row for row in rows if row["query_id"] == f"q{query}"]
        best = sorted(range(700), key=lambda at, q=query: (-scores[q, at], at))[:20]
        assert {row["passage_id"] for row in own} == {f"p{at}" for at in best}
        assert [row["rank"] for row in own] == list(range(1, 21))
        np.testing.assert_array_equal([row["score"] for row in own], scores[query, best])


def test_a_part_of_the_run_never_spans_parts_of_the_queries(flat_run: Artifact) -> None:
    sizes = [len(set(part["query_id"].to_pylist())) for part in Run(flat_run).parts()]
    assert sizes == [25, 15, 25, 15, 10]


@pytest.mark.invariant
@pytest.mark.parametrize(("shard_rows", "num_shards"), [(350, 2), (100, 7)])
def test_sharded_search_equals_flat_search(
    shard_rows: int, num_shards: int, passages: Folder, queries: Folder, flat_run: Artifact, tmp_path: Path
) -> None:
    """Same ids, ranks and scores, many of which are equal; more shards than CPUs."""
    index = build_index(make_config(shard_rows), passages, Folder(str(tmp_path / "index")))
    assert index.info["num_shards"] == num_shards
    sharded = search(make_config(shard_rows), index.folder, queries, Folder(str(tmp_path / "run")))
    assert rows_of(sharded) == rows_of(flat_run)


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "SQfp16"])
def test_sharded_equals_flat_on_real_valued_vectors(factory: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((600, 32)).astype(np.float16)
    vectors[400:450] = vectors[:50]
    made = make_embeddings(tmp_path / "passages", vectors, part_rows=100)
    asked = make_embeddings(tmp_path / "queries", rng.standard_normal((30, 32)).astype(np.float16), 30, side="query")
    runs = []
    for name, shard_rows in {"one": 1000, "many": 200}.items():
        config = make_config(shard_rows, factory)
        index = build_index(config, made, Folder(str(tmp_path / f"index-{name}")))
        runs.append(rows_of(search(config, index.folder, asked, Folder(str(tmp_path / f"run-{name}")))))
    one, many = runs
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in one] == [
        (row["query_id"], row["passage_id"], row["rank"]) for row in many
    ]
    np.testing.assert_allclose([row["score"] for row in one], [row["score"] for row in many], rtol=1e-6)


@pytest.mark.invariant
def test_resumed_equals_uninterrupted_bit_for_bit(
    flat: Folder, queries: Folder, flat_run: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Folder(str(tmp_path / "run"))
    write, calls = stage.Part.model_validate, []

    class Interrupting:
        @staticmethod
        def model_validate(record: Any) -> Any:
            calls.append(record)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return write(record)

    monkeypatch.setattr(stage, "Part", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        search(make_config(), flat, queries, output)
    monkeypatch.undo()
    assert not output.exists(MANIFEST)
    with pytest.raises(ArtifactError, match="not complete"):
        Run.open(output)
    finished = {path.name: path.stat().st_mtime_ns for path in Path(output.root).glob("part-*.parquet")}
    assert finished
    resumed = search(make_config(), flat, queries, output)
    assert (
        finished.items() <= {path.name: path.stat().st_mtime_ns for path in Path(output.root).glob("*.parquet")}.items()
    )
    assert resumed.manifest.parts == flat_run.manifest.parts


def test_more_wanted_than_there_are_passages(flat: Folder, queries: Folder, tmp_path: Path) -> None:
    run = search(make_config(), flat, queries, Folder(str(tmp_path / "run")), top_k=5000)
    assert len(rows_of(run)) == 90 * 700
    assert run.info["top_k"] == 5000


def test_embeddings_of_another_model_are_refused(flat: Folder, tmp_path: Path) -> None:
    other = make_embeddings(tmp_path / "queries", QUERIES, 40, side="query", model="model-1")
    with pytest.raises(FingerprintError, match=r"model-1.*model-0"):
        search(make_config(), flat, other, Folder(str(tmp_path / "run")))
    passages = make_embeddings(tmp_path / "passages", QUERIES, 40)
    with pytest.raises(DataError, match="expected encoded queries"):
        search(make_config(), flat, passages, Folder(str(tmp_path / "run")))


def test_nprobe_matters_for_ivf_only(passages: Folder, queries: Folder, flat: Folder, tmp_path: Path) -> None:
    ivf = build_index(make_config(factory="IVF16,Flat"), passages, Folder(str(tmp_path / "ivf"))).folder
    few, all_cells = (
        search(make_config(nprobe=nprobe), ivf, queries, Folder(str(tmp_path / f"run-{nprobe}"))) for nprobe in (1, 16)
    )
    assert few.fingerprint != all_cells.fingerprint
    assert sum(row["score"] for row in rows_of(few)) < sum(row["score"] for row in rows_of(all_cells))
    runs = [Folder(str(tmp_path / "run-flat"))] * 2
    one, other = (search(make_config(nprobe=n), flat, queries, run) for n, run in zip((1, 16), runs, strict=True))
    assert one.fingerprint == other.fingerprint


def test_exhaustive_ivf_equals_flat(passages: Folder, queries: Folder, flat_run: Artifact, tmp_path: Path) -> None:
    config = make_config(factory="IVF16,Flat", shard_rows=350, nprobe=16)
    ivf = build_index(config, passages, Folder(str(tmp_path / "ivf"))).folder
    assert rows_of(search(config, ivf, queries, Folder(str(tmp_path / "run")))) == rows_of(flat_run)


def test_actors_share_the_shards_when_they_do_not_all_fit() -> None:
    layout = plan_layout(make_config().search, 5, "Flat")
    assert layout.groups == ((0, 1), (2, 3, 4))
    assert layout.cpus == 1
    assert plan_layout(make_config().search, 1, "Flat").cpus == 2
    with pytest.raises(ConfigError, match="needs 3 CPUs of one node, the largest has 2"):
        plan_layout(make_config(cpus_per_actor=3).search, 1, "Flat")
    with pytest.raises(ConfigError, match=r"search\.device is cuda, but the cluster has no GPU"):
        plan_layout(make_config(device="cuda").search, 1, "Flat")


def nodes_of(monkeypatch: pytest.MonkeyPatch, nodes: list[tuple[float, float]]) -> None:
    """A cluster of nodes with so many CPUs and GPUs."""
    found = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in nodes]
    monkeypatch.setattr(stage, "node_capacities", lambda: found)
    total = {name: sum(node[name] for node in found) for name in ("CPU", "GPU")}
    monkeypatch.setattr(stage, "cluster_capacity", lambda: total)


@pytest.mark.parametrize(
    ("nodes", "num_shards", "settings", "num_actors", "cpus"),
    [
        ([(16, 0)] * 2, 3, {}, 3, 8),
        ([(8, 0)] * 4, 5, {}, 5, 4),
        ([(16, 0)] * 8, 11, {}, 11, 8),
        ([(32, 0), (4, 0), (0, 0)], 3, {}, 3, 10),
        ([(16, 0)] * 2, 3, {"cpus_per_actor": 10}, 2, 10),
        ([(64, 0), (16, 1), (8, 1)], 3, {}, 2, 8),
    ],
)
def test_all_actors_fit_on_the_nodes_at_a_time(
    nodes: list[tuple[float, float]],
    num_shards: int,
    settings: dict[str, int],
    num_actors: int,
    cpus: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An actor has a node to itself or shares it; one that is spread over two would wait for ever."""
    nodes_of(monkeypatch, nodes)
    layout = plan_layout(make_config(**settings).search, num_shards, "Flat")
    assert (len(layout.groups), layout.cpus) == (num_actors, cpus)


@pytest.mark.parametrize(
    ("nodes", "settings", "num_actors", "cpus"),
    [
        # The head alone, which has no CPU for tasks.
        ([(0, 0)], {"device": "cpu"}, 11, 1),
        # Eleven nodes of 16 CPUs each may never come; one holds eleven actors.
        ([(0, 0), (16, 0)], {"device": "cpu"}, 11, 1),
        ([(0, 0), (64, 0)], {"device": "cpu"}, 11, 5),
        ([(0, 0), (64, 0)], {"device": "cpu", "max_actors": 2}, 2, 32),
        ([(0, 0), (16, 0)], {"device": "cpu", "cpus_per_actor": 4}, 11, 4),
        # An actor with a GPU goes to a node that has one.
        ([(16, 0), (8, 1)], {"max_actors": 2}, 2, 4),
        ([(16, 0)], {}, 11, 1),
    ],
)
def test_a_cluster_that_grows_is_not_asked_for_a_node_a_shard(
    nodes: list[tuple[float, float]],
    settings: dict[str, Any],
    num_actors: int,
    cpus: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes_of(monkeypatch, nodes)
    monkeypatch.setattr(stage, "cluster_capacity", lambda: {"CPU": ON_DEMAND, "GPU": ON_DEMAND})
    layout = plan_layout(make_config(**settings).search, 11, "SQfp16")
    assert (len(layout.groups), layout.cpus) == (num_actors, cpus)


def test_nobody_waits_for_a_gpu_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster grows, and may have no nodes with GPUs at all."""
    nodes_of(monkeypatch, [(0, 0), (16, 0)])
    monkeypatch.setattr(stage, "cluster_capacity", lambda: {"CPU": ON_DEMAND, "GPU": ON_DEMAND})
    assert plan_layout(make_config().search, 1, "Flat").device == "cpu"
    assert plan_layout(make_config(device="cuda").search, 1, "Flat").device == "cuda"
    nodes_of(monkeypatch, [(0, 0), (16, 1)])
    monkeypatch.setattr(stage, "cluster_capacity", lambda: {"CPU": ON_DEMAND, "GPU": ON_DEMAND})
    assert plan_layout(make_config().search, 1, "Flat").device == "cuda"


def test_a_gpu_searches_what_faiss_or_pytorch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_of(monkeypatch, [(4, 1)])
    monkeypatch.setattr(stage, "faiss_on_gpu_nodes", lambda: False)
    assert plan_layout(make_config().search, 1, "Flat").device == "cuda"
    assert plan_layout(make_config().search, 1, "IVF4,Flat").device == "cpu"
    assert plan_layout(make_config(device="cpu").search, 1, "Flat").device == "cpu"
    with pytest.raises(ConfigError, match=r"PyTorch searches Flat and SQfp16 only, not IVF4,Flat"):
        plan_layout(make_config(device="cuda").search, 1, "IVF4,Flat")


def test_interactive_search_finds_the_same(passages: Folder, flat_run: Artifact, flat: Folder, tmp_path: Path) -> None:
    corpus = Corpus.open(make_corpus(tmp_path / "corpus", [f"text {at}" for at in range(700)], 100))
    index = IndexShards.open(flat)
    with pytest.raises(FingerprintError, match="corpus-0"):
        Searcher(index, corpus, lambda texts: QUERIES[: len(texts)])
    identity = corpus.artifact.manifest.identity
    made_of = index.artifact.manifest.model_copy(
        update={"identity": index.artifact.manifest.identity.model_copy(
            update={"inputs": {"corpus": fingerprint_of(identity.model_dump()), "model": "model-0"}})}
    )  # fmt: skip
    searcher = Searcher(
        IndexShards(Artifact(index.artifact.folder, made_of)), corpus, lambda texts: QUERIES[: len(texts)]
    )
    hits = searcher.search(["first", "second"], top_k=20)
    for number, found in enumerate(hits):
        expected = {row["passage_id"]: row["score"] for row in rows_of(flat_run) if row["query_id"] == f"q{number}"}
        assert {hit.passage_id: hit.score for hit in found} == expected
        assert [hit.rank for hit in found] == list(range(1, 21))
        assert all(hit.text == f"text {hit.passage_id[1:]}" for hit in found)
    with pytest.raises(ConfigError, match="query 2 of 2 is empty"):
        searcher.search(["first", "  "])
    assert searcher.search([]) == []
