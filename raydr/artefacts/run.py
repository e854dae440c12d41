"""Runs: ranked passages of queries in Parquet parts, with import and export of TREC files.

Artefact ``run``::

    part-*.parquet    runs(query_id, passage_id, rank, score)

All rows of a query are in one part, best first. Ranks follow trec_eval's rule (score descending, ties by passage id
descending as bytes), so that trec_eval ranks an exported file equally.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from gzip import BadGzipFile
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.declaration import Node, artefact
from raydr.component import Neutral
from raydr.console import warn
from raydr.data.inputs import place_of
from raydr.data.parts import ArtifactView
from raydr.data.rows import RowError, columns_of, number_of
from raydr.data.tables import RUNS, read_parquet
from raydr.distributed.parts import write_table
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.store import Artifact, Building, Folder
from raydr.store.filesystems import open_file

KIND = "run"
_EXPECTED = "expected lines 'query_id Q0 passage_id rank score tag'"
#: Approximate rows in a part of an imported run.
_IMPORT_ROWS = 500_000


def part_name(number: int) -> str:
    """
    >>> part_name(3)
    'part-00003.parquet'
    """
    return f"part-{number:05d}.parquet"


def rank_rows(query_ids: pa.Array, passage_ids: pa.Array, scores: pa.Array) -> pa.Table:
    """Rank (query, passage) rows as trec_eval does, as a table of the runs schema.

    Queries keep the order of their first row.

    Raises:
        DataError: a passage occurs twice for a query, or a score is not finite.

    >>> ranked = rank_rows(pa.array(["q", "q", "q"]), pa.array(["a", "b", "c"]), pa.array([1.0, 1.0, 2.0]))
    >>> ranked["passage_id"].to_pylist(), ranked["rank"].to_pylist()
    (['c', 'b', 'a'], [1, 2, 3])
    """
    scores = pc.cast(scores, pa.float32())
    values = scores.to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(
            f"query {query_ids[at].as_py()!r}, passage {passage_ids[at].as_py()!r}: the score is {values[at]}, "
            "expected a finite number"
        )
    _check_unique(query_ids, passage_ids)
    codes = query_ids.dictionary_encode().indices
    table = pa.table({"query": codes, "query_id": query_ids, "passage_id": passage_ids, "score": scores})
    table = table.sort_by([("query", "ascending"), ("score", "descending"), ("passage_id", "descending")])
    sorted_codes = table["query"].to_numpy().astype(np.int64)
    first = np.searchsorted(sorted_codes, sorted_codes, side="left")
    ranks = pa.array(np.arange(len(sorted_codes)) - first + 1, type=pa.int32())
    return pa.Table.from_arrays([table["query_id"], table["passage_id"], ranks, table["score"]], schema=RUNS)


class Run(ArtifactView):
    """Read access to a ``run`` artefact, part by part."""

    kind = KIND

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.part_names = [name for name in artifact.parts() if name.endswith(".parquet")]

    def part(self, name: str) -> pa.Table:
        return read_parquet(self.artifact.local(name))

    def parts(self) -> Iterator[pa.Table]:
        for name in self.part_names:
            yield self.part(name)

    def of_queries(self, query_ids: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of queries; for parts without them only ids are read."""
        wanted = pa.array(query_ids, pa.string())
        for name in self.part_names:
            ids = read_parquet(self.artifact.local(name), ["query_id"])["query_id"]
            mine = pc.is_in(ids, value_set=wanted)
            if pc.any(mine).as_py():
                yield self.part(name).filter(mine)


def without_own_ids(ranked: pa.Table, top_k: int | None = None) -> pa.Table:
    """Return a part of a run without passages that have their query's id, at most ``top_k`` a query.

    >>> ranked = rank_rows(pa.array(["a", "a", "a"]), pa.array(["a", "b", "c"]), pa.array([3.0, 2.0, 1.0]))
    >>> without_own_ids(ranked, top_k=1).to_pylist()
    [{'query_id': 'a', 'passage_id': 'b', 'rank': 1, 'score': 2.0}]
    """
    others = pc.not_equal(ranked["query_id"], ranked["passage_id"])
    query = np.cumsum(ranked["rank"].to_numpy() == 1)[others.to_numpy(zero_copy_only=False)]
    ranks = np.arange(len(query)) - np.searchsorted(query, query) + 1
    left = ranked.filter(others).set_column(2, RUNS.field("rank"), pa.array(ranks, pa.int32()))
    return left if top_k is None else left.filter(pc.less_equal(left["rank"], top_k))


def check_queries(run: Run, system: str, num_queries: int, split: str) -> None:
    """Check that a run is of the split's queries; warn if it has no passage at all.

    Args:
        run: run to check.
        system: system of the run.
        num_queries: queries of the split with a passage.
        split: expected split.

    Raises:
        DataError: the run has passages, but none for a query of the split.
    """
    if num_queries:
        return
    if run.artifact.rows():
        raise DataError(
            f"the run of {system!r} at {run.artifact.folder} has no passage for any query of split {split!r}: "
            "it was made for another split"
        )
    warn(
        f"{system}: no query of split {split!r} has a result, and each counts as 0. BM25 needs words shared by queries "
        "and passages: check their languages and scripts with raydr inspect"
    )


def by_query(part: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of each query of a part, best first."""
    codes = part["query_id"].combine_chunks().dictionary_encode()
    indices = codes.indices.to_numpy(zero_copy_only=False)
    bounds = [*np.flatnonzero(np.diff(indices, prepend=-1)), len(indices)]
    return {
        codes.dictionary[int(indices[start])].as_py(): part.slice(int(start), int(stop - start))
        for start, stop in itertools.pairwise(bounds)
    }


def export_trec(run: Run, output: Folder, name: str, tag: str = "raydr") -> int:
    """Write a run as a TREC file (``query_id Q0 passage_id rank score tag``) and return the number of lines.

    Scores are written so that they parse to the same float32.

    Raises:
        DataError: an id is empty or contains white space, which the format cannot hold.
    """
    lines = 0
    with output.publish(name) as path, open(path, "w", encoding="utf-8") as file:
        for part in run.parts():
            columns = (part[column].to_pylist() for column in ("query_id", "passage_id", "rank"))
            scores = part["score"].to_numpy().astype(np.float32)
            for query_id, passage_id, rank, score in zip(*columns, scores, strict=True):
                for id_ in (query_id, passage_id):
                    if columns_of(id_) != [id_]:
                        raise DataError(
                            f"id {id_!r} is empty or contains white space, which separates the columns of a TREC file. "
                            "Use the Parquet parts instead."
                        )
                file.write(f"{query_id} Q0 {passage_id} {rank} {score!s} {tag}\n")
                lines += 1
    return lines


def trec_checksum(path: str) -> str:
    """Return the checksum of a TREC file, which identifies an imported run.

    Raises:
        DataError: the file does not exist.
    """
    source, name = place_of(path)
    if not source.exists(name):
        raise DataError(f"run file {path} does not exist; {_EXPECTED}")
    return source.checksum(name)


def imported_run(file: str, split: str, system: str, skip_own_id: bool) -> Node:
    """Return the node of an imported run, optionally without passages that have their query's id."""
    label = f"import-{system}-{split}"
    return import_trec_run.node(
        label, path=file, checksum=trec_checksum(file), split=split, system=system, skip_own_id=skip_own_id
    )


@artefact("run")
def import_trec_run(
    making: Building,
    pool: Pool,
    *,
    path: Annotated[str, Neutral],
    checksum: str = "",
    split: str = "",
    system: str = "",
    skip_own_id: bool = False,
) -> dict[str, Any]:
    """Make a ``run`` artefact from a TREC file, for example Lucene's (plain or .gz; local or fsspec URL).

    This process, which may be the only one with access, streams the file; the lines of a query must be consecutive. As
    in trec_eval, scores determine the order and ranks are ignored; a warning tells if they disagree. With
    ``skip_own_id`` passages that have their query's id are left out.

    Raises:
        DataError: a line is malformed, a query's lines are not consecutive, a passage occurs twice for a query, or the
            file is empty; the message names file and line.
    """
    num_queries = num_against = depth = 0
    for number, (queries, against, read) in enumerate(_read_trec(path)):
        num_queries, num_against = num_queries + queries, num_against + against
        ranked = without_own_ids(read) if skip_own_id else read
        depth = max(depth, pc.max(ranked["rank"]).as_py() or 0)
        name = part_name(number)
        if name not in making.done:
            making.done[name] = write_table(making.folder, name, ranked)
    if not num_queries:
        raise DataError(f"{path} is empty; {_EXPECTED}")
    if 2 * num_against > num_queries:
        warn(
            f"{path}: in {num_against:,} of {num_queries:,} queries the last rank has no lower score than the first. "
            "The highest score comes first here, as in trec_eval: change the sign of distances"
        )
    return {"system": path.rpartition("/")[2], "num_queries": num_queries, "top_k": depth}


#: query_id, passage_id, score, rank (0 if it is no number).
_Row = tuple[str, str, float, float]


def _read_trec(path: str) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield numbers of queries and of :func:`_against_ranks`, and ranked rows, in bounded portions of whole queries."""
    rows: list[_Row] = []
    seen: set[str] = set()
    before, current = 0, ""
    for number, row in _trec_lines(path):
        query_id = row[0]
        if query_id != current:
            if query_id in seen:
                raise DataError(
                    f"{path}:{number}: the lines of query {query_id!r} are not consecutive: sort the file by its first "
                    "column"
                )
            if len(rows) >= _IMPORT_ROWS:
                yield len(seen) - before, _against_ranks(rows), _ranked(rows, path, number)
                rows, before = [], len(seen)
            seen.add(query_id)
            current = query_id
        rows.append(row)
    if rows:
        yield len(seen) - before, _against_ranks(rows), _ranked(rows, path, number)


def _against_ranks(rows: Sequence[_Row]) -> int:
    """Return the number of queries whose score does not fall with the rank, by their first and last row.

    >>> _against_ranks([("q", "a", 0.1, 1), ("q", "b", 0.2, 2), ("r", "a", 0.2, 1), ("r", "b", 0.1, 2)])
    1
    """
    queries = (list(of_query) for _, of_query in itertools.groupby(rows, itemgetter(0)))
    ends = (sorted((of_query[0], of_query[-1]), key=itemgetter(3)) for of_query in queries)
    return sum(low[3] < high[3] and low[2] <= high[2] for low, high in ends)


def _trec_lines(path: str) -> Iterator[tuple[int, _Row]]:
    expected = "expected 6 columns: query_id Q0 passage_id rank score tag"
    number = 0
    try:
        with open_file(path, compression="infer") as file:
            for number, raw in enumerate(file, start=1):
                columns = columns_of(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
                if not columns:
                    continue
                if len(columns) != 6:
                    raise DataError(f"{path}:{number}: found {len(columns)} columns, {expected}")
                try:
                    score = number_of(columns[4], "score")
                except RowError:
                    raise DataError(f"{path}:{number}: the score is {columns[4]!r}, expected a finite number") from None
                rank = float(columns[3]) if columns[3].isdecimal() else 0.0
                yield number, (columns[0], columns[2], score, rank)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not valid UTF-8 ({error.reason}); {expected}") from None
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: the compressed file breaks off after line {number} ({error}): copy or compress it again"
        ) from None


def _ranked(rows: list[_Row], path: str, line: int) -> pa.Table:
    query_ids, passage_ids, scores, _ = zip(*rows, strict=True)
    try:
        return rank_rows(
            pa.array(query_ids, pa.string()), pa.array(passage_ids, pa.string()), pa.array(scores, pa.float64())
        )
    except DataError as error:
        raise DataError(f"{path}, within the {len(rows)} lines up to line {line}: {error}") from None


def _check_unique(query_ids: pa.Array, passage_ids: pa.Array) -> None:
    pairs = pa.table({"query": query_ids, "passage": passage_ids}).group_by(["query", "passage"], use_threads=False)
    counts = pairs.aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))
    if len(repeated):
        raise DataError(
            f"query {repeated['query'][0].as_py()!r}: passage {repeated['passage'][0].as_py()!r} occurs twice "
            f"({len(repeated)} such rows); a run must name each passage once"
        )
