from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.artefacts import search as stage
from raydr.artefacts import search_layout
from raydr.artefacts.index import build_index
from raydr.artefacts.run import Run
from raydr.artefacts.search import search, settings_in_use
from raydr.artefacts.search_layout import GpuNode, Layout, plan_layout
from raydr.data.corpus import Corpus
from raydr.data.tables import RUNS
from raydr.distributed.pool import Pool, ThisProcess
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.searcher import Searcher
from raydr.indexing.shards import IndexShards
from raydr.models.scores.dual import Dual
from raydr.store.artifact import Artifact
from raydr.store.building import DONE
from raydr.store.identity import MANIFEST
from tests.made import integer_vectors, make_corpus, make_embeddings, make_model
from tests.made_stage import make

DIM = 8
PASSAGES = integer_vectors(700, DIM, seed=0)
QUERIES = integer_vectors(90, DIM, seed=1)


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_embeddings(tmp_path_factory.mktemp("made") / "passages", PASSAGES, part_rows=50)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return make_embeddings(tmp_path_factory.mktemp("made") / "queries", QUERIES, part_rows=40, side="query")


def index_of(passages: Artifact, output: Path, factory: str = "Flat", shard_rows: int = 1000) -> Artifact:
    return make(
        output,
        "index",
        build_index,
        passages,
        score=Dual(),
        settings=IndexConfig(factory=factory, shard_rows=shard_rows),
    )


def find(
    index: Artifact, queries: Artifact, output: Path, pool: Pool | None = None, top_k: int = 20, **settings: Any
) -> Artifact:
    return make(
        output, "run", search, index, queries, pool=pool, settings=SearchConfig(batch_queries=25, **settings),
        top_k=top_k, system="dense",
    )  # fmt: skip


@pytest.fixture(scope="module")
def flat(passages: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return index_of(passages, tmp_path_factory.mktemp("made") / "flat")


@pytest.fixture(scope="module")
def flat_run(flat: Artifact, queries: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return find(flat, queries, tmp_path_factory.mktemp("made") / "run")


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
    shard_rows: int, num_shards: int, pool: Pool, passages: Artifact, queries: Artifact, flat_run: Artifact,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Same bytes: same ids, ranks and scores, many of which are equal; more shards than CPUs."""
    index = index_of(passages, tmp_path / "index", shard_rows=shard_rows)
    assert index.info["num_shards"] == num_shards
    assert find(index, queries, tmp_path / "run", pool).manifest.parts == flat_run.manifest.parts


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "SQfp16"])
def test_sharded_equals_flat_on_real_valued_vectors(factory: str, pool: Pool, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((600, 32)).astype(np.float16)
    vectors[400:450] = vectors[:50]
    made = make_embeddings(tmp_path / "passages", vectors, part_rows=100)
    asked = make_embeddings(tmp_path / "queries", rng.standard_normal((30, 32)).astype(np.float16), 30, side="query")
    runs = []
    for name, shard_rows in {"one": 1000, "many": 200}.items():
        index = index_of(made, tmp_path / f"index-{name}", factory, shard_rows)
        runs.append(rows_of(find(index, asked, tmp_path / f"run-{name}", pool)))
    single, many = runs
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in single] == [
        (row["query_id"], row["passage_id"], row["rank"]) for row in many
    ]
    np.testing.assert_allclose([row["score"] for row in single], [row["score"] for row in many], rtol=1e-6)


@pytest.mark.invariant
def test_resumed_equals_uninterrupted_bit_for_bit(
    pool: Pool, flat: Artifact, queries: Artifact, flat_run: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "run"

    class Interrupting:
        """A progress bar that is interrupted when the second part is there."""

        def __init__(self) -> None:
            self.calls = 0

        def advance(self, amount: float) -> None:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(stage, "progress_bar", lambda *args, **kwargs: nullcontext(Interrupting()))
    with pytest.raises(KeyboardInterrupt):
        find(flat, queries, output, pool)
    monkeypatch.undo()
    assert not (output / MANIFEST).exists()
    with pytest.raises(ArtifactError, match="not complete"):
        Run.open(str(output))
    # A worker that is killed between a part and its record leaves a file that is made again.
    recorded = [path.name.removesuffix(".json") for path in (output / DONE).glob("*.json")]
    finished = {name: (output / name).stat().st_mtime_ns for name in recorded}
    assert len(finished) >= 2
    resumed = find(flat, queries, output, pool)
    assert finished.items() <= {path.name: path.stat().st_mtime_ns for path in output.glob("*.parquet")}.items()
    assert resumed.manifest.parts == flat_run.manifest.parts


def test_more_wanted_than_there_are_passages(flat: Artifact, queries: Artifact, tmp_path: Path) -> None:
    run = find(flat, queries, tmp_path / "run", top_k=5000)
    assert len(rows_of(run)) == 90 * 700
    assert (run.info["top_k"], run.info["split"]) == (5000, "test")


def test_only_what_a_kind_of_index_uses_is_among_its_settings() -> None:
    def in_use(settings: SearchConfig, factory: str) -> dict[str, object]:
        return settings_in_use(settings, factory, Dual()).differing_settings()

    settings = SearchConfig(batch_queries=7, nprobe=8, ef_search=9, refine_factor=2)
    everything = {"batch_queries": 7, "nprobe": 8, "ef_search": 9, "refine_factor": 2}
    # The last one fits no width that is known before the vectors are.
    for factory in ("auto", "PCA50,PQ49"):
        assert in_use(settings, factory) == everything
    assert in_use(settings, "Flat") == {"batch_queries": 7}
    assert in_use(settings, "IVF4096,PQ48") == {"batch_queries": 7, "nprobe": 8}
    assert in_use(settings, "HNSW32,RFlat") == {"batch_queries": 7, "ef_search": 9, "refine_factor": 2}


def test_nprobe_matters_for_ivf(passages: Artifact, queries: Artifact, tmp_path: Path) -> None:
    ivf = index_of(passages, tmp_path / "ivf", "IVF16,Flat")
    few, all_cells = (find(ivf, queries, tmp_path / f"run-{nprobe}", nprobe=nprobe) for nprobe in (1, 16))
    assert sum(row["score"] for row in rows_of(few)) < sum(row["score"] for row in rows_of(all_cells))


def test_exhaustive_ivf_equals_flat(passages: Artifact, queries: Artifact, flat_run: Artifact, tmp_path: Path) -> None:
    ivf = index_of(passages, tmp_path / "ivf", "IVF16,Flat", 350)
    assert rows_of(find(ivf, queries, tmp_path / "run", nprobe=16)) == rows_of(flat_run)


@dataclass
class MadeShards:
    """What a layout asks of an index: shards of 3 GiB each."""

    num_shards: int
    factory: str

    @property
    def shard_bytes(self) -> list[int]:
        return [3 * 2**30] * self.num_shards


def layout_of(num_shards: int, factory: str, **settings: Any) -> Layout:
    shards: Any = MadeShards(num_shards, factory)
    return plan_layout(SearchConfig(**settings), shards, ThisProcess())


def gpus_of(monkeypatch: pytest.MonkeyPatch, gib: float, faiss_has_cuda: bool = False) -> None:
    """What a node with a GPU says of it."""
    monkeypatch.setattr(search_layout, "look_at_gpu", lambda: GpuNode(faiss_has_cuda, int(gib * 2**30)))


@pytest.mark.usefixtures("ray_local")
def test_actors_share_the_shards_when_they_do_not_all_fit() -> None:
    layout = layout_of(5, "Flat")
    assert layout.groups == ((0, 1), (2, 3, 4))
    assert layout.cpus == 1
    assert layout_of(1, "Flat").cpus == 2
    with pytest.raises(ConfigError, match="needs 3 CPUs of one node, the largest has 2"):
        layout_of(1, "Flat", cpus_per_actor=3)
    with pytest.raises(ConfigError, match=r"search\.device is cuda, but the cluster has no GPU"):
        layout_of(1, "Flat", device="cuda")


def nodes_of(monkeypatch: pytest.MonkeyPatch, nodes: list[tuple[float, float]]) -> None:
    """A cluster of nodes with so many CPUs and GPUs."""
    capacities = [{"CPU": float(cpus), "GPU": float(gpus)} for cpus, gpus in nodes]
    monkeypatch.setattr(search_layout, "node_capacities", lambda: capacities)
    total = {name: sum(node[name] for node in capacities) for name in ("CPU", "GPU")}
    monkeypatch.setattr(search_layout, "cluster_capacity", lambda: total)


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
    gpus_of(monkeypatch, 24)
    layout = layout_of(num_shards, "Flat", **settings)
    assert (len(layout.groups), layout.cpus) == (num_actors, cpus)


@pytest.mark.parametrize(
    ("nodes", "capacity", "settings", "num_actors", "cpus"),
    [
        # The head alone, which has no CPU for tasks: four nodes of 16 hold eleven actors of 4 CPUs, not of 5.
        ([(0, 0)], (64, 0), {}, 11, 4),
        ([(0, 0)], (64, 0), {"max_actors": 5}, 5, 8),
        # No node is known to be larger than those that are there.
        ([(0, 0), (4, 0)], (64, 0), {"max_actors": 5}, 5, 4),
        ([(0, 0), (64, 0)], (128, 0), {}, 11, 8),
        # All that are there will be had; more would wait for ever.
        ([(0, 0)], (8, 0), {}, 8, 1),
        ([(0, 0)], (64, 0), {"cpus_per_actor": 16}, 4, 16),
        # An actor a GPU holds six shards of 3 GiB of 24; nobody waits for a GPU more.
        ([(0, 0)], (96, 12), {}, 2, 8),
        ([(0, 0), (16, 1), (16, 1), (16, 1)], (96, 12), {}, 3, 16),
        ([(0, 0)], (96, 12), {"max_actors": 4}, 4, 8),
        ([(0, 0)], (96, 12), {"device": "cpu"}, 11, 8),
    ],
)
def test_a_cluster_that_grows_is_divided_as_it_is_stated(
    nodes: list[tuple[float, float]],
    capacity: tuple[float, float],
    settings: dict[str, Any],
    num_actors: int,
    cpus: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes_of(monkeypatch, nodes)
    gpus_of(monkeypatch, 24)
    stated = dict(zip(("CPU", "GPU"), map(float, capacity), strict=True))
    monkeypatch.setattr(search_layout, "cluster_capacity", lambda: stated)
    layout = layout_of(11, "SQfp16", **settings)
    assert (len(layout.groups), layout.cpus) == (num_actors, cpus)


def test_the_node_that_starts_for_the_question_says_how_large_such_nodes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor of eight CPUs would wait for ever where machines with a GPU have four."""
    nodes = [{"CPU": 0.0, "GPU": 0.0}]
    monkeypatch.setattr(search_layout, "node_capacities", lambda: list(nodes))
    monkeypatch.setattr(search_layout, "cluster_capacity", lambda: {"CPU": 96.0, "GPU": 12.0})

    def start() -> GpuNode:
        nodes.append({"CPU": 4.0, "GPU": 1.0})
        return GpuNode(faiss_has_cuda=False, memory_bytes=24 * 2**30)

    monkeypatch.setattr(search_layout, "look_at_gpu", start)
    layout = layout_of(11, "Flat")
    assert (len(layout.groups), layout.cpus) == (2, 4)


def test_shards_that_the_gpus_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_of(monkeypatch, [(8, 1), (8, 1)])
    gpus_of(monkeypatch, 16)
    assert layout_of(6, "Flat").groups == ((0, 1, 2), (3, 4, 5))
    with pytest.raises(ConfigError, match="take 3 GPUs of 16 GiB, and 2 are to hold them"):
        layout_of(9, "Flat")
    gpus_of(monkeypatch, 5)
    with pytest.raises(ConfigError, match=r"a shard of 3\.0 GiB does not fit a GPU of 5\.0 GiB"):
        layout_of(2, "Flat")


def test_a_gpu_searches_what_faiss_or_pytorch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_of(monkeypatch, [(4, 1)])
    gpus_of(monkeypatch, 24)
    assert layout_of(1, "Flat").device == "cuda"
    assert layout_of(1, "IVF4,Flat").device == "cpu"
    assert layout_of(1, "Flat", device="cpu").device == "cpu"
    with pytest.raises(ConfigError, match=r"PyTorch searches Flat and SQfp16 only, not IVF4,Flat"):
        layout_of(1, "IVF4,Flat", device="cuda")
    gpus_of(monkeypatch, 24, faiss_has_cuda=True)
    assert layout_of(1, "IVF4,Flat").device == "cuda"


def test_interactive_search_finds_the_same(
    passages: Artifact, flat_run: Artifact, flat: Artifact, tmp_path: Path
) -> None:
    corpus = Corpus(make_corpus(tmp_path / "corpus", [f"text {at}" for at in range(700)], 100))
    index = IndexShards(flat)
    with pytest.raises(FingerprintError, match="corpus-0"):
        Searcher(index, corpus, lambda texts: QUERIES[: len(texts)], SearchConfig())
    with pytest.raises(FingerprintError, match=r"encoded by model model-0, .* use the index's own model, or encode"):
        Searcher.open(flat, corpus.artifact, make_model(tmp_path / "model"), SearchConfig())
    made_of_it = index.artifact.manifest.model_copy(update={"info": {**flat.info, "corpus": corpus.fingerprint}})
    searcher = Searcher(
        IndexShards(Artifact(flat.folder, made_of_it)), corpus, lambda texts: QUERIES[: len(texts)], SearchConfig()
    )
    hits = searcher.search(["first", "second"], top_k=20)
    for number, query_hits in enumerate(hits):
        expected = {row["passage_id"]: row["score"] for row in rows_of(flat_run) if row["query_id"] == f"q{number}"}
        assert {hit.passage_id: hit.score for hit in query_hits} == expected
        assert [hit.rank for hit in query_hits] == list(range(1, 21))
        assert all(hit.text == f"text {hit.passage_id[1:]}" for hit in query_hits)
    with pytest.raises(ConfigError, match="query 2 of 2 is empty"):
        searcher.search(["first", "  "])
    assert searcher.search([]) == []
