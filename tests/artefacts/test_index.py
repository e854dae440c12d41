from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from raydr.artefacts import index as stage
from raydr.artefacts.index import build_index
from raydr.data.tables import read_arrow
from raydr.distributed.pool import SINGLE_CPU, Needs, Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.indexing.config import IndexConfig
from raydr.indexing.faiss_backend import load_faiss
from raydr.indexing.shards import IndexShards
from raydr.models.scores.dual import Dual
from raydr.store.artifact import Artifact
from raydr.store.identity import MANIFEST
from tests.made import integer_vectors, make_embeddings
from tests.made_stage import make


def index_of(embeddings: Artifact, output: Path, pool: Pool | None = None, **settings: Any) -> Artifact:
    return make(output, "index", build_index, embeddings, pool=pool, score=Dual(), settings=IndexConfig(**settings))


@pytest.fixture
def embeddings(tmp_path: Path) -> Artifact:
    return make_embeddings(tmp_path / "embeddings", integer_vectors(500, 8, seed=0), part_rows=60)


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "IVF4,SQfp16", "HNSW8"])
def test_an_index_opens_in_plain_faiss_with_its_ids_beside_it(
    factory: str, pool: Pool, embeddings: Artifact, tmp_path: Path
) -> None:
    artifact = index_of(embeddings, tmp_path / "index", pool, factory=factory, shard_rows=200)
    assert artifact.info["num_shards"] == 3
    vectors, row = integer_vectors(500, 8, seed=0), 0
    for shard in range(3):
        plain = load_faiss().read_index(str(tmp_path / "index" / f"shard-{shard:03d}.faiss"))
        ids = read_arrow(str(tmp_path / "index" / f"shard-{shard:03d}.ids.arrow"))
        assert plain.metric_type == load_faiss().METRIC_INNER_PRODUCT
        assert plain.ntotal == ids.num_rows
        assert ids["row"].to_pylist() == list(range(plain.ntotal))
        assert ids["passage_id"].to_pylist() == [f"p{at}" for at in range(row, row + plain.ntotal)]
        query = vectors[row : row + 1].astype(np.float32)
        scores, neighbours = plain.search(query, 1)
        expected = vectors[row + neighbours[0, 0]].astype(np.float32) @ query[0]
        assert scores[0, 0] == pytest.approx(expected, rel=1e-3)
        row += plain.ntotal
    assert row == 500


@pytest.mark.invariant
@pytest.mark.usefixtures("ray_local")
def test_both_pools_write_the_same_bytes(embeddings: Artifact, tmp_path: Path) -> None:
    settings = {"factory": "IVF4,SQfp16", "shard_rows": 200}
    here, there = (
        index_of(embeddings, tmp_path / type(pool).__name__, pool, **settings) for pool in (ThisProcess(), RayPool())
    )
    assert here.manifest == there.manifest.model_copy(update={"created": here.manifest.created})


def test_ids_of_any_rows_in_the_order_asked(embeddings: Artifact, tmp_path: Path) -> None:
    artifact = index_of(embeddings, tmp_path / "index", shard_rows=200)
    rows = np.array([499, 0, 180, 179, 180, 360])
    assert IndexShards(artifact).passage_ids(rows).to_pylist() == [f"p{row}" for row in rows]
    assert len(IndexShards(artifact).passage_ids(np.empty(0, dtype=np.int64))) == 0


def test_auto_is_resolved_and_stored(embeddings: Artifact, tmp_path: Path) -> None:
    auto, named = (index_of(embeddings, tmp_path / factory, factory=factory) for factory in ("auto", "Flat"))
    assert auto.info["factory"] == "Flat"
    assert "an exact search of float32 is fast" in auto.info["reason"]
    assert auto.manifest.parts == named.manifest.parts


@pytest.mark.invariant
def test_resumed_equals_uninterrupted(embeddings: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second of three shards, and the ids of the first are lost: nothing is taken for complete."""
    settings = {"factory": "IVF4,Flat", "shard_rows": 200}
    output = tmp_path / "index"
    fill, calls = stage.fill, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return fill(*arguments)

    monkeypatch.setattr(stage, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index_of(embeddings, output, **settings)
    assert not (output / MANIFEST).exists()
    trained = (output / "trained.faiss").stat().st_mtime_ns
    (output / "shard-000.ids.arrow").write_bytes(b"cut off")
    resumed = index_of(embeddings, output, **settings)
    assert len(calls) == 2 + 3
    assert (output / "trained.faiss").stat().st_mtime_ns == trained
    uninterrupted = index_of(embeddings, tmp_path / "other", **settings)
    assert resumed.manifest.parts == uninterrupted.manifest.parts
    assert set(resumed.manifest.parts) >= {"trained.faiss", "shard-002.faiss", "shard-002.ids.arrow"}


def test_what_cannot_be_built_is_said(pool: Pool, embeddings: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"IVF4096,Flat.*500 vectors"):
        index_of(embeddings, tmp_path / "large", pool, factory="IVF4096,Flat")
    with pytest.raises(ConfigError, match="is no index that FAISS"):
        index_of(embeddings, tmp_path / "unknown", pool, factory="Nonsense")
    none = make_embeddings(tmp_path / "none", integer_vectors(0, 8, seed=1), 5)
    with pytest.raises(DataError, match="there is nothing to index"):
        index_of(none, tmp_path / "empty", pool)


@pytest.mark.usefixtures("ray_local")
def test_a_task_that_fits_no_cluster_is_refused(embeddings: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cpus_per_task is 64, the cluster has 2 CPUs"):
        index_of(embeddings, tmp_path / "index", RayPool(), cpus_per_task=64)


@pytest.mark.parametrize(
    ("nodes", "capacity", "settings", "cpus"),
    [
        ([8, 4], 12, {}, 8),
        # Nothing is gained by more.
        ([64], 64, {}, stage.MOST_TRAIN_CPUS),
        ([64], 64, {"train_cpus": 3}, 3),
        # A head without CPUs, beside which nodes will come; how large they are nobody knows.
        ([0], 64, {}, 4),
        ([0], 2, {}, 2),
    ],
)
def test_cells_are_trained_with_the_cpus_of_a_node(
    nodes: list[float], capacity: float, settings: dict[str, Any], cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "node_capacities", lambda: [{"CPU": cpus} for cpus in nodes])
    monkeypatch.setattr(stage, "cluster_capacity", lambda: {"CPU": capacity})
    assert stage._train_cpus(IndexConfig(**settings), cast(Pool, SimpleNamespace(here=False))) == cpus


@pytest.mark.parametrize("factory", ["SQfp16", "IVF2,Flat", "HNSW8", "NSG8"])
def test_a_shard_asks_for_the_memory_that_building_it_takes(factory: str, tmp_path: Path) -> None:
    """FAISS holds an array and its larger copy while it grows."""
    asked: list[int] = []

    class Listening(ThisProcess):
        def map(self, *arguments: Any, needs: Needs = SINGLE_CPU, **more: Any) -> list[Any]:
            asked.append(needs.memory)
            return super().map(*arguments, needs=needs, **more)

    embeddings = make_embeddings(tmp_path / "embeddings", integer_vectors(500, 8, seed=0), part_rows=500)
    artifact = index_of(embeddings, tmp_path / "index", Listening(), factory=factory)
    num_bytes = artifact.manifest.parts["shard-000.faiss"].bytes
    assert asked[-1] - 2**29 > 1.5 * num_bytes - 10_000


def test_a_damaged_index_is_named(embeddings: Artifact, tmp_path: Path) -> None:
    artifact = index_of(embeddings, tmp_path / "index")
    (tmp_path / "index" / "shard-000.faiss").write_bytes(b"x" * artifact.manifest.parts["shard-000.faiss"].bytes)
    with pytest.raises(ArtifactError, match=r"shard-000\.faiss differs from the checksum in the manifest"):
        IndexShards(artifact).load(0)
