"""Vectors of another embedder as an ``embeddings`` artefact, row by row as the texts of this run lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from raydr.artefacts.context import Context
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.vector_join import (
    Join,
    block_name,
    block_rows,
    find_gaps,
    ids_name,
    pieces_by_group,
    require_no_gaps,
    sort_block,
    sort_file,
    split_ids,
    write_group,
)
from raydr.component import Neutral
from raydr.console import say
from raydr.data.inputs import place_of
from raydr.data.parts import partition_of
from raydr.distributed.parts import MakePart, make_parts, scratch_parts
from raydr.distributed.pool import SINGLE_CPU, Needs, Pool
from raydr.errors import DataError
from raydr.indexing.vector_files import vector_layout
from raydr.store.artifact import Artifact
from raydr.store.building import Building


def file_checksum(path: str) -> str:
    """Return the checksum of a file, local or an fsspec URL.

    Raises:
        DataError: the file does not exist.
    """
    folder, name = place_of(path)
    if not folder.exists(name):
        raise DataError(f"there is no file {path}")
    return folder.checksum(name)


def imported_vectors(
    context: Context, name: str, file: str, ids: str, split: str, similarity: Literal["cosine", "dot"]
) -> Node:
    """Return the node of imported vectors.

    Args:
        context: config and facts.
        name: name of the embedder.
        file: file of the vectors.
        ids: file of their ids; empty if ``file`` holds ids, or the vectors have the order of the texts.
        split: split of the queries; empty for passages.
        similarity: ``cosine`` scales vectors to length 1.
    """
    return import_vectors.node(
        context.label("import-vectors", name, split or "passages"),
        corpus=None if split else declare_corpus(context),
        dataset=declare_dataset(context) if split else None,
        file=_absolute(file),
        ids=_absolute(ids),
        checksums=[file_checksum(path) for path in (file, ids) if path],
        split=split,
        system=name,
        similarity=similarity,
    )


def _absolute(path: str) -> str:
    """Return the absolute path; URLs and the empty path stay as they are."""
    folder, name = place_of(path)
    return str(folder.absolute() / name) if path else ""


def _rows(of: Any) -> int:
    return int(of.dataset.rows(f"queries/{of.split}") if of.split else of.corpus.rows("passages"))


@artefact("embeddings", rows=_rows)
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
    """Import vectors of passages, or of the queries of a split.

    Args:
        making: artefact to make.
        pool: pool that joins vectors and texts, see :mod:`raydr.artefacts.vector_join`.
        corpus: corpus of the passages; None for queries.
        dataset: data set of the queries; None for passages.
        file: file of vectors, see :func:`raydr.indexing.vector_files.vector_layout`.
        ids: file of their ids; empty if ``file`` holds ids, or the vectors have the order of the texts.
        checksums: checksums of the files, which identify the vectors.
        split: split of the queries; empty for passages.
        system: name of the embedder.
        similarity: ``cosine`` scales vectors to length 1 before they become float16; ``dot`` keeps their length.

    Raises:
        DataError: a text has no vector or more than one, the numbers of ids, vectors and texts do not fit, or a
            vector is zero, not finite or beyond float16.
    """
    texts, under = dataset or corpus, f"queries/{split}" if split else "passages"
    assert texts is not None
    num, needs = texts.rows(under), _needs(file)
    layout = pool.run(vector_layout, file, needs=needs)
    num_vectors, dim = layout.shape
    if not (ids or layout.has_ids) and num_vectors != num:
        raise DataError(
            f"{file} has {num_vectors:,} vectors without ids, and there are {num:,} texts ({under}; copies are "
            "merged): give their ids with --ids, an id a line"
        )
    scratch = scratch_parts(making, "join")
    join = Join(file, layout, ids, texts, under, similarity, scratch.folder, block_rows(dim))
    blocks = {block_name(start): start for start in join.block_starts}
    if ids:
        _make_together(scratch, pool, split_ids, {tuple(map(ids_name, join.block_starts)): (join,)}, "read ids")
    if layout.starts_at is None:
        _make_together(scratch, pool, sort_file, {tuple(blocks): (join,)}, "read vectors", needs)
    else:
        make_parts(scratch, pool, sort_block, {name: (join, start) for name, start in blocks.items()}, "read vectors")
    groups = join.groups()
    pieces = pieces_by_group(join, {name: scratch.done[name] for name in blocks})
    work = [(join, *of_group) for of_group in zip(groups, pieces, strict=True)]
    require_no_gaps(join, pool.map(find_gaps, work, "compare"))
    _make_together(making, pool, write_group, {tuple(of[1].outputs): of for of in work}, "write vectors")
    if left := num_vectors - num:
        say(f"{left:,} vectors of {file} are of no text here, and were left out")
    partitions = list(map(partition_of, texts.parts(under)))
    return {
        "dim": dim,
        "num_rows": num,
        "side": "query" if split else "passage",
        # Search requires the same model of queries and passages.
        "model": f"imported:{system}:{similarity}",
        "dtype": str(layout.dtype),
        "source": texts.fingerprint,
        **({"split": split} if split else {}),
        **({"partitions": partitions} if any(partitions) else {}),
    }


def _needs(file: str) -> Needs:
    """Return the memory of a task that reads the file; some formats cannot be read in pieces."""
    folder, name = place_of(file)
    is_read_whole = name.lower().endswith((".npz", ".faiss", ".index"))
    return Needs(memory=2 * folder.size(name)) if is_read_whole else SINGLE_CPU


def _make_together(
    making: Building,
    pool: Pool,
    make: MakePart,
    calls: Mapping[tuple[str, ...], tuple[Any, ...]],
    description: str,
    needs: Needs = SINGLE_CPU,
) -> None:
    """Make parts by calls that write several parts; skip a call if all of its parts exist."""
    todo = {next((name for name in names if name not in making.done), names[0]): of for names, of in calls.items()}
    make_parts(making, pool, make, todo, description, needs)
