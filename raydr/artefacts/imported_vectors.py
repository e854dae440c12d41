"""Vectors of another embedder as an ``embeddings`` artefact, row by row as the texts of this run lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.artefacts.context import Context
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.component import Neutral
from raydr.console import say
from raydr.data.embeddings import to_embedding_table
from raydr.data.tables import read_arrow
from raydr.distributed.parts import write_table
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.indexing.vector_files import read_ids, read_vectors
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder


def file_checksum(path: str) -> str:
    """The checksum of a file, local or an fsspec URL.

    Raises:
        DataError: there is none.
    """
    folder, name = _place(path)
    if not folder.exists(name):
        raise DataError(f"there is no file {path}")
    return folder.checksum(name)


def imported_vectors(
    context: Context, name: str, file: str, ids: str, split: str, similarity: Literal["cosine", "dot"]
) -> Node:
    """Vectors that another program has made.

    Args:
        context: the config.
        name: what the program is called.
        file: of the vectors.
        ids: file of their ids; empty if the first has them, or they are in the order of the texts.
        split: whose queries they are of; of the passages if empty.
        similarity: ``cosine`` scales them to length 1.
    """
    return import_vectors.node(
        context.label("import-vectors", name, split or "passages"),
        corpus=None if split else declare_corpus(context),
        dataset=declare_dataset(context) if split else None,
        file=file,
        ids=ids,
        checksums=[file_checksum(path) for path in (file, ids) if path],
        split=split,
        system=name,
        similarity=similarity,
    )


@artefact("embeddings")
def import_vectors(
    making: Building,
    pool: Pool,
    corpus: Artifact | None = None,
    dataset: Artifact | None = None,
    *,
    file: Annotated[str, Neutral],
    ids: Annotated[str, Neutral] = "",
    checksums: Sequence[str],
    split: str = "",
    system: str,
    similarity: Literal["cosine", "dot"],
) -> dict[str, Any]:
    """Take over vectors of passages, or of the queries of a split; in this process.

    Args:
        making: the artefact.
        pool: not used: only this process may be able to read the file.
        corpus: whose passages the vectors are of.
        dataset: whose queries they are of, in place of a corpus.
        file: of vectors, see :func:`raydr.indexing.vector_files.read_vectors`.
        ids: a file of their ids; empty if the first has them. Without any they are taken in the order of the texts.
        checksums: of the files: what the vectors are known by.
        split: of the queries; empty for passages.
        system: what the embedder is called.
        similarity: ``cosine`` scales vectors to length 1, as float16 keeps them; ``dot`` leaves them as they are.

    Raises:
        DataError: a text has no vector, ids are there twice, their number is another one, or a vector is zero, not
            finite or beyond float16.
    """
    texts, under = dataset or corpus, f"queries/{split}" if split else "passages"
    assert texts is not None
    imported = read_vectors(_local(file))
    known = read_ids(_local(ids)) if ids else imported.ids
    vectors, num = imported.vectors, texts.rows(under)
    if known is None and len(vectors) != num:
        raise DataError(
            f"{file} has {len(vectors):,} vectors without ids, and there are {num:,} texts ({under}; copies are "
            "merged): give their ids with --ids, one a line"
        )
    if known is not None and (len(known) != len(vectors) or pc.count_distinct(known).as_py() != len(known)):
        raise DataError(f"{ids or file} has {len(known):,} ids for {len(vectors):,} vectors, which must be distinct")
    column = "query_id" if split else "passage_id"
    columns = [read_arrow(texts.local(name))[column].combine_chunks() for name in texts.parts(under)]
    # One join for all parts: a look-up builds its table of all known ids anew each time.
    rows = np.arange(num) if known is None else _rows_of(pa.chunked_array(columns, pa.string()), known, file)
    start = 0
    for number, wanted in enumerate(columns):
        taken = rows[start : start + len(wanted)]
        start += len(wanted)
        part = _checked(np.asarray(vectors[taken], dtype=np.float32), wanted, similarity, file)
        output = f"part-{number:05d}.arrow"
        making.done[output] = write_table(making.folder, output, to_embedding_table(wanted, part))
    if known is not None and len(known) > num:
        say(f"{len(known) - num:,} vectors of {file} are of no text here, and were left out")
    return {
        "dim": int(vectors.shape[1]),
        "num_rows": num,
        "side": "query" if split else "passage",
        # Queries and passages of one embedder are searched with each other.
        "model": f"imported:{system}:{similarity}",
        "dtype": str(vectors.dtype),
        "source": texts.fingerprint,
        **({"split": split} if split else {}),
    }


def _rows_of(wanted: pa.ChunkedArray, known: pa.Array, file: str) -> NDArray[np.int64]:
    rows = pc.index_in(wanted, value_set=known)
    if rows.null_count:
        first = wanted.filter(pc.is_null(rows))[0].as_py()
        raise DataError(
            f"{file} has no vector for {rows.null_count:,} of {len(wanted):,} texts, the first is {first!r}"
        )
    return np.asarray(rows.to_numpy(), dtype=np.int64)


def _checked(
    vectors: NDArray[np.float32], ids: pa.Array, similarity: Literal["cosine", "dot"], file: str
) -> NDArray[np.float16]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if similarity == "cosine":
        vectors = np.divide(vectors, lengths, out=np.full_like(vectors, np.nan), where=lengths > 0)
    wrong = ~(np.abs(vectors) <= np.finfo(np.float16).max).all(axis=1)
    if wrong.any():
        first = ids[int(np.flatnonzero(wrong)[0])].as_py()
        raise DataError(
            f"{file}: {wrong.sum():,} vectors are zero, not finite or beyond float16, the first is of {first!r}"
        )
    return vectors.astype(np.float16)


def _place(path: str) -> tuple[Folder, str]:
    parent, _, name = path.rpartition("/")
    return Folder(parent or ("/" if path.startswith("/") else ".")), name


def _local(path: str) -> str:
    folder, name = _place(path)
    return folder.localize(name)
