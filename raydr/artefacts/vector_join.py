"""The join of a vector file with texts: the file is sorted by the rows of the texts, in blocks and then in groups.

A task reads a block of the file, looks its ids up and keeps its vectors sorted by row. Another collects the rows of a
group of parts from all blocks and writes these parts. So no process holds more than a block or a group, and the file is
read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus
from raydr.data.embeddings import to_embedding_table
from raydr.data.parts import offsets_of
from raydr.data.tables import read_arrow, write_arrow
from raydr.distributed.parts import write_table
from raydr.errors import DataError
from raydr.indexing.vector_files import VectorBlock, VectorLayout, id_blocks, vector_blocks, vector_rows
from raydr.store.artifact import Artifact
from raydr.store.building import forget_part, write_and_record
from raydr.store.folder import Folder, side_by_side
from raydr.store.identity import Part

#: Bytes in float32 of a block or a group, at most, and their rows; a task takes some three times as much.
_MOST_BYTES, _MOST_ROWS = 1 << 28, 200_000
#: A row of a text, and a number of a vector, in a sorted block.
_ROW, _NUMBER = np.dtype("<i8"), np.dtype("<f2")
#: The share of a vector's length that may be lost where its numbers are stored; rounding loses less than 0.0005.
_LOST = 0.01
#: Vectors that are held in float64 at a time.
_SLICE = 4_096
#: Remedy for vectors that are too large or too small.
_SCALE = ". Multiply all vectors by one factor: the order of results stays"


@dataclass(frozen=True)
class Group:
    """Consecutive parts of the texts, collected by one task.

    Args:
        number: number of the group.
        first_part: number of its first part.
        starts: row of the texts at which each part starts, and the row after the last.
    """

    number: int
    first_part: int
    starts: tuple[int, ...]

    @property
    def outputs(self) -> list[str]:
        """Names of the parts with the vectors."""
        return [f"part-{self.first_part + at:05d}.arrow" for at in range(len(self.starts) - 1)]


@dataclass(frozen=True)
class Piece:
    """The rows of a group in a sorted block: ``[first, stop)`` of ``rows``."""

    block: str
    rows: int
    first: int
    stop: int


@dataclass(frozen=True)
class Gaps:
    """Texts of a group that do not have exactly one vector: how many, and the row of the first; −1 without any."""

    num_missing: int
    missing: int
    num_repeated: int
    repeated: int


@dataclass(frozen=True)
class Join:
    """What every task knows; picklable.

    Args:
        file: file of the vectors.
        layout: layout of the file.
        ids: file of their ids; empty if the first has them, or they are in the order of the texts.
        texts: the corpus or data set.
        under: the folder of its parts.
        similarity: ``cosine`` scales vectors to length 1.
        scratch: folder of the blocks.
        block_rows: rows of a block, and of a group at least.
    """

    file: str
    layout: VectorLayout
    ids: str
    texts: Artifact
    under: str
    similarity: Literal["cosine", "dot"]
    scratch: Folder
    block_rows: int

    @property
    def block_starts(self) -> range:
        return range(0, self.layout.shape[0], self.block_rows)

    def groups(self) -> list[Group]:
        """Return groups of all parts, with at least as many rows as a block has; the last may have fewer."""
        groups: list[Group] = []
        first = 0
        starts = offsets_of(self.texts.manifest.parts[name].rows for name in self.texts.parts(self.under)).tolist()
        for end in range(1, len(starts)):
            if starts[end] - starts[first] >= self.block_rows or end == len(starts) - 1:
                groups.append(Group(len(groups), first, tuple(starts[first : end + 1])))
                first = end
        return groups

    def rows_of(self, ids: pa.Array) -> NDArray[np.int64]:
        """Return the row of the text of each id, −1 without a text."""
        if self.texts.kind == Corpus.kind:
            return Corpus(self.texts).find(ids.to_pylist())
        return np.asarray(pc.fill_null(pc.index_in(ids, value_set=self._query_ids), -1).to_numpy(), dtype=np.int64)

    def ids_of(self, start: int, stop: int) -> list[str]:
        """Return the ids of consecutive texts."""
        if self.texts.kind == Corpus.kind:
            return Corpus(self.texts).ids(np.arange(start, stop))
        return [str(query_id) for query_id in self._query_ids.slice(start, stop - start).to_pylist()]

    @cached_property
    def _query_ids(self) -> pa.Array:
        columns = [read_arrow(self.texts.local(name))["query_id"] for name in self.texts.parts(self.under)]
        return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string()).combine_chunks()


def block_rows(dim: int) -> int:
    """Return the rows of a block of vectors of a dimension.

    >>> block_rows(64), block_rows(768)
    (200000, 87381)
    """
    return max(1, min(_MOST_ROWS, _MOST_BYTES // (4 * dim)))


def block_name(start: int) -> str:
    return f"block-{start:012d}.bin"


def ids_name(start: int) -> str:
    return f"ids-{start:012d}.arrow"


def split_ids(folder: Folder, name: str, join: Join) -> dict[str, Part]:
    """Cut the file of ids into blocks.

    Raises:
        DataError: there are more or fewer ids than vectors.
    """
    num, written = 0, {}
    for ids in id_blocks(join.ids, join.block_rows):
        table = pa.table({"id": ids})
        output = ids_name(num)
        written[output] = write_and_record(folder, output, len(ids), partial(write_arrow, table))
        num += len(ids)
    if num != join.layout.shape[0]:
        # Blocks that stay would pass for checked ones in a second attempt.
        for output in written:
            forget_part(folder, output)
        raise DataError(f"{join.ids} has {num:,} ids for {join.layout.shape[0]:,} vectors of {join.file}")
    return written


def sort_block(folder: Folder, name: str, join: Join, start: int) -> dict[str, Part]:
    """Keep a block's vectors, sorted by the rows of their texts."""
    block = vector_rows(join.file, join.layout, start, min(start + join.block_rows, join.layout.shape[0]))
    return {name: _write_sorted(folder, join, start, block)}


def sort_file(folder: Folder, name: str, join: Join) -> dict[str, Part]:
    """Keep all blocks of a file that has to be read from its start, as :func:`sort_block` does."""
    blocks = zip(join.block_starts, vector_blocks(join.file, join.block_rows), strict=True)
    return {block_name(start): _write_sorted(folder, join, start, block) for start, block in blocks}


def _write_sorted(folder: Folder, join: Join, start: int, block: VectorBlock) -> Part:
    ids = read_arrow(folder.localize(ids_name(start)))["id"].combine_chunks() if join.ids else block.ids
    rows = np.arange(start, start + len(block.vectors)) if ids is None else join.rows_of(ids)
    order = np.argsort(rows, kind="stable")
    order = order[rows[order] >= 0]
    rows = rows[order].astype(_ROW, copy=False)
    vectors = _stored(block.vectors[order], rows, join)
    bounds = np.append(np.searchsorted(rows, [group.starts[0] for group in join.groups()]), len(rows))

    def write(path: str) -> None:
        with open(path, "wb") as file:
            rows.tofile(file)
            vectors.tofile(file)

    counts = {str(group): int(count) for group, count in enumerate(np.diff(bounds)) if count}
    return write_and_record(folder, block_name(start), len(rows), write, counts)


def _stored(vectors: NDArray[np.floating], rows: NDArray[np.int64], join: Join) -> NDArray[np.float16]:
    """Return vectors as they are stored: of length 1 if the similarity is cosine, in float16.

    Raises:
        DataError: one is zero, not finite, or so large or small that float16 would change it.
    """
    stored, wrong = np.empty(vectors.shape, dtype=_NUMBER), np.zeros(len(vectors), dtype=np.bool_)
    for start in range(0, len(vectors), _SLICE):
        part = slice(start, start + _SLICE)
        # The squares of its numbers may be beyond float32.
        exact = np.asarray(vectors[part], dtype=np.float64)
        with np.errstate(all="ignore"):
            if join.similarity == "cosine":
                exact = exact / np.linalg.norm(exact, axis=1, keepdims=True)
            stored[part] = exact
            lost, lengths = (np.linalg.norm(each, axis=1) for each in (exact - stored[part], exact))
            wrong[part] = ~(lost <= _LOST * lengths)
    if wrong.any():
        first = int(rows[np.flatnonzero(wrong)[0]])
        raise DataError(
            f"{join.file}: {wrong.sum():,} vectors are zero, not finite or beyond float16, the first is of "
            f"{join.ids_of(first, first + 1)[0]!r}{_SCALE if join.similarity == 'dot' else ''}"
        )
    return stored


def pieces_by_group(join: Join, blocks: Mapping[str, Part]) -> list[list[Piece]]:
    """Return the pieces of each group, from what was counted when the blocks were sorted."""
    pieces: list[list[Piece]] = [[] for _ in join.groups()]
    for name, part in blocks.items():
        first = 0
        for group, count in sorted((int(group), count) for group, count in part.counts.items()):
            pieces[group].append(Piece(name, part.rows, first, first + count))
            first += count
    return pieces


def _read(join: Join, pieces: Sequence[Piece], at: int, width: int) -> bytes:
    """Return the bytes of a group, ``width`` a row, that start ``at`` bytes for each row of a block."""
    return b"".join(
        side_by_side(
            lambda piece: join.scratch.read_bytes(
                piece.block, piece.rows * at + piece.first * width, piece.rows * at + piece.stop * width
            ),
            pieces,
        )
    )


def find_gaps(join: Join, group: Group, pieces: Sequence[Piece]) -> Gaps:
    """Count the texts of a group without a vector, and those with more than one."""
    rows = np.frombuffer(_read(join, pieces, 0, _ROW.itemsize), _ROW)
    num_vectors = np.bincount(rows - group.starts[0], minlength=group.starts[-1] - group.starts[0])
    missing, repeated = (np.flatnonzero(wrong) + group.starts[0] for wrong in (num_vectors == 0, num_vectors > 1))
    return Gaps(len(missing), int(min(missing, default=-1)), len(repeated), int(min(repeated, default=-1)))


def require_no_gaps(join: Join, gaps: Sequence[Gaps]) -> None:
    """
    Raises:
        DataError: a text has no vector, or more than one.
    """
    num_missing, num_repeated = sum(gap.num_missing for gap in gaps), sum(gap.num_repeated for gap in gaps)
    if num_repeated:
        first = next(gap.repeated for gap in gaps if gap.num_repeated)
        raise DataError(
            f"{join.ids or join.file} has the ids of {num_repeated:,} texts more than once, the first is "
            f"{join.ids_of(first, first + 1)[0]!r}: ids must be distinct"
        )
    if num_missing:
        first = next(gap.missing for gap in gaps if gap.num_missing)
        raise DataError(
            f"{join.file} has no vector for {num_missing:,} of {join.texts.rows(join.under):,} texts, the first is "
            f"{join.ids_of(first, first + 1)[0]!r}"
        )


def write_group(folder: Folder, name: str, join: Join, group: Group, pieces: Sequence[Piece]) -> dict[str, Part]:
    """Write the parts of a group, each of whose texts has a vector."""
    dim, start = join.layout.shape[1], group.starts[0]
    rows = np.frombuffer(_read(join, pieces, 0, _ROW.itemsize), _ROW)
    width = dim * _NUMBER.itemsize
    vectors = np.frombuffer(_read(join, pieces, _ROW.itemsize, width), _NUMBER).reshape(len(rows), dim)
    vectors, ids = vectors[np.argsort(rows)], join.ids_of(start, group.starts[-1])
    written = {}
    for output, first, stop in zip(group.outputs, group.starts[:-1], group.starts[1:], strict=True):
        table = to_embedding_table(ids[first - start : stop - start], vectors[first - start : stop - start])
        written[output] = write_table(folder, output, table)
    return written
