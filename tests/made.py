"""Small artefacts written directly, so that a test of one stage does not need the stages before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.embeddings import Encodings, VectorSets, to_embedding_table
from raydr.data.tables import to_table, write_arrow
from raydr.models.tokens import Tokens
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import write_part
from raydr.store.identity import Identity


def _make(
    path: Path, identity: Identity, tables: dict[str, pa.Table], info: dict[str, object] | None = None
) -> Artifact:
    with begin(str(path), identity) as building:
        assert isinstance(building, Building)
        for name, table in tables.items():
            building.record(
                name, write_part(building.folder, name, table.num_rows, lambda out, t=table: write_arrow(t, out))
            )
        return building.finish(dict(info or {}))


def make_model(path: Path, seed: int = 0) -> Artifact:
    """A ``model`` artefact without files, for encoders that are stubs."""
    return _make(path, Identity(kind="model", config={"seed": seed}), {})


def make_corpus(path: Path, texts: list[str], part_rows: int) -> Artifact:
    """A ``corpus`` artefact of passages p0, p1, ... (without its lookup)."""
    tables = {}
    for part, start in enumerate(range(0, len(texts), part_rows)):
        rows = [
            {"passage_id": f"p{at}", "title": f"title {at}", "text": texts[at]}
            for at in range(start, min(start + part_rows, len(texts)))
        ]
        tables[f"passages/part-{part:05d}.arrow"] = to_table("passages", rows)
    return _make(path, Identity(kind="corpus", config={"texts": texts}), tables)


def make_dataset(path: Path, split: str, texts: list[str], part_rows: int) -> Artifact:
    """A ``dataset`` artefact with queries q0, q1, ... in one split."""
    tables = {}
    for part, start in enumerate(range(0, len(texts), part_rows)):
        rows = [{"query_id": f"q{at}", "text": texts[at]} for at in range(start, min(start + part_rows, len(texts)))]
        tables[f"queries/{split}/part-{part:05d}.arrow"] = to_table("queries", rows)
    return _make(path, Identity(kind="dataset", config={"texts": texts}), tables)


def make_embeddings(
    path: Path,
    vectors: Encodings,
    part_rows: int,
    side: str = "passage",
    model: str = "model-0",
    partitions: list[str] | None = None,
) -> Artifact:
    """An ``embeddings`` artefact of p0, p1, ... or q0, q1, ... with the given vectors, a partition a part if any."""
    tables = {}
    for part, start in enumerate(range(0, len(vectors), part_rows)):
        end = min(start + part_rows, len(vectors))
        share = vectors.slice(start, end) if isinstance(vectors, VectorSets) else vectors[start:end]
        tables[f"part-{part:05d}.arrow"] = to_embedding_table([f"{side[0]}{at}" for at in range(start, end)], share)
    flat = vectors.vectors_TD if isinstance(vectors, VectorSets) else vectors
    identity = Identity(kind="embeddings", config={"side": side, "sum": float(flat.astype(np.float64).sum())})
    of_parts = {"partitions": partitions} if partitions else {}
    source = "corpus-0" if side == "passage" else "dataset-0"
    info: dict[str, object] = {**of_parts, "side": side, "model": model, "source": source, "split": "test"}
    return _make(path, identity, tables, {**info, "dim": flat.shape[1], "num_rows": len(vectors)})


def integer_sets(num: int, dim: int, seed: int) -> VectorSets:
    """One to six such vectors a text."""
    lengths = np.random.default_rng(seed).integers(1, 7, size=num)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # A vector of zeros is none.
    vectors = integer_vectors(int(offsets[-1]), dim, seed + 1)
    vectors[:, 0] += ~vectors.any(axis=1)
    return VectorSets(vectors, offsets)


def integer_vectors(num: int, dim: int, seed: int) -> NDArray[np.float16]:
    """Vectors of small integers: their inner products are exact in float32, and many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, size=(num, dim)).astype(np.float16)


def tokens_from_lists(rows: list[list[int]]) -> Tokens:
    """Tokens of texts in one segment."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]), lengths.astype(np.int32))
