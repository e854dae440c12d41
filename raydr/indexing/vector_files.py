"""Vectors of other programs: NumPy, Parquet, FAISS; with or without ids. They are read in blocks of rows."""

from __future__ import annotations

import codecs
import itertools
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raydr.data.inputs import place_of
from raydr.errors import DataError
from raydr.indexing.faiss_backend import load_faiss

_EXPECTED = (
    "expected .npy (N, D), .npz with the arrays vectors and ids, .parquet with a column of ids and one of lists of "
    "numbers, or .faiss (.index)"
)
_EXPECTED_IDS = "expected ids, a line each, or a .npy of texts or integers"
#: Preferred column names of ids and vectors.
_ID, _VECTOR = ("id", "_id", "passage_id", "query_id", "docid"), ("vector", "embedding", "embeddings", "emb")

#: Kinds of columns in Parquet.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_IDS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary, pa.types.is_integer,
)  # fmt: skip


@dataclass(frozen=True)
class VectorLayout:
    """Layout of a vector file.

    Args:
        shape: shape of the vectors, (N, D).
        dtype: type of their numbers.
        has_ids: whether the file has the ids of its rows.
        starts_at: byte at which the rows start, if single rows can be read; else None.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    has_ids: bool
    starts_at: int | None = None


@dataclass(frozen=True)
class VectorBlock:
    """Consecutive rows of a vector file.

    Args:
        vectors: shape (rows, D).
        ids: ids of the rows; None if the file has none.
    """

    vectors: NDArray[Any]
    ids: pa.Array | None


def vector_layout(path: str) -> VectorLayout:
    """Return the layout of a file, by its suffix. Reads the beginning, or all of a FAISS index.

    Raises:
        DataError: the file is missing or damaged, its format unknown, or its content no matrix of numbers.
    """
    look = {".npy": _npy_layout, ".npz": _npz_layout, ".parquet": _parquet_layout}
    look |= dict.fromkeys((".faiss", ".index"), _faiss_layout)
    end = Path(path).suffix.lower()
    if end not in look:
        raise DataError(f"{path}: {_EXPECTED}")
    with _reading(path, _EXPECTED):
        layout = look[end](path)
    if len(layout.shape) != 2 or layout.dtype.kind != "f" or not layout.shape[1]:
        raise DataError(f"{path} holds {layout.dtype} of shape {layout.shape}; {_EXPECTED}")
    return layout


def vector_rows(path: str, layout: VectorLayout, start: int, stop: int) -> VectorBlock:
    """Read some rows of a file whose layout has ``starts_at``.

    Raises:
        DataError: the file is missing or too short.
    """
    assert layout.starts_at is not None
    dtype, dim = layout.dtype, layout.shape[1]
    first, end = (layout.starts_at + row * dim * dtype.itemsize for row in (start, stop))
    folder, name = place_of(path)
    with _reading(path, _EXPECTED):
        vectors = np.frombuffer(folder.read_bytes(name, first, end), dtype).reshape(stop - start, dim)
    return VectorBlock(vectors, None)


def vector_blocks(path: str, rows: int) -> Iterator[VectorBlock]:
    """Read a file from its start, in blocks of ``rows`` rows; the last may have fewer.

    Parquet is read piece by piece, ``.npy`` is mapped, other files are read into memory.

    Raises:
        DataError: the file is damaged, or ids and vectors differ in number.
    """
    read = {".npy": _array_blocks, ".npz": _array_blocks, ".parquet": _parquet_blocks}
    with _reading(path, _EXPECTED):
        yield from read.get(Path(path).suffix.lower(), _faiss_blocks)(_local(path), rows)


def id_blocks(path: str, rows: int) -> Iterator[pa.Array]:
    """Read ids from a text file, a line each, or from a ``.npy``, in blocks of ``rows`` ids.

    Raises:
        DataError: the file is missing or damaged, or its ids are no texts or integers.
    """
    with _reading(path, _EXPECTED_IDS):
        if path.endswith(".npy"):
            ids = np.atleast_1d(np.load(_local(path), mmap_mode="r", allow_pickle=False))
            for start in range(0, len(ids), rows):
                yield _texts(ids[start : start + rows])
            return
        with open(_local(path), "rb") as file:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            while lines := [line.removesuffix(b"\n").removesuffix(b"\r") for line in itertools.islice(file, rows)]:
                yield _decoded(lines, path)


def _local(path: str) -> str:
    folder, name = place_of(path)
    return folder.localize(name)


def _open(path: str) -> IO[bytes]:
    folder, name = place_of(path)
    return folder.open(name)


@contextmanager
def _reading(path: str, expected: str) -> Iterator[None]:
    """Convert a library's error about a file's content to an error with the file's path."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path} on this node: all nodes must be able to read it") from None
    except (OSError, EOFError, ValueError, KeyError, pa.ArrowException, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read {path} ({error}); {expected}") from None


def _decoded(lines: list[bytes], path: str) -> pa.Array:
    try:
        return pa.array([line.decode("utf-8") for line in lines], pa.string())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the id {error.object!r:.80} is not valid UTF-8") from None


def _npy_layout(path: str) -> VectorLayout:
    with _open(path) as file:
        shape, by_columns, dtype = _header(file)
        return VectorLayout(shape, dtype, False, None if by_columns else file.tell())


def _npz_layout(path: str) -> VectorLayout:
    with _open(path) as whole, zipfile.ZipFile(whole) as archive, archive.open("vectors.npy") as file:
        shape, _, dtype = _header(file)
        return VectorLayout(shape, dtype, "ids.npy" in archive.namelist())


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read an array's shape, whether it lies column by column, and its type."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    return shape, by_columns, dtype


def _array_blocks(path: str, rows: int) -> Iterator[VectorBlock]:
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        vectors, ids = loaded, None
    else:
        with loaded as arrays:
            vectors, ids = arrays["vectors"], _texts(arrays["ids"]) if "ids" in arrays else None
    yield from _cut(vectors, ids, rows)


def _cut(vectors: NDArray[Any], ids: pa.Array | None, rows: int) -> Iterator[VectorBlock]:
    if ids is not None and len(ids) != len(vectors):
        raise ValueError(f"{len(vectors):,} vectors and {len(ids):,} ids")
    for start in range(0, len(vectors), rows):
        yield VectorBlock(vectors[start : start + rows], None if ids is None else ids.slice(start, rows))


def _parquet_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of ids and vectors."""
    lists = [field.name for field in schema if any(is_list(field.type) for is_list in _LISTS)]
    named = [field.name for field in schema if any(is_id(field.type) for is_id in _IDS)]
    if not lists or not named:
        what = "lists of numbers" if named else "texts or integers as ids"
        raise ValueError(
            f"no column has {what}; there are {', '.join(f'{field.name}: {field.type}' for field in schema)}"
        )
    return [
        next((name for name in known if name in columns_of_kind), *columns_of_kind[:1])
        for known, columns_of_kind in ((_ID, named), (_VECTOR, lists))
    ]


def _parquet_layout(path: str) -> VectorLayout:
    with _open(path) as whole, pq.ParquetFile(whole) as file:
        columns = _parquet_columns(file.schema_arrow)
        for first in file.iter_batches(batch_size=1, columns=columns):
            vectors = _block_of(pa.Table.from_batches([first]), columns).vectors
            return VectorLayout((file.metadata.num_rows, vectors.shape[1]), vectors.dtype, True)
    raise ValueError("it has no rows")


def _parquet_blocks(path: str, rows: int) -> Iterator[VectorBlock]:
    with pq.ParquetFile(path) as file:
        columns = _parquet_columns(file.schema_arrow)
        read = pa.table([pa.array([], file.schema_arrow.field(name).type) for name in columns], columns)
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            read = pa.concat_tables([read, pa.Table.from_batches([batch]).select(columns)])
            while len(read) >= rows:
                yield _block_of(read.slice(0, rows), columns)
                read = read.slice(rows)
        if len(read):
            yield _block_of(read, columns)


def _block_of(table: pa.Table, columns: list[str]) -> VectorBlock:
    ids, lists = (table[name].combine_chunks() for name in columns)
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    if set(pc.unique(pc.list_value_length(lists)).to_pylist()) != {len(flat) // len(lists)}:
        raise ValueError(f"lists of {columns[1]!r} differ in length")
    return VectorBlock(flat.reshape(len(lists), -1), pc.cast(ids, pa.string()))


def _faiss_layout(path: str) -> VectorLayout:
    index, ids = _open_index(_local(path))
    return VectorLayout((index.ntotal, index.d), np.dtype(np.float32), ids is not None)


def _faiss_blocks(path: str, rows: int) -> Iterator[VectorBlock]:
    index, ids = _open_index(path)
    # An index with ids owns the index that holds the vectors.
    vectors = index if ids is None else load_faiss().downcast_index(index.index)
    for start in range(0, index.ntotal, rows):
        num = min(rows, index.ntotal - start)
        yield VectorBlock(vectors.reconstruct_n(start, num), None if ids is None else _texts(ids[start : start + num]))


def _open_index(path: str) -> tuple[Any, NDArray[np.int64] | None]:
    """Return an index, and the ids of its vectors if it has some."""
    faiss = load_faiss()
    index = faiss.read_index(path)
    has_ids = isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2)
    return index, faiss.vector_to_array(index.id_map) if has_ids else None


def _texts(ids: NDArray[Any]) -> pa.Array:
    if ids.ndim != 1 or ids.dtype.kind not in "UTiu":
        raise ValueError(f"its ids are {ids.dtype} of shape {ids.shape}")
    return pa.array(list(map(str, ids.tolist())), pa.string())
