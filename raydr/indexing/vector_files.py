"""Vectors of other programs: NumPy, Parquet, Arrow, FAISS; with or without ids."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
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

#: Kinds of columns in Parquet.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_IDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)


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
    with _reading(path, _EXPECTED):
        content = read[end](path)
    if content.vectors.ndim != 2 or content.vectors.dtype.kind != "f" or not content.vectors.shape[1]:
        raise DataError(f"{path} holds {content.vectors.dtype} of shape {content.vectors.shape}; {_EXPECTED}")
    if content.ids is not None and len(content.ids) != len(content.vectors):
        raise DataError(f"{path} has {len(content.vectors):,} vectors and {len(content.ids):,} ids")
    return content


@contextmanager
def _reading(path: str, expected: str) -> Iterator[None]:
    """Turn a library's error about a file's content into one that names the file."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, pa.ArrowException, RuntimeError) as error:
        raise DataError(f"cannot read {path} ({error}); {expected}") from None


def read_ids(path: str) -> pa.Array:
    """Read ids of a local file, a line each, or of a ``.npy``.

    Raises:
        DataError: the file is missing or damaged, or its ids are no texts or integers.
    """
    expected = "expected ids, a line each, or a .npy of texts or integers"
    with _reading(path, expected):
        if path.endswith(".npy"):
            return _texts(np.load(path, allow_pickle=False))
        content = Path(path).read_bytes()
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
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
    lists = [field.name for field in schema if any(is_list(field.type) for is_list in _LISTS)]
    named = [field.name for field in schema if any(is_id(field.type) for is_id in _IDS)]
    if not lists or not named:
        what = "lists of numbers" if named else "texts or integers as ids"
        raise ValueError(
            f"no column has {what}; there are {', '.join(f'{field.name}: {field.type}' for field in schema)}"
        )
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
    if ids.ndim != 1 or ids.dtype.kind not in "UTiu":
        raise ValueError(f"its ids are {ids.dtype} of shape {ids.shape}")
    return pa.array([str(text_id) for text_id in itertools.chain(ids.tolist())], pa.string())
