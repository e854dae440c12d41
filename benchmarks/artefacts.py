"""Artefacts for benchmarks, made directly and without the stages before the timed stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from raydr.data.embeddings import Encodings, VectorSets, to_embedding_table
from raydr.data.tables import to_table, write_arrow
from raydr.distributed.pool import Pool
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder, write_part
from raydr.store.identity import Identity


def make_artifact(path: Path, identity: Identity, tables: Mapping[str, pa.Table], info: dict[str, Any]) -> Artifact:
    """Write tables as the parts of an artefact."""
    with begin(str(path), identity) as building:
        assert isinstance(building, Building)
        for name, table in tables.items():

            def write(out: str, table: pa.Table = table) -> None:
                write_arrow(table, out)

            building.record(name, write_part(building.folder, name, table.num_rows, write))
        return building.finish(info)


def make(
    path: Path | Folder, kind: str, stage: Callable[..., dict[str, Any]], *inputs: Any, **settings: Any
) -> Artifact:
    """Make an artefact by a stage on Ray; overwrite an existing artefact."""
    # Some machines with a GPU have no Ray.
    from raydr.distributed.ray_pool import RayPool

    return make_in(RayPool(), path, kind, stage, *inputs, **settings)


def make_in(
    pool: Pool, path: Path | Folder, kind: str, stage: Callable[..., dict[str, Any]], *inputs: Any, **settings: Any
) -> Artifact:
    """Make an artefact by a stage in a pool; overwrite an existing artefact."""
    with begin(str(path), Identity(kind=kind), overwrite=True) as making:
        assert isinstance(making, Building)
        return making.finish(stage(making, pool, *inputs, **settings))


def make_embeddings(path: Path, vectors: Encodings, side: str, part_rows: int = 10_000) -> Artifact:
    """Make an ``embeddings`` artefact of vectors, without a model or texts."""
    identity = Identity(kind="embeddings", config={"side": side, "rows": len(vectors)})
    tables = {}
    for part, start in enumerate(range(0, len(vectors), part_rows)):
        end = min(start + part_rows, len(vectors))
        rows = vectors.slice(start, end) if isinstance(vectors, VectorSets) else vectors[start:end]
        tables[f"part-{part:05d}.arrow"] = to_embedding_table([f"{side}-{start + at}" for at in range(len(rows))], rows)
    dim = vectors.dim if isinstance(vectors, VectorSets) else vectors.shape[1]
    origin = {"side": side, "model": "none", "source": "none", "split": "none"}
    return make_artifact(path, identity, tables, {**origin, "dim": dim, "num_rows": len(vectors)})


def make_corpus(path: Path, texts: list[str], part_rows: int) -> Artifact:
    """Make a ``corpus`` artefact of texts, without its lookup."""
    tables = {}
    for part, start in enumerate(range(0, len(texts), part_rows)):
        chosen = texts[start : start + part_rows]
        rows = [{"passage_id": str(start + at), "text": text} for at, text in enumerate(chosen)]
        tables[f"passages/part-{part:05d}.arrow"] = to_table("passages", rows)
    return make_artifact(path, Identity(kind="corpus", config={"rows": len(texts)}), tables, {})
