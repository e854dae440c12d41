"""Vectors of other programs: NumPy, Parquet, Arrow, FAISS; with or without ids."""

from __future__ import annotations

import codecs
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydr.errors import DataError
from raydr.indexing.faiss_backend import load_faiss

_EXPECTED = (
    "expected .npy (N, D), .npz with the arrays vectors and ids, .parquet with a column of ids and one of lists of "
    "numbers, or .faiss (.index)"
)
#: Preferred column names of ids and vectors.
_ID, _VECTOR = ("id", "_id", "passage_id", "query_id", "docid"), ("vector", "embedding", "embeddings", "emb")


@dataclass(frozen=True)
class VectorFile:
    """Content of a vector file.

    Args:
        vectors: shape (N, D), memory-mapped if the format allows it.
        ids: ids of the rows; None if the file has none.
    """

    vectors: NDArray[Any]
    ids: pa.Array | None


def read_vectors(path: str) -> VectorFile:
    """Read vectors of a local file, by its suffix.

    Raises:
        DataError: the format is unknown, the file damaged, or its content no matrix of numbers.
    """
    read = {".npy": _numpy, ".npz": _arrays, ".parquet": _parquet, ".faiss": _faiss, ".index": _faiss}
    end = Path(path).suffix.lower()
    if end not in read:
        raise DataError(f"{path}: {_EXPECTED}")
    try:
        content = read[end](path)
    except (OSError, ValueError, KeyError, pa.ArrowInvalid, RuntimeError) as error:
        raise DataError(f"cannot read {path} ({error}); {_EXPECTED}") from None
    if content.vectors.ndim != 2 or content.vectors.dtype.kind != "f":
        raise DataError(f"{path} holds {content.vectors.dtype} of shape {content.vectors.shape}; {_EXPECTED}")
    if content.ids is not None and len(content.ids) != len(content.vectors):
        raise DataError(f"{path} has {len(content.vectors):,} vectors and {len(content.ids):,} ids")
    return content


def read_ids(path: str) -> pa.Array:
    """Read ids of a local file, a line each, or of a ``.npy``."""
    if path.endswith(".npy"):
        return _texts(np.load(path, allow_pickle=False))
    lines = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        return pa.array([line.removesuffix(b"\r").decode("utf-8") for line in lines], pa.string())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the id {error.object!r:.80} is not valid UTF-8") from None


def _numpy(path: str) -> VectorFile:
    return VectorFile(np.load(path, mmap_mode="r", allow_pickle=False), None)


def _arrays(path: str) -> VectorFile:
    with np.load(path, allow_pickle=False) as arrays:
        return VectorFile(arrays["vectors"], _texts(arrays["ids"]) if "ids" in arrays else None)


def _parquet(path: str) -> VectorFile:
    schema = pq.read_schema(path)
    lists = [field.name for field in schema if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)]
    named = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_integer(field.type)]
    columns = [
        next((name for name in known if name in columns_of_kind), *columns_of_kind[:1])
        for known, columns_of_kind in ((_ID, named), (_VECTOR, lists))
    ]
    table = pq.read_table(path, columns=columns).combine_chunks()
    rows = table[columns[1]].combine_chunks()
    flat = rows.flatten().to_numpy(zero_copy_only=False)
    if len(rows) and set(pc.unique(pc.list_value_length(rows)).to_pylist()) != {len(flat) // len(rows)}:
        raise ValueError(f"lists of {columns[1]!r} differ in length")
    return VectorFile(flat.reshape(len(rows), -1), pc.cast(table[columns[0]].combine_chunks(), pa.string()))


def _faiss(path: str) -> VectorFile:
    faiss = load_faiss()
    index = faiss.read_index(path)
    ids = None
    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        ids = _texts(faiss.vector_to_array(index.id_map))
        index = faiss.downcast_index(index.index)
    return VectorFile(index.reconstruct_n(0, index.ntotal), ids)


def _texts(ids: NDArray[Any]) -> pa.Array:
    return pa.array([str(text_id) for text_id in itertools.chain(ids.tolist())], pa.string())
