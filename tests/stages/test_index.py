from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydr.config.run import RunConfig
from raydr.data.growing_embeddings import GrowingEmbeddings
from raydr.data.schema import read_arrow
from raydr.errors import ArtifactError, ConfigError, DataError, FingerprintError
from raydr.indexing.backend import load_faiss
from raydr.indexing.shards import IndexShards
from raydr.stages import index as stage
from raydr.stages.index import build_index
from raydr.store.artifact import MANIFEST, Artifact
from raydr.store.folder import Folder
from tests.made import integer_vectors, make_embeddings

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]


def make_config(**index: Any) -> RunConfig:
    return RunConfig.parse({"data": {"reader": {"name": "beir", "path": "unused"}}, "index": index})


@pytest.fixture
def embeddings(tmp_path: Path) -> Folder:
    return make_embeddings(tmp_path / "embeddings", integer_vectors(500, 8, seed=0), part_rows=60)


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "IVF4,SQfp16", "HNSW8"])
def test_an_index_opens_in_plain_faiss_with_its_ids_beside_it(factory: str, embeddings: Folder, tmp_path: Path) -> None:
    artifact = build_index(make_config(factory=factory, shard_rows=200), embeddings, Folder(str(tmp_path / "index")))
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
        scores, found = plain.search(query, 1)
        expected = vectors[row + found[0, 0]].astype(np.float32) @ query[0]
        assert scores[0, 0] == pytest.approx(expected, rel=1e-3)
        row += plain.ntotal
    assert row == 500


def test_ids_of_any_rows_in_the_order_asked(embeddings: Folder, tmp_path: Path) -> None:
    artifact = build_index(make_config(shard_rows=200), embeddings, Folder(str(tmp_path / "index")))
    rows = np.array([499, 0, 180, 179, 180, 360])
    assert IndexShards(artifact).passage_ids(rows).to_pylist() == [f"p{row}" for row in rows]
    assert len(IndexShards(artifact).passage_ids(np.empty(0, dtype=np.int64))) == 0


def test_auto_is_resolved_and_stored(embeddings: Folder, tmp_path: Path) -> None:
    artifact = build_index(make_config(), embeddings, Folder(str(tmp_path / "index")))
    assert artifact.info["factory"] == "Flat"
    assert artifact.manifest.identity.config["factory"] == "Flat"
    # The same index asked for by name is the same index.
    assert build_index(make_config(factory="Flat"), embeddings, artifact.folder).manifest == artifact.manifest


@pytest.mark.invariant
def test_resumed_equals_uninterrupted(embeddings: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stops after the first of three shards; the second run makes the other two only."""
    config = make_config(factory="IVF4,Flat", shard_rows=200)
    output = Folder(str(tmp_path / "index"))
    take, calls = stage._take, []

    def interrupted(*args: Any) -> None:
        calls.append(take(*args))
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(stage, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index(config, embeddings, output)
    assert not output.exists(MANIFEST)
    trained = Path(output.path("trained.faiss")).stat().st_mtime_ns
    monkeypatch.setattr(stage, "_take", take)
    resumed = build_index(config, embeddings, output)
    assert Path(output.path("trained.faiss")).stat().st_mtime_ns == trained
    uninterrupted = build_index(config, embeddings, Folder(str(tmp_path / "other")))
    assert resumed.manifest.parts == uninterrupted.manifest.parts
    assert set(resumed.manifest.parts) >= {"trained.faiss", "shard-002.faiss", "shard-002.ids.arrow"}


def test_another_factory_is_not_mixed_in(embeddings: Folder, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "index"))
    build_index(make_config(factory="Flat"), embeddings, output)
    with pytest.raises(FingerprintError, match=r"config\.factory: there 'Flat', asked 'SQfp16'"):
        build_index(make_config(factory="SQfp16"), embeddings, output)
    build_index(make_config(factory="SQfp16"), embeddings, output, overwrite=True)


def test_what_cannot_be_built_is_said(embeddings: Folder, tmp_path: Path) -> None:
    output = Folder(str(tmp_path / "index"))
    with pytest.raises(ConfigError, match=r"IVF4096,Flat.*500 vectors"):
        build_index(make_config(factory="IVF4096,Flat"), embeddings, output, overwrite=True)
    with pytest.raises(ConfigError, match="is no index that FAISS"):
        build_index(make_config(factory="Nonsense"), embeddings, output, overwrite=True)
    with pytest.raises(ConfigError, match=r"cpus_per_task is 64, the cluster has 2 CPUs"):
        build_index(make_config(cpus_per_task=64), embeddings, output, overwrite=True)
    queries = make_embeddings(tmp_path / "queries", integer_vectors(5, 8, seed=1), 5, side="query")
    with pytest.raises(DataError, match="built from passages"):
        build_index(make_config(), queries, output, overwrite=True)


def grow(embeddings: Folder, copy: Folder) -> tuple[GrowingEmbeddings, list[Callable[[], None]], Callable[[], None]]:
    """The same embeddings as if they were being made: what makes each part, and what ends them well."""
    whole = Artifact.open(embeddings, "embeddings")
    growing = GrowingEmbeddings()
    parts = whole.manifest.parts
    Path(copy.root).mkdir(parents=True)
    growing.begin(copy, whole.manifest.identity, {name: part.rows for name, part in parts.items()}, {})

    def make(name: str) -> None:
        shutil.copy(embeddings.path(name), copy.path(name))
        growing.add(name, parts[name])

    def end() -> None:
        shutil.copy(embeddings.path(MANIFEST), copy.path(MANIFEST))
        growing.close()

    return growing, [partial(make, name) for name in sorted(parts)], end


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat"])
def test_shards_follow_the_parts_they_are_made_of(factory, embeddings, tmp_path, monkeypatch):
    config = make_config(factory=factory, shard_rows=200)
    growing, makers, end = grow(embeddings, Folder(str(tmp_path / "growing")))
    first, take = threading.Event(), stage._take
    monkeypatch.setattr(stage, "_take", lambda *args: (take(*args), first.set()))
    output = Folder(str(tmp_path / "index"))
    with ThreadPoolExecutor(1) as pool:
        index = pool.submit(build_index, config, Folder(str(tmp_path / "growing")), output, growing=growing)
        # The last part of three shards is not there yet.
        for make in makers[:-1]:
            make()
        if factory == "Flat":
            assert first.wait(60)
            assert not output.exists("shard-002.faiss")
        makers[-1]()
        end()
        followed = index.result(60)
    assert followed.manifest.parts == build_index(config, embeddings, Folder(str(tmp_path / "other"))).manifest.parts


def test_an_index_of_embeddings_that_came_to_no_end_says_so_and_keeps_its_shards(embeddings, tmp_path):
    config = make_config(factory="Flat", shard_rows=200)
    copy, output = Folder(str(tmp_path / "growing")), Folder(str(tmp_path / "index"))
    growing, makers, _ = grow(embeddings, copy)
    for make in makers[:4]:
        make()
    growing.close()
    with pytest.raises(ArtifactError, match="is not complete"):
        build_index(config, copy, output, growing=growing)
    again, makers, end = grow(embeddings, Folder(str(tmp_path / "again")))
    for make in makers:
        make()
    end()
    assert build_index(config, Folder(str(tmp_path / "again")), output, growing=again).info["num_shards"] == 3
