"""Arrow tables of artefacts: schemas, files, and rows by the ids of queries. All ids are strings.

``passages`` and ``queries`` are memory-mapped Arrow files, so that any row can be read without loading the rest;
``runs`` and ``verdicts`` are Parquet, because people open them with other tools.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydr.errors import DataError
from raydr.seeding import stable_hash64

TableName = Literal["passages", "queries", "qrels", "negatives"]
#: Miner of random negatives that came with the data; their ranks are of a separate list.
RANDOM_MINER = "source:random"
#: Queries, judgments and negatives of a split.
SplitTables = tuple[pa.Table, pa.Table, pa.Table]


def _schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields)


PASSAGES = _schema(
    pa.field("passage_id", pa.string(), nullable=False),
    pa.field("title", pa.string(), nullable=False),
    pa.field("text", pa.string(), nullable=False),
    #: Place of the row: a short name of the file, and the line or record number in it.
    pa.field("source", pa.string(), nullable=False),
    pa.field("line", pa.int64(), nullable=False),
)

QUERIES = _schema(
    pa.field("query_id", pa.string(), nullable=False),
    pa.field("text", pa.string(), nullable=False),
    #: Answer strings (or regular expressions), null where the data set has none.
    pa.field("answers", pa.list_(pa.string())),
    #: Partition of the query, see :mod:`raydr.data.parts`; null if it has none.
    pa.field("partition", pa.string()),
    #: Category of the query, which is evaluated by itself; null if the data have none.
    pa.field("category", pa.string()),
)

QRELS = _schema(
    pa.field("query_id", pa.string(), nullable=False),
    pa.field("passage_id", pa.string(), nullable=False),
    pa.field("relevance", pa.int32(), nullable=False),
    #: Kind of injected noise (``mismatched``); null without injected noise.
    pa.field("noise", pa.string()),
    #: Passage before noise was injected.
    pa.field("original_passage_id", pa.string()),
    #: Place of the pair: a short name of the file, and the line or record number in it; null if it is not from a file.
    pa.field("source", pa.string()),
    pa.field("line", pa.int64()),
)

NEGATIVES = _schema(
    pa.field("query_id", pa.string(), nullable=False),
    pa.field("passage_id", pa.string(), nullable=False),
    #: Miner: ``source:...`` for the data set, ``bm25`` or a model's name; ``pair`` for a dropped positive.
    pa.field("miner", pa.string(), nullable=False),
    pa.field("round", pa.int32(), nullable=False),
    pa.field("rank", pa.int32(), nullable=False),
    pa.field("score", pa.float32()),
    #: Score of the query's annotated positive under the same miner, null if it was not retrieved.
    pa.field("positive_score", pa.float32()),
    #: Action of the judges: keep, drop, down_weight or relabel.
    pa.field("action", pa.string(), nullable=False),
    #: Weight on exp(score) in the denominator; 1 unless a judge lowered it.
    pa.field("weight", pa.float32(), nullable=False),
    #: ``false_negative`` for a planted positive.
    pa.field("noise", pa.string()),
)

RUNS = _schema(
    pa.field("query_id", pa.string(), nullable=False),
    pa.field("passage_id", pa.string(), nullable=False),
    pa.field("rank", pa.int32(), nullable=False),
    pa.field("score", pa.float32(), nullable=False),
)

VERDICTS = _schema(
    pa.field("query_id", pa.string(), nullable=False),
    pa.field("passage_id", pa.string(), nullable=False),
    pa.field("judge", pa.string(), nullable=False),
    pa.field("score", pa.float32(), nullable=False),
    pa.field("action", pa.string(), nullable=False),
    pa.field("weight", pa.float32(), nullable=False),
    #: Whether the pair is noise in truth; null if unknown.
    pa.field("truth", pa.bool_()),
)

BY_NAME: dict[str, pa.Schema] = {
    "passages": PASSAGES,
    "queries": QUERIES,
    "qrels": QRELS,
    "negatives": NEGATIVES,
    "absent": QRELS,
    "dropped": NEGATIVES,
    "trusted": QRELS,
    "runs": RUNS,
    "verdicts": VERDICTS,
}

_DEFAULTS: dict[str, dict[str, Any]] = {
    "passages": {"title": "", "source": "", "line": 0},
    "qrels": {"relevance": 1},
    "negatives": {"round": 0, "action": "keep", "weight": 1.0},
    "dropped": {"round": 0, "rank": 0, "action": "drop", "weight": 1.0},
}


def to_table(name: TableName | str, rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Convert rows (dicts) to a table of the named schema; missing values become the default or null.

    >>> to_table("qrels", [{"query_id": "q", "passage_id": "p"}]).to_pylist()[0]["relevance"]
    1
    """
    schema = BY_NAME[name]
    defaults = _DEFAULTS.get(name, {})
    listed = list(rows)
    columns = [pa.array([row.get(f.name, defaults.get(f.name)) for row in listed], type=f.type) for f in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    for field, column in zip(schema, table.columns, strict=True):
        if not field.nullable and column.null_count:
            raise DataError(f"column {field.name} of table {name} has {column.null_count} rows without a value")
    return table


def write_arrow(table: pa.Table, path: str) -> None:
    """Write an uncompressed Arrow file of a single record batch, ready for memory mapping."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def read_arrow(path: str) -> pa.Table:
    """Memory-map an Arrow file written by :func:`write_arrow`; nothing is copied."""
    with pa.memory_map(path) as source:
        return pa.ipc.open_file(source).read_all()


def write_parquet(table: pa.Table, path: str) -> None:
    # Passage ids and scores hardly repeat: a dictionary of them costs time and makes the file larger.
    repeating = [name for name in table.column_names if name not in ("passage_id", "score")]
    pq.write_table(table, path, compression="zstd", use_dictionary=repeating)


def read_parquet(path: str, columns: list[str] | None = None) -> pa.Table:
    return pq.read_table(Path(path), columns=columns, partitioning=None)


def of_queries(table: pa.Table, query_ids: Iterable[str] | pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows of some queries."""
    known = query_ids if isinstance(query_ids, pa.Array | pa.ChunkedArray) else pa.array(query_ids, pa.string())
    return table.filter(pc.is_in(table["query_id"], value_set=known))


def relevant(qrels: pa.Table) -> pa.Table:
    """Return the judgments of positives; relevance 0 is a known non-relevant passage."""
    return qrels.filter(pc.greater(qrels["relevance"], 0))


def pairs_of(table: pa.Table, passage: str = "passage_id") -> list[tuple[str, str]]:
    """Return (query id, passage id) of each row."""
    return list(zip(table["query_id"].to_pylist(), table[passage].to_pylist(), strict=True))


def places_of(table: pa.Table, pairs: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the row of each (query id, passage id) pair in the table; only ids of these queries become Python strings.

    >>> places_of(pa.table({"query_id": ["q", "q", "r"], "passage_id": ["a", "b", "a"]}), {("q", "b"), ("s", "a")})
    {('q', 'b'): 1}
    """
    query_ids = pa.array([query_id for query_id, _ in pairs], pa.string())
    rows = pc.indices_nonzero(pc.is_in(table["query_id"], value_set=query_ids))
    located = zip(pairs_of(table.take(rows)), rows.to_pylist(), strict=True)
    return {pair: row for pair, row in located if pair in pairs}


def passages_by_query(table: pa.Table) -> dict[str, list[str]]:
    """Return the passage ids of each query that has some, in the order of the rows.

    >>> passages_by_query(pa.table({"query_id": ["q", "r", "q"], "passage_id": ["b", "a", "a"]}))
    {'q': ['b', 'a'], 'r': ['a']}
    """
    passages: dict[str, list[str]] = defaultdict(list)
    for query_id, passage_id in pairs_of(table):
        passages[query_id].append(passage_id)
    return dict(passages)


def relevance_by_query(qrels: pa.Table) -> dict[str, dict[str, int]]:
    """Return the relevance of each query's judged passages, by id."""
    judgments: dict[str, dict[str, int]] = defaultdict(dict)
    for (query_id, passage_id), relevance in zip(pairs_of(qrels), qrels["relevance"].to_pylist(), strict=True):
        judgments[query_id][passage_id] = relevance
    return dict(judgments)


def choose_queries(query_ids: Iterable[str], max_queries: int, seed: int, purpose: str = "subset") -> set[str]:
    """Return the ``max_queries`` ids with the smallest stable hash of (seed, purpose, query_id); all if there are no
    more.

    The same ids are chosen in any order of the input, and a smaller subset is part of a larger one. Choices for
    different purposes are independent: queries made noisy are no likelier to be in a subset.

    >>> ids = [f"q{at}" for at in range(100)]
    >>> choose_queries(ids, 5, seed=1) == choose_queries(reversed(ids), 5, seed=1)
    True
    >>> choose_queries(ids, 5, seed=1) < choose_queries(ids, 9, seed=1)
    True
    """

    def order(query_id: str) -> tuple[int, str]:
        return stable_hash64(seed, purpose, query_id), query_id

    return set(heapq.nsmallest(max_queries, query_ids, key=order))
